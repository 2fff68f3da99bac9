// What plans say of keys and values, against the formula written out and
// against sums over tokens.

#include "quire/model/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "quire/model/published_models.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

KvConfig ConfigOf(const char* name) {
  const auto config = FindPublishedModel(name)->ParseKv();
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(KvConfig());
}

SessionOptions Options() {
  SessionOptions options;
  options.device.device_memory = GiB(80);
  return options;
}

KvPlan Plan(const KvConfig& config, const SessionOptions& options,
            std::optional<Bytes> weights = std::nullopt) {
  const auto plan = PlanKv(config, weights, "it is only a plan", options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(KvPlan());
}

TEST(KvPlanTest, LayersWithWindowsAreAKindOfTheirOwn) {
  const KvPlan plan = Plan(ConfigOf("gpt-oss-20b"), Options());
  EXPECT_EQ(plan.why_not_decoded, "it is only a plan");
  EXPECT_EQ(plan.token, Bytes(49'152));
  EXPECT_EQ(plan.layers_per_row, 12u);
  ASSERT_EQ(plan.kinds.size(), 2u);
  for (const KvKindSize& kind : plan.kinds) {
    EXPECT_EQ(kind.layers, 12u);
    EXPECT_EQ(kind.token, Bytes(24'576));
    EXPECT_EQ(kind.formula, "12 layers x 2 x 8 heads x 64 x 2 bytes");
  }
  EXPECT_EQ(plan.kinds[0].kind.window, 128u);
  EXPECT_EQ(plan.kinds[1].kind.window, 0u);
  for (const KvLengthPlan& length : plan.lengths) {
    EXPECT_EQ(length.kept.value(),
              length.tokens * 24'576 +
                  std::min<uint64_t>(length.tokens, 128) * 24'576);
    // Two arrays of rows: a partly used page in each, and one that the window
    // begins in.
    EXPECT_GE(length.mapped, length.kept);
    EXPECT_LE(length.mapped.value(), length.kept.value() + 3 * MiB(2).value());
    EXPECT_EQ(length.room, plan.kv.value() / length.mapped.value());
    EXPECT_EQ(length.sequences, std::min<uint64_t>(length.room, 64));
  }
  EXPECT_EQ(plan.lengths.front().tokens, 256u);
  EXPECT_EQ(plan.lengths.back().tokens, 131072u);
}

TEST(KvPlanTest, LatentVectorsAreTheirOwnRows) {
  KvConfig config;
  config.shape.layers.assign(61, LatentKvLayer(512, 64, KvDType::kF16));
  config.max_positions = 4096;
  const KvPlan plan = Plan(config, Options());
  ASSERT_EQ(plan.kinds.size(), 1u);
  EXPECT_EQ(plan.kinds[0].formula, "61 layers x a vector of 576 x 2 bytes");
  EXPECT_EQ(plan.token, Bytes(70'272));
  EXPECT_EQ(plan.lengths.back().kept, Bytes(4096 * 70'272));
}

// What is not in the formula is named in it, so that it is always a sum.
TEST(KvPlanTest, FormulasOfAllElements) {
  SessionOptions options = Options();
  options.kv_dtype = KvDType::kF8E4M3;
  const KvPlan scaled = Plan(ConfigOf("qwen3-8b"), options);
  EXPECT_EQ(scaled.kinds[0].formula,
            "36 layers x 2 x 8 heads x 128 x 1 bytes + 576 scales x 2 bytes");
  EXPECT_EQ(scaled.token, Bytes(36 * 2 * 8 * 128 + 576 * 2));
  KvConfig odd;
  odd.shape.layers = {{.kv_heads = 1, .key_dim = 5, .value_dim = 3}};
  odd.max_positions = 16;
  const KvPlan aligned = Plan(odd, options);
  EXPECT_EQ(aligned.kinds[0].formula,
            "1 layers x 1 heads x (5 + 3) x 1 bytes + 2 scales x 2 bytes + 2 "
            "bytes that align them");
  EXPECT_EQ(aligned.token, Bytes(8 + 4 + 2));
}

TEST(KvPlanTest, WhatWeightsLeaveIsForSequences) {
  const KvConfig config = ConfigOf("llama2-7b");
  const KvPlan free = Plan(config, Options());
  EXPECT_EQ(free.kv, free.usable);
  const KvPlan beside = Plan(config, Options(), GiB(13));
  EXPECT_EQ(SaturatingAdd(beside.kv, GiB(13)), beside.usable);
  EXPECT_EQ(beside.fits, true);
  EXPECT_EQ(free.fits, std::nullopt);
  const KvPlan none = Plan(config, Options(), GiB(100));
  EXPECT_EQ(none.lengths.back().sequences, 0u);
  EXPECT_EQ(none.fits, false);
}

TEST(KvPlanTest, ALimitOfTokensIsKeptInEveryLayerThatSeesMore) {
  SessionOptions options = Options();
  options.kv_limit = {.max_tokens = 1000, .sinks = 4};
  const KvPlan plan = Plan(ConfigOf("gpt-oss-20b"), options);
  EXPECT_EQ(plan.lengths.back().kept, Bytes((1000 + 128) * 24'576));
  EXPECT_EQ(plan.kinds[1].kind.window, 996u);
  EXPECT_EQ(plan.kinds[1].kind.sinks, 4u);
}

TEST(KvPlanTest, TheLayoutIsWhatTheOptionsSay) {
  SessionOptions options = Options();
  options.layers_per_row = kAutoLayersPerRow;
  options.kv_workload.mean_tokens = 1366;
  // The table of docs/kv_row.md, which counts no pages ahead.
  options.page_ahead = 0;
  const KvPlan plan = Plan(ConfigOf("qwen3-8b"), options);
  EXPECT_EQ(plan.layers_per_row, 12u);
  EXPECT_EQ(plan.layouts.options.layers_per_row, 12u);
  options.kv_workload.waste_limit = 0.05;
  EXPECT_EQ(Plan(ConfigOf("qwen3-8b"), options).layers_per_row, 4u);
  options.layers_per_row = 9;
  EXPECT_EQ(Plan(ConfigOf("qwen3-8b"), options).layers_per_row, 9u);
}

TEST(KvPlanTest, OptionsThatItCannotHaveAreErrors) {
  const auto expect = [](const SessionOptions& options,
                         const std::string& mention) {
    const auto plan =
        PlanKv(ConfigOf("qwen3-8b"), std::nullopt, "it is one", options);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(mention));
  };
  SessionOptions options = Options();
  options.layers_per_row = 37;
  expect(options, "--layers-per-row 37");
  options = Options();
  options.max_model_len = 40961;
  expect(options, "40961");
  options = Options();
  options.placement.device_map = "auto";
  expect(options, "it is one");
  options = Options();
  options.adapters = {{"a", "folder"}};
  expect(options, "adapters");
  options = Options();
  options.weights.quantization = LoadQuantization::kNf4;
  expect(options, "quantised");
  options = Options();
  options.kv_limit = {.max_tokens = 4, .sinks = 4};
  expect(options, "--max-cache-len 4");
}

TEST(KvPlanTest, LengthsDoubleUpToTheLongest) {
  EXPECT_THAT(PlannedLengths(100), ElementsAre(100));
  EXPECT_THAT(PlannedLengths(1024), ElementsAre(256, 512, 1024));
  EXPECT_THAT(PlannedLengths(1500), ElementsAre(256, 512, 1024, 1500));
  EXPECT_EQ(PlannedLengths(UINT64_MAX).back(), UINT64_MAX);
}

}  // namespace
}  // namespace quire
