// Memory that is short: what parked regions give, what limits of owners leave,
// what hooks may do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/verdict.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

TEST(KvCachePressureTest, ParkedPagesServeOthersTheOldestFirst) {
  TestDevice device(40);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId first = Admit(cache.get(), 96);   // 15 pages
  const SequenceId second = Admit(cache.get(), 96);  // 15 pages
  const DeviceAddress second_base = Base(*cache, second);
  Release(cache.get(), first);
  Release(cache.get(), second);
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(20), kUnnamedOwner);
  // 10 are free: 10 more come from the region parked first.
  ASSERT_TRUE(device.memory()->Commit(other, PageCount(0), PageCount(20)).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(cache->GetStatistics().parked, Bytes(20 * 4096));
  const uint64_t calls = device.mapping_calls();
  EXPECT_EQ(Base(*cache, Admit(cache.get(), 96)), second_base);
  EXPECT_EQ(device.mapping_calls(), calls);
  device.memory()->ReleaseRange(other, Fence());
}

TEST(KvCachePressureTest, PagesOfAParkedRegionCoolUnderItsFence) {
  TestDevice device(20);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  BlockedStream stream(device.driver());
  Release(cache.get(), Admit(cache.get(), 128), stream.Record());
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(1), kUnnamedOwner);
  // All 20 pages are parked: the commit has to wait for the stream.
  std::atomic<bool> committed = false;
  std::thread committer([&] {
    EXPECT_TRUE(
        device.memory()->Commit(other, PageCount(0), PageCount(1)).ok());
    committed = true;
  });
  while (device.cooling_pages() == 0) std::this_thread::yield();
  EXPECT_FALSE(committed);
  stream.Unblock();
  committer.join();
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  device.memory()->ReleaseRange(other, Fence());
}

// kvcached#359: short sequences that sit on long regions must not pin memory.
TEST(KvCachePressureTest, Kvcached359WhatAnAdoptedRegionHasToSpareIsReclaimed) {
  TestDevice device(50);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  Release(cache.get(), Admit(cache.get(), 320));
  const SequenceId shorter = Admit(cache.get(), 40);
  EXPECT_EQ(cache->GetStatistics().committed, Bytes(50 * 4096));
  EXPECT_EQ(cache->GetStatistics().reclaimable, Bytes(40 * 4096));
  // 280 tokens need 45 pages, 40 can be had; 250 need 40.
  EXPECT_EQ(cache->AdmissibleTokens(), 256u);
  Admit(cache.get(), 256);
  EXPECT_EQ(cache->GetStatistics().reclaimable, Bytes(0));
  EXPECT_EQ(*cache->Length(shorter), 40u);
  EXPECT_EQ(Step(cache.get(), shorter, 64).code(), absl::StatusCode::kOk);
  EXPECT_EQ(Step(cache.get(), shorter, 65).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(KvCachePressureTest,
     AnOwnersLimitBoundsItsCachesAndTheirParkedPagesMakeRoom) {
  TestDevice device(100);
  OwnerRegistry* const owners = device.memory()->owners();
  KvCacheOptions options = CacheOptions(320);
  options.owner = owners->Register("model/kv");
  const auto cache = MakeCache(&device, 1, options);
  options.owner = owners->Register("model/drafts");
  const auto drafts = MakeCache(&device, 1, options);
  const auto other = MakeCache(&device, 1, CacheOptions(320));
  const OwnerId model = owners->Register("model");
  ASSERT_TRUE(
      device.memory()->SetOwnerLimits(model, {.hard = Bytes(20 * 4096)}).ok());
  EXPECT_EQ(cache->AdmissibleTokens(), 128u);  // 20 of 100 pages
  const auto refused = cache->Admit(129);
  const auto verdict = OutOfMemoryVerdict::FromStatus(refused.status());
  ASSERT_TRUE(verdict.has_value()) << refused.status();
  EXPECT_EQ(verdict->kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict->owner_limit,
            (OwnerShortage{"model", Bytes(20 * 4096), Bytes(0)}));
  Release(other.get(), Admit(other.get(), 96));
  Release(drafts.get(), Admit(drafts.get(), 96));  // 15 pages stay mapped
  const SequenceId sequence = Admit(cache.get(), 96);
  EXPECT_EQ(drafts->GetStatistics().parked, Bytes(5 * 4096));
  EXPECT_EQ(other->GetStatistics().parked, Bytes(15 * 4096));
  EXPECT_EQ(Step(cache.get(), sequence, 128), absl::OkStatus());
  EXPECT_EQ(Step(cache.get(), sequence, 129).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(other->GetStatistics().parked, Bytes(15 * 4096));
}

// Hooks that call the cache back: under its locks they would never return.
class Evictor : public MemoryHooks {
 public:
  explicit Evictor(KvCache* cache) : cache_(cache) {}

  void OnPagesMapped(const MappingChange&) override {
    EXPECT_GT(cache_->GetStatistics().sequences, 0u);
  }
  Bytes OnOutOfMemory(const OutOfMemoryVerdict&) override {
    if (victims_.empty()) return Bytes(0);
    Release(cache_, victims_.back());
    victims_.pop_back();
    return Bytes(1);
  }

  std::vector<SequenceId> victims_;

 private:
  KvCache* const cache_;
};

TEST(KvCachePressureTest, AStepAsksHooksThatMayReleaseSequences) {
  TestDevice device(30);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  Evictor evictor(cache.get());
  device.memory()->AddHooks(&evictor);
  const SequenceId kept = Admit(cache.get(), 64);  // 10 pages
  evictor.victims_ = {Admit(cache.get(), 64), Admit(cache.get(), 64)};
  // An admission can wait and evicts nobody.
  EXPECT_FALSE(cache->Admit(64).ok());
  EXPECT_EQ(Step(cache.get(), kept, 160), absl::OkStatus());  // 25 pages
  EXPECT_EQ(cache->GetStatistics().sequences, 1u);
  EXPECT_EQ(Step(cache.get(), kept, 320).code(),
            absl::StatusCode::kResourceExhausted);
  device.memory()->RemoveHooks(&evictor);
}

TEST(KvCachePressureTest, TwoCachesOfOneMemoryServeEachOther) {
  TestDevice device(50);
  const auto a = MakeCache(&device, 1, CacheOptions(320));
  const auto b = MakeCache(&device, 5, CacheOptions(320));
  Release(a.get(), Admit(a.get(), 320));
  EXPECT_EQ(b->AdmissibleTokens(), 320u);
  Release(b.get(), Admit(b.get(), 320));
  EXPECT_EQ(a->GetStatistics().parked, Bytes(0));
  Release(a.get(), Admit(a.get(), 320));
  EXPECT_EQ(b->GetStatistics().parked, Bytes(0));
  EXPECT_TRUE(b->CheckInvariants().ok()) << b->CheckInvariants();
}

TEST(KvCachePressureTest, ParkedRegionsGiveTheirAddressesToOtherCaches) {
  // Addresses for one region.
  TestDevice device(100, KiB(4), Bytes(50 * 4096));
  const auto a = MakeCache(&device, 1, CacheOptions(320));
  const auto b = MakeCache(&device, 1, CacheOptions(320));
  Release(a.get(), Admit(a.get(), 100));
  auto sequence = b->Admit(100);
  if (!sequence.ok()) {
    EXPECT_THAT(sequence.status().message(), HasSubstr("address"));
    sequence = b->Admit(100);  // a shortage of addresses may take a second try
  }
  EXPECT_TRUE(sequence.ok()) << sequence.status();
}

}  // namespace
}  // namespace quire
