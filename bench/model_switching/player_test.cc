// Small days whose outcome is worked out by hand.

#include "bench/model_switching/player.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr char kHeader[] = "phase,op,id,bytes\n";

Workload Read(const std::string& rows) {
  const auto workload = ReadWorkload(kHeader + rows);
  EXPECT_TRUE(workload.ok()) << workload.status();
  return workload.value_or(Workload());
}

// 64 MiB of weights; a run takes 32 MiB more, for a while.
Workload SmallModel() {
  return Read(
      "load,mark,0,0\nload,alloc,0,67108864\n"
      "run1,mark,0,0\nrun1,mark,1,0\nrun1,alloc,1,33554432\nrun1,free,1,0\n"
      "unload,mark,0,0\nunload,free,0,0\n");
}

Scenario ReadOne(const std::string& steps, uint64_t usable,
                 const std::string& minima) {
  const auto scenarios = ReadScenarios(
      R"({"scenarios": [{"name": "day", "class": "tight", "usable_bytes": )" +
      std::to_string(usable) + R"(, "minimum_peak_bytes_of_each_step": [)" +
      minima + R"(], "steps": [)" + steps + "]}]}");
  EXPECT_TRUE(scenarios.ok()) << scenarios.status();
  return scenarios.ok() && !scenarios->empty() ? scenarios->front()
                                               : Scenario();
}

ScenarioResult Play(const Scenario& scenario,
                    const std::map<std::string, Workload>& workloads,
                    const std::string& policy,
                    SwitchStrategy strategy = SwitchStrategy::kKeep) {
  SwitchingOptions options;
  options.strategy = strategy;
  const auto result =
      PlayScenario(scenario, workloads, *ParsePolicySpec(policy), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(ScenarioResult());
}

TEST(ScenarioPlayerTest, PlaysStepByStep) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "load", "workload": "b"},
         {"do": "parallel", "chunk": 1, "parts": [
            {"workload": "a", "phase": "run1"},
            {"workload": "b", "phase": "run1"}]},
         {"do": "reserve", "name": "kv", "count": 3, "bytes_each": 1048576},
         {"do": "unload", "workload": "a"}, {"do": "release", "name": "kv"})",
      GiB(1).value(), "0,0,0,0,0,0");
  const ScenarioResult result =
      Play(scenario, {{"a", SmallModel()}, {"b", SmallModel()}}, "cudamalloc");
  ASSERT_EQ(result.steps.size(), 6u);
  const uint64_t expected[] = {64, 128, 192, 131, 131, 67};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(result.steps[i].peak_requested, MiB(expected[i])) << i;
  }
  EXPECT_EQ(result.switches, 3u);
  EXPECT_EQ(result.switches_survived, 3u);
  EXPECT_EQ(result.cost().loaded, MiB(128));
  EXPECT_FALSE(result.first_failed_step);
}

TEST(ScenarioPlayerTest, DropsWhatDoesNotFitAndGoesOn) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "load", "workload": "b"},
         {"do": "run", "workload": "b", "phase": "run1"},
         {"do": "unload", "workload": "b"},
         {"do": "run", "workload": "a", "phase": "run1"})",
      MiB(96).value(), "0,0,0,0,0");
  const ScenarioResult result =
      Play(scenario, {{"a", SmallModel()}, {"b", SmallModel()}}, "quire");
  ASSERT_EQ(result.steps.size(), 5u);
  EXPECT_EQ(result.first_failed_step, 1u);
  EXPECT_EQ(result.steps[1].failure, ShortageKind::kCapacity);
  ASSERT_EQ(result.steps[1].failures.size(), 1u);
  EXPECT_EQ(result.steps[1].failures[0].dropped, "b");
  EXPECT_EQ(result.steps[1].failures[0].request, MiB(64));
  EXPECT_TRUE(result.steps[2].passed_over);
  EXPECT_TRUE(result.steps[3].passed_over);
  EXPECT_EQ(result.steps[4].peak_requested, MiB(96));
  EXPECT_EQ(result.switches, 3u);
  EXPECT_EQ(result.switches_survived, 1u);
  EXPECT_EQ(result.capacity_failures, 1u);
}

