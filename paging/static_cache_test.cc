#include "quire/paging/static_cache.h"

#include <gtest/gtest.h>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

// 40 tokens in 5 layers of 32 tokens a page: a slot has 10 pages.
constexpr uint64_t kSlotPages = 10;

std::unique_ptr<StaticCache> MakeStatic(TestDevice* device,
                                        uint32_t max_sequences = 8) {
  auto cache = StaticCache::Create(
      device->memory(), TestLayout(1),
      {.max_sequence_length = 40, .max_sequences = max_sequences});
  EXPECT_TRUE(cache.ok()) << cache.status();
  return *std::move(cache);
}

absl::Status Step(StaticCache* cache, SequenceId sequence, uint64_t length) {
  const SequenceStep step = {sequence, length};
  return cache->Step(std::span(&step, 1));
}

TEST(StaticCacheTest, AdmissionTakesTheWholeSlot) {
  TestDevice device(25);
  const auto cache = MakeStatic(&device);
  EXPECT_EQ(cache->max_sequence_length(), 40u);
  EXPECT_EQ(cache->AdmissibleTokens(), 40u);
  const SequenceId a = *cache->Admit(1);
  EXPECT_EQ(device.live_pages(), kSlotPages);
  EXPECT_EQ(*cache->Length(a), 1u);
  const SequenceId b = *cache->Admit(40);
  EXPECT_EQ(device.live_pages(), 2 * kSlotPages);
  EXPECT_EQ(cache->Use().needed, Bytes(2 * kSlotPages * 4096));
  EXPECT_EQ(*cache->FreedByRelease(a), Bytes(kSlotPages * 4096));
  // Five pages are left: half a slot is none.
  EXPECT_EQ(cache->AdmissibleTokens(), 0u);
  EXPECT_EQ(cache->Admit(1).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  ASSERT_TRUE(cache->Release(a, Fence()).ok());
  ASSERT_TRUE(cache->Release(b, Fence()).ok());
}

TEST(StaticCacheTest, StepsAndShrinksNeverCallTheDriver) {
  TestDevice device(20);
  const auto cache = MakeStatic(&device);
  const SequenceId a = *cache->Admit(1);
  const uint64_t calls = device.mapping_calls();
  ASSERT_TRUE(Step(cache.get(), a, 40).ok());
  // Every row of every layer can be written at once.
  for (uint32_t layer = 0; layer < 5; ++layer) {
    const KvLayerView view = *cache->View(a, layer);
    EXPECT_EQ(view.block_table, nullptr);
    for (uint64_t token = 0; token < 40; ++token) {
      *view.KeyRow(token).host_pointer<uint64_t>() = token * 8 + layer;
      *view.ValueRow(token).host_pointer<uint64_t>() = ~token;
    }
  }
  ASSERT_TRUE(cache->Shrink(a, 3, Fence()).ok());
  EXPECT_EQ(*cache->Length(a), 3u);
  EXPECT_EQ(device.live_pages(), kSlotPages);
  ASSERT_TRUE(Step(cache.get(), a, 30).ok());
  EXPECT_EQ(*cache->View(a, 4)->KeyRow(2).host_pointer<uint64_t>(), 20u);
  EXPECT_EQ(device.mapping_calls(), calls);

  EXPECT_EQ(Step(cache.get(), a, 41).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Shrink(a, 31, Fence()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*cache->Length(a), 30u);
  ASSERT_TRUE(cache->Release(a, Fence()).ok());
}

TEST(StaticCacheTest, AReleasedSlotServesTheNextSequenceBehindItsFence) {
  TestDevice device(20);
  const auto cache = MakeStatic(&device);
  const SequenceId a = *cache->Admit(10);
  const DeviceAddress slot = cache->View(a, 0)->keys;
  const uint64_t calls = device.mapping_calls();
  {
    BlockedStream stream(device.driver());
    ASSERT_TRUE(cache->Release(a, stream.Record()).ok());
    const SequenceId b = *cache->Admit(10);
    EXPECT_NE(cache->View(b, 0)->keys, slot);
    ASSERT_TRUE(cache->Release(b, Fence()).ok());
  }
  EXPECT_GT(device.mapping_calls(), calls);
  EXPECT_EQ(cache->Release(a, Fence()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Step(cache.get(), a, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache->Shrink(a, 1, Fence()).code(), absl::StatusCode::kNotFound);
  const uint64_t now = device.mapping_calls();
  const SequenceId c = *cache->Admit(40);
  EXPECT_EQ(device.mapping_calls(), now);
  ASSERT_TRUE(cache->Release(c, Fence()).ok());
}

TEST(StaticCacheTest, LayersWithWindowsKeepTheirWholeSlots) {
  TestDevice device(20);
  KvModelShape shape(kTestShape);
  for (const size_t layer : {1, 3}) {
    shape.layers[layer].window = 4;
    shape.layers[layer].sinks = 2;
  }
  const auto cache =
      *StaticCache::Create(device.memory(), *KvLayout::Create(shape, 1),
                           {.max_sequence_length = 40});
  const SequenceId a = *cache->Admit(1);
  const uint64_t calls = device.mapping_calls();
  for (uint64_t length = 2; length <= 40; ++length) {
    ASSERT_TRUE(Step(cache.get(), a, length).ok());
    cache->EndBatch(Fence());
    for (uint32_t layer = 0; layer < 5; ++layer) {
      const KvLayerView view = *cache->View(a, layer);
      *view.KeyRow(length - 1).host_pointer<uint64_t>() = length;
      EXPECT_EQ(*view.KeyRow(1).host_pointer<uint64_t>(), 2u);
    }
  }
  ASSERT_TRUE(cache->Shrink(a, 2, Fence()).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
  ASSERT_TRUE(cache->Release(a, Fence()).ok());
}

TEST(StaticCacheTest, SlotsAreALimitOfTheirOwn) {
  TestDevice device(64);
  const auto cache = MakeStatic(&device, 1);
  const SequenceId a = *cache->Admit(0);
  EXPECT_EQ(cache->AdmissibleTokens(), 0u);
  EXPECT_EQ(cache->Admit(0).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Admit(41).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(cache->Release(a, Fence()).ok());
  EXPECT_FALSE(StaticCache::Create(device.memory(), TestLayout(1), {}).ok());
}

}  // namespace
}  // namespace quire
