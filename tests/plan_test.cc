// What a plan says, and what a session then takes.

#include "quire/model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "model/engine/plan_advice.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/model_config.h"
#include "quire/model/session.h"
#include "tests/golden_cases.h"
#include "tests/session_testing.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Small pages, so that the small models take many.
SessionOptions Options(Bytes device_memory) {
  SessionOptions options;
  options.device.device_memory = device_memory;
  options.device.page_size = KiB(64);
  options.decoder = {.max_batch_tokens = 16, .max_logit_rows = 4};
  options.threads = 1;
  return options;
}

class PlanTest : public testing::TestWithParam<fs::path> {};

TEST_P(PlanTest, ASessionTakesWhatWasPlanned) {
  SessionOptions options = Options(MiB(64));
  options.weights.quantization = ReadGoldenCase(GetParam()).quantization;
  const ModelPlan plan = PlanOf(GetParam(), options);
  const auto session = Session::Open(GetParam(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  const AllocatorStatistics taken =
      (*session)->runtime().allocator()->GetStatistics();
  EXPECT_EQ(plan.fixed, Bytes(taken.mapped_bytes));
  EXPECT_EQ(SaturatingAdd(plan.weights, plan.workspace),
            Bytes(taken.requested_bytes));
  EXPECT_EQ(plan.usable, (*session)->runtime().memory()->GetStatistics().limit);
  EXPECT_EQ(plan.longest_sequence, (*session)->cache().AdmissibleTokens());
  EXPECT_EQ(plan.staging_peak,
            (*session)->weights().load_report().staging_peak);
  EXPECT_EQ(plan.parts.size(), (*session)->config().layers + 3u);
}

// The longest sequence is one that a session takes, and no more than it can.
TEST_P(PlanTest, OnADeviceThatIsShortTheLongestSequenceIsTaken) {
  SessionOptions options = Options(MiB(64));
  options.weights.quantization = ReadGoldenCase(GetParam()).quantization;
  const ModelPlan roomy = PlanOf(GetParam(), options);
  options.device.memory_utilization = 1;
  options.device.device_memory = SaturatingAdd(roomy.fixed, KiB(3 * 64));
  const ModelPlan plan = PlanOf(GetParam(), options);
  EXPECT_EQ(plan.kv, KiB(3 * 64));
  const auto session = Session::Open(GetParam(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  SequenceCache& cache = (*session)->cache();
  EXPECT_EQ(plan.longest_sequence, cache.AdmissibleTokens());
  ASSERT_TRUE(cache.Admit(plan.longest_sequence).ok());
  EXPECT_EQ(plan.fits, plan.longest_sequence == plan.max_model_len);
}

// Over devices and tiers: what is planned for each is what a session takes.
TEST_P(PlanTest, EveryDeviceTakesWhatWasPlanned) {
  SessionOptions options = Options(MiB(1));
  options.max_model_len = 128;
  options.placement.device_map = "sequential";
  options.placement.max_memory = {{DevicePlace(0), KiB(512)},
                                  {DevicePlace(1), KiB(256)},
                                  {kHostPlace, MiB(1)}};
  const ModelPlan plan = PlanOf(GetParam(), options);
  const auto session = Session::Open(GetParam(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_EQ(plan.devices.size(), 2u);
  const OffloadStatistics offload =
      (*session)->weights().GetOffloadStatistics();
  EXPECT_GE(offload.host, plan.host);
  for (int device = 0; device < 2; ++device) {
    const DeviceMemoryStatistics taken =
        (*session)->runtime().memory(DeviceId(device))->GetStatistics();
    EXPECT_EQ(plan.devices[static_cast<size_t>(device)].fixed, taken.in_use);
    EXPECT_EQ(plan.devices[static_cast<size_t>(device)].usable, taken.limit);
  }
  EXPECT_EQ(plan.longest_sequence,
            std::min<uint64_t>((*session)->cache().AdmissibleTokens(), 128));
  for (size_t i = 0; i < plan.parts.size(); ++i)
    EXPECT_EQ(plan.parts[i].place, (*session)->weights().parts()[i].place);
}

std::string NameOf(const testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Golden, PlanTest,
                         testing::ValuesIn(FindGoldenCases(
                             fs::path(QUIRE_SOURCE_DIR) / "tests/golden",
                             {"plain-f32", "gptq-w4-act-order",
                              "plain-bf16-tied", "gptq-w3-asym", "awq-w4-g16",
                              "fp8-block", "ct-w4-actorder", "load-"})),
                         NameOf);

TEST(PlanAdviceTest, SaysWhatIsMissing) {
  const auto cases = FindGoldenCases(
      fs::path(QUIRE_SOURCE_DIR) / "tests/golden", {"plain-f32"});
  ASSERT_EQ(cases.size(), 1u);
  const SessionOptions options = Options(KiB(256));
  const ModelPlan plan = PlanOf(cases.front(), options);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.longest_sequence, 0u);
  EXPECT_THAT(plan.advice, Contains(HasSubstr("are missing")));
  EXPECT_THAT(plan.advice, Contains(HasSubstr("quire quantize --bits 4")));
  for (const KvLengthPlan& batch : plan.batches) {
    EXPECT_EQ(batch.sequences, 0u) << batch.tokens;
  }
  EXPECT_THAT(PlanOf(cases.front(), Options(MiB(64))).advice, IsEmpty());
}

TEST(PlanAdviceTest, WhatIsQuantizedIsNotToBeQuantizedAgain) {
  for (const fs::path& folder :
       FindGoldenCases(fs::path(QUIRE_SOURCE_DIR) / "tests/golden",
                       {"gptq-w8-sym", "fp8-row", "ct-int8-asym"})) {
    SCOPED_TRACE(folder.filename());
    const ModelPlan plan = PlanOf(folder, Options(KiB(256)));
    EXPECT_FALSE(plan.fits);
    EXPECT_THAT(plan.advice, Contains(HasSubstr("are missing")));
    EXPECT_THAT(plan.advice, Not(Contains(HasSubstr("quire quantize"))));
  }
}

// A model of few layers and a vocabulary in blocks of 4 bits: its linears get
// smaller, and its embedding is written in 16.
TEST(PlanAdviceTest, QuantizingThatEnlargesIsNotAdvised) {
  ModelPlan plan;
  plan.parts = {{"embedding", Bytes(), {}},
                {"layer", Bytes(), {}},
                {"norm", Bytes(), {}},
                {"head", Bytes(), {}}};
  plan.tensors = {
      {.name = "e", .dtype = DType::kQ4_0, .shape = {1024, 256}, .part = 0},
      {.name = "l", .dtype = DType::kQ8_0, .shape = {256, 256}, .part = 1},
      {.name = "n", .dtype = DType::kF32, .shape = {256}, .part = 1}};
  // 8 codes a word, and for each of two groups a scale and half a byte.
  EXPECT_EQ(FourBitWeights(plan), Bytes(1024 * 256 * 2 + 256 * 256 / 2 +
                                        2 * (256 * 2 + 256 / 2) + 256 * 4));
}

// What is advised is true: with it, the plan fits.
TEST(PlanAdviceTest, WhatIsAdvisedFits) {
  const auto cases = FindGoldenCases(
      fs::path(QUIRE_SOURCE_DIR) / "tests/golden", {"plain-f32"});
  ASSERT_EQ(cases.size(), 1u);
  SessionOptions options = Options(MiB(64));
  options.device.page_size = KiB(4);
  options.device.memory_utilization = 1;
  options.max_model_len = 64;
  const ModelPlan roomy = PlanOf(cases.front(), options);
  ASSERT_TRUE(roomy.fits);
  // Three pages too few.
  options.device.device_memory = Bytes(
      roomy.fixed.value() + 64 * roomy.kv_token.value() - KiB(12).value());
  const ModelPlan plan = PlanOf(cases.front(), options);
  ASSERT_FALSE(plan.fits);
  ASSERT_EQ(plan.alternatives.size(), 2u);
  EXPECT_TRUE(plan.alternatives[0].fits);
  EXPECT_TRUE(plan.alternatives[1].fits);
  EXPECT_THAT(plan.advice, Contains(HasSubstr("in host memory")));
  EXPECT_THAT(plan.advice,
              Contains(HasSubstr(plan.alternatives[1].description)));
  SessionOptions host = options;
  host.placement.device_map = "auto";
  EXPECT_TRUE(PlanOf(cases.front(), host).fits);
  EXPECT_TRUE(Session::Open(cases.front(), host).ok());
}

// The map of a plan with one part moved to device 0, as a plan sees it.
ModelPlan PlanWithMoved(const fs::path& folder, SessionOptions options,
                        const ModelPlan& plan, size_t moved) {
  const TemporaryFolder maps;
  std::string map;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const std::string place = i == moved ? "0" : PlaceName(plan.parts[i].place);
    map += (i == 0 ? "{\"" : ", \"") + plan.parts[i].name + "\": \"" + place +
           "\"";
  }
  options.placement.device_map = maps.Write("map.json", map + "}");
  return PlanOf(folder, options);
}

// Whatever the size of the device: what is kept elsewhere has no room there any
// more, by the plan of the map that puts it there.
TEST(PlanPlacementTest, NoRoomIsLeftForWhatIsKeptElsewhere) {
  size_t shared = 0;
  for (const fs::path& folder :
       FindGoldenCases(fs::path(QUIRE_SOURCE_DIR) / "tests/golden",
                       {"plain-f32", "gptq-w4-act-order"})) {
    for (const char* policy : {"auto", "sequential"}) {
      SessionOptions options = Options(MiB(64));
      options.device.page_size = KiB(4);
      options.max_model_len = 64;
      options.placement.device_map = policy;
      const Bytes whole = PlanOf(folder, options).devices[0].running_peak;
      for (const uint64_t percent : {50, 75, 95}) {
        for (const MemoryPlace& elsewhere : {kHostPlace, kDiskPlace}) {
          const Bytes device(whole.value() * percent / 100);
          options.placement.max_memory = {{DevicePlace(0), device},
                                          {elsewhere, GiB(1)}};
          options.placement.offload.folder = fs::temp_directory_path();
          const ModelPlan plan = PlanOf(folder, options);
          SCOPED_TRACE(folder.filename().string() + " " + policy + " " +
                       std::to_string(device.value()));
          // Not even the slots have room.
          if (!plan.fits) continue;
          EXPECT_LE(plan.devices[0].running_peak, plan.devices[0].usable);
          EXPECT_LT(plan.devices[0].weights, plan.weights);
          shared += !plan.devices[0].weights.zero();
          for (size_t i = 0; i < plan.parts.size(); ++i) {
            if (plan.parts[i].place != elsewhere) continue;
            const ModelPlan moved = PlanWithMoved(folder, options, plan, i);
            EXPECT_GT(moved.devices[0].running_peak, moved.devices[0].usable)
                << plan.parts[i].name;
          }
        }
      }
    }
  }
  EXPECT_GT(shared, 6u);
}

// A device that a policy leaves empty is named, with what it would have taken.
TEST(PlanPlacementTest, EmptyDevicesHaveTheirReason) {
  const auto cases = FindGoldenCases(
      fs::path(QUIRE_SOURCE_DIR) / "tests/golden", {"plain-f32"});
  ASSERT_EQ(cases.size(), 1u);
  SessionOptions options = Options(MiB(64));
  options.max_model_len = 64;
  options.placement.device_map = "sequential";
  options.placement.max_memory = {{DevicePlace(0), MiB(32)},
                                  {DevicePlace(1), MiB(32)}};
  EXPECT_THAT(PlanOf(cases.front(), options).warnings,
              Contains(HasSubstr("device 1 stays empty: the devices before")));
  options.placement.max_memory = {{DevicePlace(0), MiB(32)},
                                  {DevicePlace(1), KiB(64)},
                                  {kHostPlace, MiB(32)}};
  options.placement.max_memory[0].limit = KiB(64);
  options.placement.max_memory[1].limit = MiB(32);
  const ModelPlan plan = PlanOf(cases.front(), options);
  EXPECT_THAT(plan.warnings,
              Contains(HasSubstr("device 0 stays empty: the next part takes")));
  const auto session = Session::Open(cases.front(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->empty_devices().size(), 1u);
  options.placement.max_memory = {{DevicePlace(1), MiB(32)}};
  EXPECT_THAT(PlanOf(cases.front(), options).warnings,
              Contains(HasSubstr("device 0 stays empty: no limit")));
}

}  // namespace
}  // namespace quire