// 95.75 of 96 MiB are asked for, and pages hold no more than 95.5 of them: that
// is the policy's doing, unless the step goes on to ask for what does not
// exist.
TEST(ScenarioPlayerTest, BlamesCapacityWhereTheStepNeedsMoreThanThereIs) {
  const std::string rows =
      "load,mark,0,0\nload,alloc,0,67108864\n"
      "run1,mark,0,0\nrun1,alloc,1,33030144\nrun1,alloc,2,262144\n";
  const std::string steps =
      R"({"do": "load", "workload": "a"},
         {"do": "run", "workload": "a", "phase": "run1"})";
  const Scenario scenario = ReadOne(steps, MiB(96).value(), "0,0");
  for (const auto& [more, kind] :
       {std::pair("", ShortageKind::kFragmentation),
        std::pair("run1,alloc,3,1048576\n", ShortageKind::kCapacity)}) {
    const ScenarioResult result =
        Play(scenario, {{"a", Read(rows + more)}}, "cudamalloc");
    ASSERT_EQ(result.steps.size(), 2u);
    EXPECT_EQ(result.steps[1].failure, kind);
    ASSERT_EQ(result.steps[1].failures.size(), 1u);
    EXPECT_EQ(result.steps[1].failures[0].request, KiB(256));
  }
}

// Of 64 MiB: a needs 96 and is dropped; b's weights are 65, though the one that
// cannot be had may be the 64th; c fits.
TEST(ScenarioPlayerTest, BlamesCapacityAfterWhatWasDroppedToo) {
  const Workload b = Read(
      "load,mark,0,0\nload,alloc,0,33554432\nload,alloc,1,31457280\n"
      "load,alloc,2,1048576\nload,alloc,3,1048576\nload,alloc,4,1048576\n");
  const Workload c = Read("load,mark,0,0\nload,alloc,0,33554432\n");
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"},
         {"do": "run", "workload": "a", "phase": "run1"},
         {"do": "unload", "workload": "a"}, {"do": "load", "workload": "b"},
         {"do": "load", "workload": "c"})",
      MiB(64).value(), "0,0,0,0,0");
  for (const char* policy : {"quire", "pytorch", "cudamalloc"}) {
    for (const SwitchStrategy strategy : kSwitchStrategies) {
      SCOPED_TRACE(absl::StrCat(policy, ", ", SwitchStrategyName(strategy)));
      const ScenarioResult result =
          Play(scenario, {{"a", SmallModel()}, {"b", b}, {"c", c}}, policy,
               strategy);
      ASSERT_EQ(result.steps.size(), 5u);
      EXPECT_EQ(result.steps[1].failure, ShortageKind::kCapacity);
      EXPECT_EQ(result.steps[3].failure, ShortageKind::kCapacity);
      EXPECT_FALSE(result.steps[4].failure);
      EXPECT_EQ(result.capacity_failures, 2u);
      EXPECT_EQ(result.fragmentation_failures, 0u);
    }
  }
}

// Three models of 64 MiB, one switch after the other: a new process loads all
// that is to be there, the first time one, then two, then three, then two.
TEST(ScenarioPlayerTest, RestartLoadsAgainWhatStays) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "load", "workload": "b"},
         {"do": "load", "workload": "c"}, {"do": "unload", "workload": "a"},
         {"do": "run", "workload": "b", "phase": "run1"})",
      GiB(1).value(), "0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {
      {"a", SmallModel()}, {"b", SmallModel()}, {"c", SmallModel()}};
  const ScenarioResult result =
      Play(scenario, workloads, "pytorch", SwitchStrategy::kRestart);
  EXPECT_EQ(result.cost().loaded, MiB(64 * 8));
  EXPECT_EQ(result.steps[4].peak_requested, MiB(64 * 2 + 32));
  // What the unloaded model had is not kept.
  EXPECT_EQ(result.steps[4].peak_reserved, MiB(64 * 2 + 32));
  EXPECT_EQ(Play(scenario, workloads, "pytorch").cost().loaded, MiB(64 * 3));
}

