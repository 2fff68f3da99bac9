// The days of the traces folder, whose least memory, step by step, is published
// with them: who survives, who dies, and what is asked of Quire.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "bench/model_switching/player.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

std::filesystem::path Folder() {
  return std::filesystem::path(QUIRE_SOURCE_DIR).parent_path() /
         "shared/traces/model-ops";
}

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

double Ratio(const ScenarioResult& result) {
  return static_cast<double>(result.peak_reserved.value()) /
         static_cast<double>(result.peak_requested.value());
}

class PublishedDaysTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Folder())) {
      GTEST_SKIP() << "no traces at " << Folder();
    }
    const auto read =
        ReadScenarios(Contents(Folder() / "switching_scenarios.json"));
    ASSERT_TRUE(read.ok()) << read.status();
    scenarios_ = *read;
    ASSERT_FALSE(scenarios_.empty());
    for (const Scenario& scenario : scenarios_) {
      for (const std::string& name : WorkloadsOf(scenario)) {
        if (workloads_.contains(name)) continue;
        const auto workload =
            ReadWorkload(Contents(Folder() / (name + ".csv")));
        ASSERT_TRUE(workload.ok()) << name << ": " << workload.status();
        workloads_[name] = *workload;
      }
    }
  }

  ScenarioResult Play(const Scenario& scenario, const std::string& policy,
                      SwitchStrategy strategy) {
    SwitchingOptions options;
    options.strategy = strategy;
    const auto result =
        PlayScenario(scenario, workloads_, *ParsePolicySpec(policy), options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(ScenarioResult());
  }

  const Scenario& Named(const std::string& name) {
    const auto found =
        std::find_if(scenarios_.begin(), scenarios_.end(),
                     [&](const Scenario& one) { return one.name == name; });
    EXPECT_NE(found, scenarios_.end()) << name;
    return found == scenarios_.end() ? scenarios_.front() : *found;
  }

  std::vector<Scenario> scenarios_;
  std::map<std::string, Workload> workloads_;
};

// Live bytes are what the file says, step by step; Quire survives all that fit,
// with at most 1.05 times what is asked for; what cannot fit is told as that,
// and not before.
TEST_F(PublishedDaysTest, QuireSurvivesWhatFits) {
  for (const Scenario& scenario : scenarios_) {
    SCOPED_TRACE(scenario.name);
    const auto minima =
        CountMinima(scenario, workloads_, SwitchStrategy::kKeep, 0);
    ASSERT_TRUE(minima.ok()) << minima.status();
    EXPECT_EQ(*minima, scenario.minimum_peak_of_steps);
    const ScenarioResult result =
        Play(scenario, "quire", SwitchStrategy::kKeep);
    ASSERT_EQ(result.steps.size(), scenario.steps.size());
    EXPECT_EQ(result.fragmentation_failures, 0u);
    EXPECT_LE(Ratio(result), 1.05);
    if (!scenario.first_step_over) {
      EXPECT_FALSE(result.first_failed_step);
      for (size_t i = 0; i < result.steps.size(); ++i) {
        EXPECT_EQ(result.steps[i].peak_requested,
                  scenario.minimum_peak_of_steps[i])
            << "step " << i;
      }
    } else {
      ASSERT_TRUE(result.first_failed_step);
      EXPECT_GE(*result.first_failed_step, *scenario.first_step_over);
      EXPECT_GT(result.capacity_failures, 0u);
    }
  }
}

// On days that fit, of the systems that cache, were checked and survive.
TEST_F(PublishedDaysTest, NobodyWhoSurvivesHoldsLessThanQuire) {
  for (const Scenario& scenario : scenarios_) {
    if (scenario.first_step_over) continue;
    SCOPED_TRACE(scenario.name);
    const ScenarioResult quire = Play(scenario, "quire", SwitchStrategy::kKeep);
    for (const PolicyKind& kind : PolicyKinds()) {
      const std::string name = kind.name;
      if (!kind.validated || name == "quire" || name == "cudamalloc") continue;
      const ScenarioResult other = Play(scenario, name, SwitchStrategy::kKeep);
      if (other.first_failed_step) continue;
      EXPECT_LE(quire.peak_reserved, other.peak_reserved) << name;
    }
  }
}

// PyTorch's stock policy dies in the studio, and whole pages whose tails nobody
// shares, as cudaMalloc hands them out, in both tight days; every one of them
// for fragmentation, since the days fit.
TEST_F(PublishedDaysTest, TightDaysKillPlainPolicies) {
  for (const auto& [day, policy] :
       {std::pair{"tight-24-studio", "pytorch"},
        std::pair{"tight-24-studio", "cudamalloc"},
        std::pair{"tight-12-chat-and-voice", "cudamalloc"}}) {
    SCOPED_TRACE(testing::Message() << day << ", " << policy);
    const ScenarioResult result =
        Play(Named(day), policy, SwitchStrategy::kKeep);
    EXPECT_TRUE(result.first_failed_step);
    EXPECT_GT(result.fragmentation_failures, 0u);
    EXPECT_EQ(result.capacity_failures, 0u);
  }
}

// With a pool that all models share, at most 2 % of the device is idle.
TEST_F(PublishedDaysTest, SharedPoolsLeaveLittleIdle) {
  int pools = 0;
  for (const Scenario& scenario : scenarios_) {
    SCOPED_TRACE(scenario.name);
    const ScenarioResult result =
        Play(scenario, "quire", SwitchStrategy::kShared);
    EXPECT_EQ(result.fragmentation_failures, 0u);
    for (const StepResult& step : result.steps) {
      if (!step.idle) continue;
      ++pools;
      EXPECT_LE(*step.idle, 0.02);
    }
  }
  EXPECT_GT(pools, 0);
}

// Waking up, on the virtual clock: at least 0.8 of the speed of the copies
// alone, at 24 GB/s.
TEST_F(PublishedDaysTest, WakingUpIsMostlyCopying) {
  for (const Scenario& scenario : scenarios_) {
    SCOPED_TRACE(scenario.name);
    const ScenarioResult result =
        Play(scenario, "quire", SwitchStrategy::kSleep);
    EXPECT_FALSE(result.first_failed_step);
    const double copies =
        static_cast<double>(result.cost().copied_in.value()) / 24;  // ns
    ASSERT_GT(copies, 0);
    EXPECT_GE(
        copies / (copies + static_cast<double>(result.wake_nanoseconds())),
        0.8);
  }
}

}  // namespace
}  // namespace quire
