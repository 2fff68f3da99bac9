// Small models of every family in turns on a device that holds one of them:
// what they say does not depend on who was there between.

#include "bench/model_switching/real_models.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

RealOptions SmallModels() {
  const std::filesystem::path golden =
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden";
  RealOptions options;
  for (const char* name : {"gptq-w4-sym", "plain-f32", "rope-llama3",
                           "qwen2-gptq", "qwen3-plain", "lora-saved"}) {
    options.models.push_back((golden / name).string());
  }
  // The same model once more, with its adapter.
  options.models.push_back(
      absl::StrCat((golden / "lora-saved").string(),
                   ":adapter=", (golden / "lora-saved/adapter").string()));
  options.page_size = KiB(64);
  options.threads = 2;
  return options;
}

class RealModelsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto models = RunAlone(options_);
    ASSERT_TRUE(models.ok()) << models.status();
    models_ = *models;
    for (const RealModel& model : models_) {
      EXPECT_EQ(model.tokens.size(), options_.turns * options_.tokens_per_turn);
      largest_ = std::max(largest_, model.peak);
      all_ = SaturatingAdd(all_, model.peak);
    }
  }

  RealResult Play(SwitchStrategy strategy) {
    const auto result = RunInTurns(options_, models_, strategy);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(RealResult());
  }

  void ExpectAllEqual(const RealResult& result) {
    ASSERT_EQ(result.tokens.size(), models_.size());
    for (size_t i = 0; i < models_.size(); ++i) {
      EXPECT_EQ(result.tokens[i], models_[i].tokens) << models_[i].path;
    }
    EXPECT_EQ(result.switches.size(), models_.size() * options_.turns);
  }

  RealOptions options_ = SmallModels();
  std::vector<RealModel> models_;
  Bytes largest_;
  Bytes all_;
};

TEST_F(RealModelsTest, SleepAndGoOn) {
  const RealResult result = Play(SwitchStrategy::kSleep);
  EXPECT_FALSE(result.failure) << *result.failure;
  ExpectAllEqual(result);
  // There was no room for two.
  EXPECT_LT(result.device_memory, all_);
  EXPECT_LE(result.peak_reserved, result.device_memory);
  EXPECT_GT(result.peak_host_memory, Bytes(0));
  // Each but the last that ran sleeps at the end.
  EXPECT_GT(result.copied_out, result.copied_in);
  EXPECT_GT(result.copied_in, Bytes(0));
}

TEST_F(RealModelsTest, FollowTheirAdapter) {
  RealOptions options = options_;
  options.models = {models_.back().path};
  const auto adapted = RunAlone(options);
  ASSERT_TRUE(adapted.ok()) << adapted.status();
  options.models = {models_[models_.size() - 2].path};
  const auto without = RunAlone(options);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*adapted)[0].prompt, (*without)[0].prompt);
  EXPECT_NE((*adapted)[0].tokens, (*without)[0].tokens);
}

TEST_F(RealModelsTest, AreReadAgainAndGoOn) {
  const RealResult once = Play(SwitchStrategy::kSleep);
  const RealResult result = Play(SwitchStrategy::kReload);
  EXPECT_FALSE(result.failure) << *result.failure;
  ExpectAllEqual(result);
  EXPECT_EQ(result.read.value(), once.read.value() * options_.turns);
  EXPECT_EQ(result.copied_out, Bytes(0));
  EXPECT_GT(result.load_seconds, 0);
  EXPECT_GT(result.read_seconds, 0);
  EXPECT_GE(result.bound_seconds, result.read_seconds);
  EXPECT_EQ(result.peak_host_memory, Bytes(0));
}

TEST_F(RealModelsTest, StayWhereThereIsRoom) {
  options_.device_memory = SaturatingAdd(all_, MiB(1));
  const RealResult result = Play(SwitchStrategy::kKeep);
  EXPECT_FALSE(result.failure) << *result.failure;
  ExpectAllEqual(result);
  EXPECT_EQ(result.copied_out, Bytes(0));
}

// Each switch opens what has come so far, but for those that have said all:
// 1, 2, ..., n, then n for every further turn, and ever fewer in the last one.
TEST_F(RealModelsTest, RestartsLoadEverythingAgain) {
  options_.device_memory = SaturatingAdd(all_, MiB(1));
  const RealResult kept = Play(SwitchStrategy::kKeep);
  const RealResult result = Play(SwitchStrategy::kRestart);
  EXPECT_FALSE(result.failure) << *result.failure;
  ExpectAllEqual(result);
  EXPECT_EQ(result.copied_out, Bytes(0));
  // 3 turns of n models: each is opened n - i times in the first one, n in the
  // second one, and i + 1 times in the last one.
  ASSERT_EQ(options_.turns, 3u);
  EXPECT_EQ(result.read.value(), kept.read.value() * (2 * models_.size() + 1));
  EXPECT_LE(result.peak_reserved, result.device_memory);
}

// What each switch left on the device, and in host memory.
TEST_F(RealModelsTest, TellEachSwitch) {
  const RealResult result = Play(SwitchStrategy::kSleep);
  ASSERT_EQ(result.switches.size(), result.planned_switches);
  for (size_t i = 0; i < result.switches.size(); ++i) {
    const RealSwitch& done = result.switches[i];
    EXPECT_EQ(done.model, i % models_.size());
    EXPECT_GT(done.seconds_to_first_token, done.seconds_to_switch);
    EXPECT_GT(done.reserved, Bytes(0));
    EXPECT_LE(done.reserved, result.peak_reserved);
    EXPECT_LE(done.host_memory, result.peak_host_memory);
    EXPECT_EQ(done.host_memory > Bytes(0), i > 0);
  }
}

TEST_F(RealModelsTest, SayThatMemoryRanOut) {
  const RealResult result = Play(SwitchStrategy::kKeep);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure_kind, ShortageKind::kCapacity);
  EXPECT_NE(result.failure->find(options_.models[1]), std::string::npos)
      << *result.failure;
  EXPECT_EQ(result.switches.size(), 1u);
  EXPECT_EQ(result.planned_switches, models_.size() * options_.turns);
  const RealResult restarted = Play(SwitchStrategy::kRestart);
  ASSERT_TRUE(restarted.failure);
  EXPECT_EQ(restarted.failure_kind, ShortageKind::kCapacity);
  EXPECT_EQ(restarted.switches.size(), 1u);
}

TEST(RealModelsErrorTest, NamesTheModel) {
  RealOptions options;
  options.models = {"/nowhere"};
  const auto models = RunAlone(options);
  ASSERT_FALSE(models.ok());
  EXPECT_EQ(models.status().message().find("/nowhere"), 0u) << models.status();
}

TEST(FirstDifferenceTest, ComparesLengthsToo) {
  EXPECT_EQ(FirstDifference({1, 2, 3}, {1, 2, 3}), std::nullopt);
  EXPECT_EQ(FirstDifference({1, 2, 3}, {1, 4, 3}), 1u);
  EXPECT_EQ(FirstDifference({1, 2, 3}, {1, 2}), 2u);
  EXPECT_EQ(FirstDifference({1, 2}, {1, 2, 3}), 2u);
}

}  // namespace
}  // namespace quire