// Two models that run in turns, on a device that has room for one: each comes
// from disk or from the host when it runs, and `keep` cannot do it.
constexpr char kTurns[] =
    R"({"do": "load", "workload": "a"},
       {"do": "run", "workload": "a", "phase": "run1"},
       {"do": "load", "workload": "b"},
       {"do": "run", "workload": "b", "phase": "run1"},
       {"do": "run", "workload": "a", "phase": "run1"},
       {"do": "unload", "workload": "b"},
       {"do": "load", "workload": "b"},
       {"do": "run", "workload": "b", "phase": "run1"})";

TEST(ScenarioPlayerTest, ReloadsWhatIsNeeded) {
  const Scenario scenario = ReadOne(kTurns, MiB(96).value(), "0,0,0,0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  for (const char* policy : {"quire", "pytorch", "cudamalloc"}) {
    const ScenarioResult result =
        Play(scenario, workloads, policy, SwitchStrategy::kReload);
    EXPECT_FALSE(result.first_failed_step) << policy;
    // a, b, a, b: what is not there when it is unloaded was unloaded before.
    EXPECT_EQ(result.cost().loaded, MiB(64 * 4)) << policy;
    EXPECT_EQ(result.peak_requested, MiB(96)) << policy;
    EXPECT_EQ(result.steps[4].cost.loaded, MiB(64)) << policy;
    // A first token behind each of the four.
    for (const size_t step : {1u, 3u, 4u, 7u}) {
      ASSERT_EQ(result.steps[step].first_tokens.size(), 1u) << policy << step;
      EXPECT_EQ(result.steps[step].first_tokens[0].loaded, MiB(64));
    }
    EXPECT_EQ(Play(scenario, workloads, policy).steps[2].failure,
              ShortageKind::kCapacity);
  }
}

TEST(ScenarioPlayerTest, SleepsInHostMemory) {
  const Scenario scenario = ReadOne(kTurns, MiB(96).value(), "0,0,0,0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  for (const char* policy : {"quire", "pytorch", "cudamalloc"}) {
    const ScenarioResult result =
        Play(scenario, workloads, policy, SwitchStrategy::kSleep);
    EXPECT_FALSE(result.first_failed_step) << policy;
    // Each is read once; b sleeps where it was unloaded and is loaded from
    // there.
    EXPECT_EQ(result.cost().loaded, MiB(128)) << policy;
    EXPECT_EQ(result.cost().copied_out, MiB(64 * 3)) << policy;
    EXPECT_EQ(result.cost().copied_in, MiB(64 * 2)) << policy;
    EXPECT_EQ(result.peak_host_memory, MiB(64)) << policy;
    EXPECT_EQ(result.peak_requested, MiB(96)) << policy;
    EXPECT_LE(result.peak_reserved, MiB(96)) << policy;
  }
}

TEST(ScenarioPlayerTest, PutsToSleepWhatTheDaySays) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "sleep", "workload": "a"},
         {"do": "load", "workload": "b"}, {"do": "unload", "workload": "b"},
         {"do": "wake", "workload": "a"},
         {"do": "run", "workload": "a", "phase": "run1"})",
      MiB(96).value(), "0,0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  for (const SwitchStrategy strategy : kSwitchStrategies) {
    SCOPED_TRACE(SwitchStrategyName(strategy));
    const ScenarioResult result = Play(scenario, workloads, "quire", strategy);
    EXPECT_FALSE(result.first_failed_step);
    EXPECT_EQ(result.switches_survived, 5u);
    EXPECT_EQ(result.peak_requested, MiB(96));
    const bool sleeps = strategy != SwitchStrategy::kReload &&
                        strategy != SwitchStrategy::kRestart;
    EXPECT_EQ(result.steps[1].host_memory, sleeps ? MiB(64) : Bytes(0));
    EXPECT_EQ(result.cost().loaded, sleeps ? MiB(128) : MiB(64 * 3));
  }
}

// What a model cannot have when it wakes up drops it, and it alone.
TEST(ScenarioPlayerTest, DropsWhatCannotWakeUp) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "sleep", "workload": "a"},
         {"do": "load", "workload": "b"}, {"do": "wake", "workload": "a"},
         {"do": "run", "workload": "b", "phase": "run1"})",
      MiB(96).value(), "0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  for (const char* policy : {"quire", "pytorch", "cudamalloc"}) {
    const ScenarioResult result = Play(scenario, workloads, policy);
    EXPECT_EQ(result.first_failed_step, 3u) << policy;
    EXPECT_EQ(result.steps[3].failure, ShortageKind::kCapacity) << policy;
    EXPECT_EQ(result.steps[3].failures.front().dropped, "a") << policy;
    EXPECT_EQ(result.steps[3].host_memory, Bytes(0)) << policy;
    EXPECT_EQ(result.steps[4].peak_requested, MiB(96)) << policy;
  }
}

