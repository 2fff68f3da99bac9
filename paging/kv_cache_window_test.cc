// Windows, sinks and limits: what no kernel sees any more goes, what one may
// see stays, and addresses stay in any case.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 640;

KvCacheOptions EagerOptions() {
  KvCacheOptions options = CacheOptions(kMaxTokens);
  options.eager_reclaim = true;
  return options;
}

// The keys of one layer say whose they are, token by token.
void Mark(const KvCache& cache, SequenceId sequence, uint32_t layer,
          uint64_t from, uint64_t to) {
  const KvLayerView view = *cache.View(sequence, layer);
  for (uint64_t token = from; token < to; ++token)
    *view.KeyRow(token).host_pointer<uint64_t>() = token * 10 + layer;
}

bool AreMarked(const KvCache& cache, SequenceId sequence, uint32_t layer,
               uint64_t from, uint64_t to) {
  const KvLayerView view = *cache.View(sequence, layer);
  for (uint64_t token = from; token < to; ++token) {
    if (*view.KeyRow(token).host_pointer<uint64_t>() != token * 10 + layer)
      return false;
  }
  return true;
}

TEST(KvCacheWindowTest, WhatIsBehindTheWindowIsSpareAndTheRestStays) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 0), CacheOptions(kMaxTokens));
  const SequenceId sequence = Admit(cache.get(), 100);
  for (uint32_t layer = 0; layer < 4; ++layer)
    Mark(*cache, sequence, layer, 0, 100);
  cache->EndBatch(Fence());
  // Token 100 sees tokens 61 to 100: three pages of 16 are behind.
  ASSERT_TRUE(Step(cache.get(), sequence, 101).ok());
  EXPECT_EQ(device.live_pages(), 14u);
  EXPECT_EQ(cache->GetStatistics().reclaimable, KiB(12));
  EXPECT_EQ(cache->GetStatistics().used, Bytes((101 + 40) * 256));
  EXPECT_EQ(cache->Kept(sequence, 0)->first, 61u);
  EXPECT_EQ(cache->Kept(sequence, 1)->first, 0u);
  // Others take them.
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(64), kUnnamedOwner);
  EXPECT_TRUE(
      device.memory()->Commit(other, PageCount(0), PageCount(64 - 11)).ok());
  EXPECT_FALSE(
      device.memory()->Commit(other, PageCount(64 - 11), PageCount(1)).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 48, 100));
  EXPECT_TRUE(AreMarked(*cache, sequence, 2, 48, 100));
  EXPECT_TRUE(AreMarked(*cache, sequence, 1, 0, 100));
  device.memory()->ReleaseRange(other, Fence());
}

TEST(KvCacheWindowTest, SinksStay) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 20), EagerOptions());
  const SequenceId sequence = Admit(cache.get(), 200);
  Mark(*cache, sequence, 0, 0, 200);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 201).ok());
  // 13 pages a group. Tokens 0 to 19 and 161 to 200: pages 0, 1, 10 to 12.
  EXPECT_EQ(device.live_pages(), 13u + 5u);
  EXPECT_EQ(cache->Kept(sequence, 0)->sinks, 20u);
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 0, 32));
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 160, 200));
}

TEST(KvCacheWindowTest, SwappedOutAndInItHasWhatItKept) {
  TestDevice device(64);
  KvCacheOptions options = EagerOptions();
  options.swap_space = KiB(4 * 18);
  const auto cache = MakeCache(&device, WindowTestLayout(40, 20), options);
  const SequenceId sequence = Admit(cache.get(), 200);
  for (uint32_t layer = 0; layer < 4; ++layer)
    Mark(*cache, sequence, layer, 0, 200);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 201).ok());
  EXPECT_EQ(device.live_pages(), 13u + 5u);
  ASSERT_TRUE(cache->SwapOut(sequence, Fence()).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(device.live_pages(), 0u);
  // 18 pages, the last one of each group to the last row: 201 are 12 pages and
  // 9 rows of 256 bytes.
  EXPECT_EQ(cache->GetStatistics().bytes_swapped_out,
            Bytes(16 * 4096 + 2 * 9 * 256));
  // Others need the memory meanwhile, and too much of it at first.
  const SequenceId other = Admit(cache.get(), 400);
  EXPECT_TRUE(absl::IsResourceExhausted(cache->SwapIn(sequence)));
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  Release(cache.get(), other);
  ASSERT_TRUE(cache->SwapIn(sequence).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(device.live_pages(), 13u + 5u);
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 0, 32));
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 160, 200));
  EXPECT_TRUE(AreMarked(*cache, sequence, 1, 0, 200));
  // And drops on.
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 301).ok());
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 302).ok());
  EXPECT_TRUE(AreMarked(*cache, sequence, 2, 0, 32));
  Release(cache.get(), sequence);
}

