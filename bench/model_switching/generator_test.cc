// Days that are generated: they can be played, they fit where they should, and
// they have the models and arrivals that were asked for.

#include "bench/model_switching/generator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "bench/model_switching/player.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

// `mebibytes` of weights, and half as much in a run.
Workload Model(uint64_t mebibytes) {
  const std::string weights = std::to_string(mebibytes << 20);
  const std::string more = std::to_string(mebibytes << 19);
  const auto workload = ReadWorkload(
      "phase,op,id,bytes\nload,mark,0,0\nload,alloc,0," + weights +
      "\nrun1,mark,0,0\nrun1,alloc,1," + more + "\nrun1,free,1,0\n" +
      "run2,mark,0,0\nrun2,alloc,2,1024\nrun2,free,2,0\n" +
      "unload,mark,0,0\nunload,free,0,0\n");
  EXPECT_TRUE(workload.ok()) << workload.status();
  return workload.value_or(Workload());
}

class GeneratorTest : public testing::Test {
 protected:
  GeneratorTest() {
    options_.requests = 400;
    options_.mix = {{"a", 6}, {"b", 3}, {"c", 1}};
    options_.usable = MiB(160);
  }

  Scenario Generate() {
    const auto scenario = GenerateScenario(options_, workloads_);
    EXPECT_TRUE(scenario.ok()) << scenario.status();
    return scenario.value_or(Scenario());
  }

  const std::map<std::string, Workload> workloads_ = {
      {"a", Model(64)}, {"b", Model(32)}, {"c", Model(48)}};
  GeneratorOptions options_;
};

// How often each model runs.
std::map<std::string, int> CountRuns(const Scenario& scenario) {
  std::map<std::string, int> runs;
  for (const ScenarioStep& step : scenario.steps) {
    if (step.kind != Kind::kRun && step.kind != Kind::kParallel) continue;
    for (const ScenarioPart& part : step.parts) ++runs[part.workload];
  }
  return runs;
}

TEST_F(GeneratorTest, ServesEveryRequestWithinTheDevice) {
  for (const ArrivalProcess arrivals :
       {ArrivalProcess::kPoisson, ArrivalProcess::kBursts}) {
    options_.arrivals = arrivals;
    const Scenario scenario = Generate();
    EXPECT_FALSE(scenario.first_step_over);
    for (const Bytes bytes : scenario.minimum_peak_of_steps) {
      EXPECT_LE(bytes.value(), static_cast<uint64_t>(0.97 * MiB(160).value()));
    }
    int runs = 0;
    for (const auto& [model, count] : CountRuns(scenario)) runs += count;
    EXPECT_EQ(runs, 400);
    const auto result =
        PlayScenario(scenario, workloads_, *ParsePolicySpec("quire"), {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->first_failed_step);
    EXPECT_EQ(result->switches_survived, result->switches);
    for (const StepResult& step : result->steps) {
      EXPECT_FALSE(step.passed_over);
    }
  }
}

// Shares are those of the mix, within four standard deviations of the binomial
// distribution.
TEST_F(GeneratorTest, DrawsTheMix) {
  options_.requests = 4000;
  const std::map<std::string, int> runs = CountRuns(Generate());
  for (const auto& [model, share] :
       std::map<std::string, double>{{"a", 0.6}, {"b", 0.3}, {"c", 0.1}}) {
    EXPECT_NEAR(runs.at(model), 4000 * share,
                4 * std::sqrt(4000 * share * (1 - share)))
        << model;
  }
}

// The mean length of the runs of one model without another between: 1 / (1 -
// sum of p^2) where each request is on its own.
double MeanRunLength(const Scenario& scenario) {
  std::string last;
  double requests = 0;
  double changes = 0;
  for (const ScenarioStep& step : scenario.steps) {
    if (step.kind != Kind::kRun && step.kind != Kind::kParallel) continue;
    for (const ScenarioPart& part : step.parts) {
      ++requests;
      changes += part.workload != last;
      last = part.workload;
    }
  }
  return requests / changes;
}

TEST_F(GeneratorTest, BurstsAreOfOneModel) {
  options_.requests = 4000;
  EXPECT_NEAR(MeanRunLength(Generate()), 1 / (1 - 0.46), 0.15);
  options_.arrivals = ArrivalProcess::kBursts;
  EXPECT_GT(MeanRunLength(Generate()), 6);
}

TEST_F(GeneratorTest, UnloadsWhatNobodyAsksFor) {
  const auto unloads = [&] {
    const Scenario scenario = Generate();
    return std::count_if(
        scenario.steps.begin(), scenario.steps.end(),
        [](const ScenarioStep& step) { return step.kind == Kind::kUnload; });
  };
  options_.usable = GiB(1);
  options_.keep_alive_seconds = 1e9;
  EXPECT_EQ(unloads(), 3);  // at the end
  options_.keep_alive_seconds = 60;
  EXPECT_GT(unloads(), 50);
}

TEST_F(GeneratorTest, IsTheSameForOneSeed) {
  const std::string first = WriteScenarios({Generate()});
  EXPECT_EQ(WriteScenarios({Generate()}), first);
  const auto read = ReadScenarios(first);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteScenarios(*read), first);
  options_.seed = 2;
  EXPECT_NE(WriteScenarios({Generate()}), first);
}

TEST_F(GeneratorTest, SaysWhereAModelDoesNotFit) {
  options_.usable = MiB(80);
  const Scenario scenario = Generate();
  EXPECT_EQ(scenario.category, "infeasible");
  ASSERT_TRUE(scenario.first_step_over);
  EXPECT_GT(scenario.minimum_peak_of_steps[*scenario.first_step_over], MiB(80));
}

TEST_F(GeneratorTest, RefusesWhatCannotBeDrawn) {
  options_.mix = {{"a", 0}};
  EXPECT_EQ(GenerateScenario(options_, workloads_).status().message(),
            "the mix has no weight");
  options_.mix = {{"d", 1}};
  EXPECT_EQ(GenerateScenario(options_, {{"d", Workload()}}).status().message(),
            "d has no phase to run");
}

TEST(ModelMixTest, ReadsWeights) {
  const auto mix = ParseModelMix("a=2,b,c=0.5");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ(*mix,
            (std::map<std::string, double>{{"a", 2}, {"b", 1}, {"c", 0.5}}));
  for (const char* wrong : {"", "a,,b", "=2", "a=x", "a=-1", "a=nan"}) {
    EXPECT_FALSE(ParseModelMix(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace quire