// A pool of 16 MiB, in 2 MiB tensors, takes what models leave of 128 MiB and
// gives way to them, down to its least.
TEST(ScenarioPlayerTest, BalloonsTakeWhatIsLeft) {
  const Scenario scenario = ReadOne(
      R"({"do": "reserve", "name": "kv", "count": 8, "bytes_each": 2097152},
         {"do": "load", "workload": "a"},
         {"do": "run", "workload": "a", "phase": "run1"},
         {"do": "unload", "workload": "a"})",
      MiB(128).value(), "0,0,0,0");
  for (const char* policy : {"quire", "cudamalloc"}) {
    const ScenarioResult result =
        Play(scenario, {{"a", SmallModel()}}, policy, SwitchStrategy::kShared);
    EXPECT_FALSE(result.first_failed_step) << policy;
    for (const StepResult& step : result.steps) {
      ASSERT_TRUE(step.idle) << policy;
      EXPECT_EQ(step.idle, 0) << policy;
    }
  }
  SwitchingOptions options;
  options.strategy = SwitchStrategy::kShared;
  // 96 of 128 MiB for the model: 16 of 20 tensors may stay.
  const Scenario full = ReadOne(
      R"({"do": "reserve", "name": "kv", "count": 20, "bytes_each": 2097152},
         {"do": "load", "workload": "a"},
         {"do": "run", "workload": "a", "phase": "run1"})",
      MiB(128).value(), "0,0,0");
  for (const auto& [least, failed] :
       {std::pair(0.8, false), std::pair(0.85, true)}) {
    options.pool_minimum = least;
    const auto result = PlayScenario(full, {{"a", SmallModel()}},
                                     *ParsePolicySpec("quire"), options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->first_failed_step.has_value(), failed) << least;
  }
}

// The second day, a cache has all that the first one took, whatever it left
// loaded; without a cache every day is like the first.
TEST(ScenarioPlayerTest, TellsTheLastDayApart) {
  const Scenario scenario = ReadOne(
      R"({"do": "load", "workload": "a"},
         {"do": "reserve", "name": "kv", "count": 3, "bytes_each": 1048576},
         {"do": "run", "workload": "a", "phase": "run1"})",
      GiB(1).value(), "0,0,0");
  SwitchingOptions options;
  for (const uint64_t days : {1u, 2u, 4u}) {
    options.days = days;
    const auto play = [&](const char* policy) {
      const auto result = PlayScenario(scenario, {{"a", SmallModel()}},
                                       *ParsePolicySpec(policy), options);
      EXPECT_TRUE(result.ok()) << result.status();
      return result.value_or(ScenarioResult());
    };
    const ScenarioResult cached = play("pytorch");
    const ScenarioResult uncached = play("cudamalloc");
    ASSERT_EQ(cached.steps.size(), 3u);
    ASSERT_EQ(cached.last_day.has_value(), days > 1);
    // 64 MiB, twice 2 MiB for the pool, and 32 MiB.
    EXPECT_EQ(cached.driver_calls(), 4u);
    // 64 MiB, three for the pool, and 32 MiB that are freed.
    EXPECT_EQ(uncached.driver_calls(), 1u + 3 + 2);
    if (days == 1) continue;
    EXPECT_EQ(cached.last_day->driver_calls, 0u);
    // What the day before has left is freed first.
    EXPECT_EQ(uncached.last_day->driver_calls, 6u + 4);
  }
}