TEST(KvCacheWindowTest, NothingGoesBeforeTheBatchHasEnded) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 0), EagerOptions());
  const SequenceId sequence = Admit(cache.get(), 100);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 300).ok());
  EXPECT_EQ(device.live_pages(), 38u - 3u);
  // The kernels of that step see what is behind the windows of the next one.
  ASSERT_TRUE(Step(cache.get(), sequence, 301).ok());
  EXPECT_EQ(device.live_pages(), 38u - 3u);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 302).ok());
  EXPECT_EQ(device.live_pages(), 38u - 16u);
}

TEST(KvCacheWindowTest, WithPageAheadTheyGoWhileTheDeviceComputes) {
  TestDevice device(64);
  KvCacheOptions options = EagerOptions();
  options.page_ahead.max_steps = 4;
  const auto cache = MakeCache(&device, WindowTestLayout(40, 0), options);
  const SequenceId sequence = Admit(cache.get(), 106);
  BlockedStream kernels(device.driver());
  cache->EndBatch(kernels.Record());
  const uint64_t calls = device.mapping_calls();
  ASSERT_TRUE(Step(cache.get(), sequence, 107).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
  EXPECT_EQ(cache->GetStatistics().reclaimable, KiB(16));
  // Kernels of the batch may still see them.
  ASSERT_EQ(*cache->PrepareAhead(4), PageCount(0));
  EXPECT_EQ(device.live_pages(), 14u);
  kernels.Unblock();
  ASSERT_EQ(*cache->PrepareAhead(4), PageCount(0));
  EXPECT_EQ(device.live_pages(), 10u);
  EXPECT_EQ(cache->GetStatistics().reclaimable, Bytes(0));
  EXPECT_EQ(cache->GetStatistics().steps_waited, 0u);
}

TEST(KvCacheWindowTest, PagesCoolUnderTheFenceOfTheBatch) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 0), EagerOptions());
  BlockedStream stream(device.driver());
  const SequenceId sequence = Admit(cache.get(), 100);
  cache->EndBatch(stream.Record());
  ASSERT_TRUE(Step(cache.get(), sequence, 101).ok());
  EXPECT_EQ(device.cooling_pages(), 3u);
  stream.Unblock();
  EXPECT_EQ(device.memory()->Harvest(), PageCount(3));
}

TEST(KvCacheWindowTest, ALimitHoldsWhateverTheLength) {
  TestDevice device(64);
  KvCacheOptions options = EagerOptions();
  options.limit = {50, 4};
  const auto cache = MakeCache(&device, 5, options);  // 640-byte rows
  const SequenceId limited = Admit(cache.get(), 10);
  for (uint64_t length = 11; length <= kMaxTokens; ++length) {
    ASSERT_TRUE(Step(cache.get(), limited, length).ok()) << length;
    // 4 and 46 tokens, with the row that the kernel adds: 1 and at most 9
    // pages.
    ASSERT_LE(device.live_pages(), 10u) << length;
    cache->EndBatch(Fence());
  }
  EXPECT_EQ(cache->Kept(limited, 3)->sinks, 4u);
  EXPECT_EQ(cache->Kept(limited, 3)->first, kMaxTokens - 46);
  EXPECT_EQ(cache->GetStatistics().used, Bytes(50 * 640));
  Release(cache.get(), limited);
  // One of its own, and none at all.
  const SequenceId other = *cache->Admit(100, KvTokenLimit{20, 0});
  const SequenceId unlimited = *cache->Admit(100, KvTokenLimit{});
  for (int i = 0; i < 2; ++i) {
    cache->EndBatch(Fence());
    ASSERT_TRUE(Step(cache.get(), other, 101 + i).ok());
    ASSERT_TRUE(Step(cache.get(), unlimited, 101 + i).ok());
  }
  EXPECT_EQ(cache->Kept(other, 0)->first, 82u);
  EXPECT_EQ(cache->Kept(unlimited, 0)->first, 0u);
  EXPECT_EQ(device.live_pages(), 16u + 4u);
}