// Owners share no page: where nobody sleeps and no pool is kept, models are
// none.
TEST(ScenarioPlayerTest, MakesOwnersWhereTheyAreNeeded) {
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  const Scenario turns = ReadOne(kTurns, GiB(1).value(), "0,0,0,0,0,0,0,0");
  const Scenario sleeps = ReadOne(
      R"({"do": "load", "workload": "a"}, {"do": "sleep", "workload": "a"})",
      GiB(1).value(), "0,0");
  const Scenario pool = ReadOne(
      R"({"do": "reserve", "name": "kv", "count": 8, "bytes_each": 2097152})",
      GiB(1).value(), "0");
  const auto has_owners = [&](const Scenario& scenario,
                              SwitchStrategy strategy) {
    return Play(scenario, workloads, "quire", strategy).owners;
  };
  for (const SwitchStrategy strategy : kSwitchStrategies) {
    SCOPED_TRACE(SwitchStrategyName(strategy));
    const bool sleep = strategy == SwitchStrategy::kSleep;
    const bool shared = strategy == SwitchStrategy::kShared;
    const bool keep = strategy == SwitchStrategy::kKeep;
    EXPECT_EQ(has_owners(turns, strategy), sleep);
    EXPECT_EQ(has_owners(sleeps, strategy), sleep || shared || keep);
    EXPECT_EQ(has_owners(pool, strategy), sleep || shared);
    EXPECT_FALSE(Play(turns, workloads, "pytorch", strategy).owners);
  }
}

// A model's pages serve the next one as they are mapped.
TEST(ScenarioPlayerTest, MakesNoCallsOnceTheCachesAreFull) {
  const Scenario scenario = ReadOne(kTurns, MiB(96).value(), "0,0,0,0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  SwitchingOptions options;
  options.strategy = SwitchStrategy::kReload;
  options.days = 2;
  for (const char* policy : {"quire", "pytorch"}) {
    const auto result =
        PlayScenario(scenario, workloads, *ParsePolicySpec(policy), options);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(result->last_day);
    EXPECT_EQ(result->last_day->driver_calls, 0u) << policy;
  }
}

TEST(CountMinimaTest, CountsWhatEachStrategyNeeds) {
  const Scenario scenario = ReadOne(kTurns, MiB(96).value(), "0,0,0,0,0,0,0,0");
  const std::map<std::string, Workload> workloads = {{"a", SmallModel()},
                                                     {"b", SmallModel()}};
  const auto count = [&](SwitchStrategy strategy) {
    const auto minima = CountMinima(scenario, workloads, strategy, 0);
    EXPECT_TRUE(minima.ok()) << minima.status();
    std::vector<uint64_t> mebibytes;
    for (const Bytes bytes : minima.value_or(std::vector<Bytes>())) {
      mebibytes.push_back(bytes.value() >> 20);
    }
    return mebibytes;
  };
  using Mebibytes = std::vector<uint64_t>;
  EXPECT_EQ(count(SwitchStrategy::kKeep),
            (Mebibytes{64, 96, 128, 160, 160, 128, 128, 160}));
  EXPECT_EQ(count(SwitchStrategy::kSleep),
            (Mebibytes{64, 96, 64, 96, 96, 64, 64, 96}));
  EXPECT_EQ(count(SwitchStrategy::kReload),
            (Mebibytes{64, 96, 64, 96, 96, 64, 64, 96}));
}

TEST(SwitchStrategyTest, ReadsLists) {
  const auto strategies = ParseSwitchStrategies("sleep,keep");
  ASSERT_TRUE(strategies.ok());
  EXPECT_EQ(*strategies,
            (std::vector{SwitchStrategy::kSleep, SwitchStrategy::kKeep}));
  EXPECT_EQ(ParseSwitchStrategies("keep,hope").status().message(),
            "there is no strategy \"hope\"; there are reload, keep, sleep, "
            "shared, restart");
}

TEST(ScenarioPlayerTest, NamesWhatIsMissing) {
  const Scenario scenario = ReadOne(R"({"do": "load", "workload": "a"},
                 {"do": "run", "workload": "a", "phase": "run7"})",
                                    GiB(1).value(), "0,0");
  EXPECT_EQ(PlayScenario(scenario, {}, *ParsePolicySpec("quire"), {})
                .status()
                .message(),
            "there is no workload a");
  EXPECT_EQ(PlayScenario(scenario, {{"a", SmallModel()}},
                         *ParsePolicySpec("quire"), {})
                .status()
                .message(),
            "a has no phase run7");
}