TEST(KvCacheWindowTest, ALimitBeyondTheWindowDoesNotCount) {
  const KvLayerKind kind = {1, 4, 4, KvDType::kF32, KvScale::kNone, 10, 2};
  EXPECT_EQ(WithLimit(kind, {12, 0}), kind);
  EXPECT_EQ(WithLimit(kind, {}), kind);
  EXPECT_EQ(WithLimit(kind, {11, 4}).window, 7u);
  EXPECT_EQ(WithLimit(kind, {11, 4}).sinks, 4u);
}

TEST(KvCacheWindowTest, RejectsALimitOfSinksOnly) {
  TestDevice device(64);
  KvCacheOptions options = CacheOptions(kMaxTokens);
  const auto cache = MakeCache(&device, 5, options);
  EXPECT_EQ(cache->Admit(1, KvTokenLimit{4, 4}).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.limit = {3, 4};
  EXPECT_EQ(
      KvCache::Create(device.memory(), TestLayout(5), options).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(KvCacheWindowTest, ASequenceGoesBackAsFarAsItsWindowIsThere) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 0), CacheOptions(kMaxTokens));
  const SequenceId sequence = Admit(cache.get(), 100);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 120).ok());
  // Tokens from 48 on are there; token 87 is the first whose window they hold.
  EXPECT_EQ(cache->Shrink(sequence, 86, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Step(cache.get(), sequence, 87).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*cache->Length(sequence), 120u);
  EXPECT_TRUE(Step(cache.get(), sequence, 88).ok());
  EXPECT_TRUE(cache->Shrink(sequence, 87, Fence()).ok());
  EXPECT_TRUE(Step(cache.get(), sequence, 200).ok());
}

TEST(KvCacheWindowTest, ARegionWithAGapServesTheNextSequenceWhole) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 5), EagerOptions());
  const SequenceId first = Admit(cache.get(), 100);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), first, 200).ok());
  Release(cache.get(), first);
  const SequenceId second = Admit(cache.get(), 150);
  EXPECT_EQ(cache->GetStatistics().adoptions, 1u);
  for (uint32_t layer = 0; layer < 4; ++layer) {
    Mark(*cache, second, layer, 0, 150);
    EXPECT_TRUE(AreMarked(*cache, second, layer, 0, 150));
  }
}

// The layers that see all tokens share pages, the others have copies of what is
// left to them; each goes on by itself.
TEST(KvCacheWindowTest, AForkHasWhatIsLeftAndDropsItsOwn) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 20), EagerOptions());
  const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
  const SequenceId parent = Admit(cache.get(), 200);
  for (uint32_t layer = 0; layer < 4; ++layer)
    Mark(*cache, parent, layer, 0, 200);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), parent, 201).ok());
  EXPECT_EQ(device.live_pages(), 13u + 5u);
  const auto child = cache->Fork(parent, stream);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  ASSERT_TRUE(device.driver()->SynchronizeStream(stream).ok());
  // Of 201 tokens 12 pages are shared, and one is copied; 5 are copied.
  EXPECT_EQ(device.live_pages(), 18u + 6u);
  const auto expect_rows = [&](SequenceId sequence) {
    EXPECT_TRUE(AreMarked(*cache, sequence, 0, 0, 32));
    EXPECT_TRUE(AreMarked(*cache, sequence, 2, 160, 200));
    EXPECT_TRUE(AreMarked(*cache, sequence, 1, 0, 200));
    EXPECT_TRUE(AreMarked(*cache, sequence, 3, 0, 200));
  };
  expect_rows(*child);
  EXPECT_EQ(cache->Kept(*child, 0)->first, 161u);
  EXPECT_EQ(cache->Shrink(*child, 150, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  for (uint32_t layer = 0; layer < 4; ++layer)
    Mark(*cache, *child, layer, 200, 201);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), *child, 260).ok());
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), *child, 261).ok());
  expect_rows(parent);
  EXPECT_TRUE(AreMarked(*cache, *child, 1, 0, 201));
  Release(cache.get(), parent);
  EXPECT_TRUE(AreMarked(*cache, *child, 3, 0, 201));
  Release(cache.get(), *child);
  EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
}