std::string RefusalOf(const std::string& steps, const std::string& usable) {
  return std::string(
      ReadScenarios(
          R"({"scenarios": [{"name": "day", "class": "c", "usable_bytes": )" +
          usable + R"(, "steps": [)" + steps + "]}]}")
          .status()
          .message());
}

TEST(ReadScenariosTest, RefusesWhatCannotBeMeant) {
  const std::string load = R"({"do": "load", "workload": "a"})";
  const std::string sleep = R"({"do": "sleep", "workload": "a"})";
  const std::string unload = R"({"do": "unload", "workload": "a"})";
  const auto reserve = [](const std::string& name, const std::string& count,
                          const std::string& each) {
    return R"({"do": "reserve", "name": ")" + name + R"(", "count": )" + count +
           R"(, "bytes_each": )" + each + "}";
  };
  const struct {
    std::string steps;
    std::string message;
  } cases[] = {
      {load + "," + load, "step 1: a is there already"},
      {load + "," + reserve("a", "1", "1000"), "step 1: a is there already"},
      {unload, "step 0: a is not there"},
      {load + "," + unload + "," + unload, "step 2: a is not there"},
      {R"({"do": "run", "workload": "a", "phase": "run1"})",
       "step 0: a is not there"},
      {R"({"do": "release", "name": "a"})", "step 0: a is not there"},
      {load + R"(, {"do": "release", "name": "a"})", "step 1: a is not there"},
      {load + "," + sleep + "," + sleep, "step 2: a sleeps already"},
      {load + R"(, {"do": "wake", "workload": "a"})",
       "step 1: a does not sleep"},
      {load + R"(, {"do": "run", "workload": "a", "phase": "load"})",
       "step 1: phase load is none to run"},
      {R"({"do": "parallel", "chunk": 0, "parts": [{"workload": "a",
           "phase": "run1"}]})",
       "step 0: chunk is 0"},
      {R"({"do": "parallel", "chunk": 1, "parts": []})",
       "step 0: parts is empty"},
      {reserve("kv", "4", "0"), "step 0: bytes_each is 0"},
      {reserve("kv", "2097153", "4096"),
       "step 0: count is 2097153, above 2097152"},
      {reserve("kv", "1000", "18446744073709551615"),
       "step 0: count * bytes_each is more than 2^64"},
      {reserve("kv", "1", "1"),
       "step 0: bytes_each is 1, of which the device holds more than 2097152"},
  };
  for (const auto& [steps, message] : cases) {
    EXPECT_EQ(RefusalOf(steps, "1073741824"), "scenario 0 (day): " + message)
        << steps;
  }
  EXPECT_EQ(RefusalOf(load + "," + sleep + "," + load, "1073741824"), "");
  for (const char* usable : {"0", "2097151", "9223372036854775808"}) {
    EXPECT_EQ(RefusalOf(load, usable),
              std::string("scenario 0 (day): usable_bytes is ") + usable +
                  ", and no device of 2.00 MiB to 4.00 TiB");
  }
}

TEST(ReadScenariosTest, LeavesOutWhatIsLessThanAPage) {
  EXPECT_EQ(
      ReadOne(R"({"do": "load", "workload": "a"})", 500000000, "0").usable,
      MiB(476));
}

TEST(ReadScenariosTest, SaysWhereAFileIsWrong) {
  EXPECT_EQ(ReadScenarios("{").status().message(), "it is no JSON");
  EXPECT_EQ(ReadScenarios("{}").status().message(), "scenarios is missing");
  EXPECT_EQ(ReadScenarios(R"({"scenarios": [{"name": 3}]})").status().message(),
            "scenario 0: name is no text");
  EXPECT_EQ(ReadScenarios(R"({"scenarios": [{"name": "n", "class": "c",
          "usable_bytes": 1, "minimum_peak_bytes_of_each_step": [1],
          "steps": [{"do": "dance"}]}]})")
                .status()
                .message(),
            "scenario 0 (n): step 0: \"dance\" is nothing that can be done");
  EXPECT_EQ(ReadWorkload(std::string(kHeader) + "load,alloc,0,1\n")
                .status()
                .message(),
            "events come before the first phase");
}

}  // namespace
}  // namespace quire