// Every call of `operate` is refused once, each in a cache anew with a sequence
// of 200 tokens, and `check` sees what came of it. Then the cache serves
// others.
template <typename Operate, typename Check>
void RefuseEachCall(bool dropped, Operate operate, Check check) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(n);
      TestDevice device(64);
      const auto cache =
          MakeCache(&device, WindowTestLayout(40, 20), EagerOptions());
      const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
      const SequenceId sequence = Admit(cache.get(), 200);
      for (uint32_t layer = 0; layer < 4; ++layer)
        Mark(*cache, sequence, layer, 0, 200);
      cache->EndBatch(Fence());
      if (dropped) {
        ASSERT_TRUE(Step(cache.get(), sequence, 201).ok());
      }
      device.driver()->FailCall(n, code);
      const absl::Status status = operate(cache.get(), sequence, stream);
      const bool fired = device.driver()->faults_fired() > 0;
      device.driver()->ClearFaults();
      EXPECT_TRUE(device.driver()->SynchronizeStream(stream).ok());
      EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
      EXPECT_TRUE(AreMarked(*cache, sequence, 0, 0, 20));
      EXPECT_TRUE(AreMarked(*cache, sequence, 2, 161, 200));
      EXPECT_TRUE(AreMarked(*cache, sequence, 3, 0, 200));
      check(cache.get(), sequence, status);
      Release(cache.get(), sequence);
      EXPECT_TRUE(cache->Admit(300).ok());
      EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
      if (!fired) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
    }
  }
}

TEST(KvCacheWindowTest, AForkThatIsRefusedLeavesTheParentAsItWas) {
  absl::StatusOr<SequenceId> child;
  RefuseEachCall(
      /*dropped=*/true,
      [&](KvCache* cache, SequenceId parent, StreamId stream) {
        child = cache->Fork(parent, stream);
        return child.status();
      },
      [&](KvCache* cache, SequenceId, const absl::Status& status) {
        EXPECT_EQ(cache->GetStatistics().sequences, status.ok() ? 2u : 1u);
        if (!status.ok()) return;
        EXPECT_TRUE(AreMarked(*cache, *child, 0, 160, 200));
        EXPECT_TRUE(AreMarked(*cache, *child, 1, 0, 200));
        Release(cache, *child);
      });
}

TEST(KvCacheWindowDeathTest, ATokenThatWasDroppedFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(40, 0), EagerOptions());
  const SequenceId sequence = Admit(cache.get(), 100);
  Mark(*cache, sequence, 0, 0, 100);
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), sequence, 101).ok());
  const KvLayerView view = *cache->View(sequence, 0);
  volatile uint64_t* const gone = view.KeyRow(47).host_pointer<uint64_t>();
  EXPECT_DEATH((void)*gone, "");
  EXPECT_DEATH(*gone = 1, "");
  EXPECT_TRUE(AreMarked(*cache, sequence, 0, 48, 100));
}

// A step that drops, maps and gives back.
TEST(KvCacheWindowTest, ARefusalCostsNoTokenThatIsSeen) {
  RefuseEachCall(
      /*dropped=*/false,
      [](KvCache* cache, SequenceId sequence, StreamId) {
        const SequenceStep step{sequence, 250};
        return cache->Step(std::span(&step, 1));
      },
      [](KvCache* cache, SequenceId sequence, const absl::Status& status) {
        EXPECT_EQ(*cache->Length(sequence), status.ok() ? 250u : 200u);
      });
}

}  // namespace
}  // namespace quire
