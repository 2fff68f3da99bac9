// What threads keep for themselves, and how others get at it.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"

namespace quire {
namespace {

class AllocatorCacheTest : public AllocatorFixture {
 protected:
  AllocatorCacheTest() { MakeAllocator(); }
};

TEST_F(AllocatorCacheTest, WhatAThreadFreedIsCountedAsCached) {
  const DeviceAddress address = Allocate(1000);
  Free(address);
  const AllocatorStatistics now = Statistics();
  EXPECT_GE(now.thread_cached_bytes, 1024u);
  EXPECT_EQ(now.cached_bytes, kPageBytes);
  EXPECT_EQ(now.live_bytes, 0u);
  EXPECT_EQ(now.total_frees, 1u);
  EXPECT_EQ(allocator_->Trim().pages_freed, PageCount(1));
  EXPECT_EQ(Statistics().thread_cached_bytes, 0u);
}

TEST_F(AllocatorCacheTest, OthersHaveItWhenMemoryIsShort) {
  // All pages as small slots, freed by another thread that goes on.
  std::vector<DeviceAddress> all;
  std::atomic<int> phase = 0;
  std::thread other([&] {
    for (;;) {
      const auto address = allocator_->Allocate(Bytes(1024));
      if (!address.ok()) break;
      all.push_back(*address);
    }
    for (const DeviceAddress address : all) Free(address);
    phase = 1;
    phase.notify_all();
    phase.wait(1);
    // Its cache is empty now, and works.
    Free(Allocate(1024));
  });
  phase.wait(0);
  EXPECT_EQ(all.size(), kLimitPages * (kPageBytes / 1024));
  const DeviceAddress large = AllocatePages(kLimitPages);
  Free(large);
  phase = 2;
  phase.notify_all();
  other.join();
  EXPECT_EQ(Statistics().live_bytes, 0u);
}

TEST_F(AllocatorCacheTest,
       MemoryFreedOnAStreamStaysThereWhenOthersTakeTheRest) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  std::set<DeviceAddress> freed;
  Gate gate(driver_.get(), a);
  std::vector<DeviceAddress> live;
  for (int i = 0; i < 8; ++i) live.push_back(Allocate(1024, a));
  for (const DeviceAddress address : live) {
    Free(address, a);
    freed.insert(address);
  }
  // What a thread cached for stream a and never used is free for b, what was
  // used on it is not.
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(freed.contains(Allocate(1024, b)));
  }
}

TEST_F(AllocatorCacheTest, AThreadThatEndsLeavesNothingBehind) {
  const StreamId stream = MakeStream();
  DeviceAddress kept;
  std::thread([&] {
    std::vector<DeviceAddress> live;
    for (int i = 0; i < 100; ++i) live.push_back(Allocate(700, stream));
    kept = live.back();
    live.pop_back();
    for (const DeviceAddress address : live) Free(address, stream);
  }).join();
  const AllocatorStatistics now = Statistics();
  EXPECT_EQ(now.thread_cached_bytes, 0u);
  EXPECT_EQ(now.live_allocations, 1u);
  EXPECT_EQ(now.requested_bytes, 700u);
  EXPECT_EQ(now.total_allocations, 100u);
  EXPECT_EQ(now.total_frees, 99u);
  EXPECT_EQ(now.peak_requested_bytes, 70000u);
  Free(kept, stream);
}

TEST_F(AllocatorCacheTest, AnAllocatorMayEndBeforeItsThreads) {
  std::atomic<int> phase = 0;
  std::thread other([&] {
    Free(Allocate(100));
    phase = 1;
    phase.notify_all();
    phase.wait(1);
    // Another allocator, perhaps at the same place.
    Free(Allocate(100));
  });
  phase.wait(0);
  MakeAllocator();
  phase = 2;
  phase.notify_all();
  other.join();
  EXPECT_EQ(Statistics().total_allocations, 1u);
}

TEST_F(AllocatorCacheTest, StreamsThatComeAndGoLeaveNoCaches) {
  for (int i = 0; i < 1000; ++i) {
    const StreamId stream = *driver_->CreateStream(DeviceId(0));
    const DeviceAddress address = Allocate(512, stream);
    Free(address, stream);
    EXPECT_EQ(driver_->DestroyStream(stream), absl::OkStatus());
    // A thread has a few caches, each of a few slots.
    ASSERT_LE(Statistics().mapped_bytes, 8 * kPageBytes) << i;
  }
  // More streams than a slot's record can tell apart, but not at a time.
  const StreamId stream = MakeStream();
  const DeviceAddress last = Allocate(512, stream);
  EXPECT_EQ(allocator_->Find(last)->stream, stream);
}

TEST_F(AllocatorCacheTest, ALimitOfNothingKeepsNothing) {
  DeviceAllocatorOptions options;
  options.thread_cache = Bytes(0);
  MakeAllocator(options);
  for (int i = 0; i < 3; ++i) {
    const DeviceAddress address = Allocate(100);
    Free(address);
    EXPECT_EQ(allocator_->Free(address).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Statistics().thread_cached_bytes, 0u);
  }
}

// What the cache would not serve must not fill it.
TEST_F(AllocatorCacheTest, RequestsOutOfTheOrdinaryBringNothing) {
  Free(Allocate(4096));
  allocator_->Trim();
  AllocateOptions movable;
  movable.movable = true;
  AllocateOptions aligned;
  aligned.alignment = Bytes(4096);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(allocator_->Allocate(Bytes(4096), movable).ok());
    ASSERT_TRUE(allocator_->Allocate(Bytes(4096), aligned).ok());
  }
  EXPECT_EQ(Statistics().thread_cached_bytes, 0u);
  // 16 slots to a page; each kind begins one that the other fills.
  EXPECT_LE(Statistics().mapped_bytes, 14 * kPageBytes);
}

TEST_F(AllocatorCacheTest, OwnersShareNoPage) {
  std::set<uint64_t> pages;
  for (uint32_t owner = 0; owner < 4; ++owner) {
    AllocateOptions options;
    options.owner = OwnerId(owner);
    const auto small = allocator_->Allocate(Bytes(300), options);
    const auto large = allocator_->Allocate(Bytes(kPageBytes + 600), options);
    ASSERT_TRUE(small.ok() && large.ok());
  }
  for (const auto& page : memory_->CalculatePageMap()) {
    EXPECT_TRUE(pages.insert(page.page.value()).second);
  }
  EXPECT_EQ(pages.size(), 4 * 3u);
  for (uint32_t owner = 0; owner < 4; ++owner) {
    EXPECT_EQ(memory_->GetLiveByOwner()[owner], Bytes(3 * kPageBytes));
  }
}

TEST_F(AllocatorCacheTest, ThreadsDrainEachOtherAllTheTime) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> allocations = 0;
  for (int t = 0; t < 3; ++t) {
    const StreamId stream = MakeStream();
    threads.emplace_back([&, stream] {
      std::vector<DeviceAddress> live;
      for (int i = 0; i < 4000; ++i) {
        if (live.size() < 20) {
          AllocateOptions options;
          options.stream = stream;
          const auto address =
              allocator_->Allocate(Bytes(256 + i % 1000), options);
          ASSERT_TRUE(address.ok()) << address.status();
          live.push_back(*address);
          ++allocations;
        } else {
          const size_t victim = static_cast<size_t>(i) % live.size();
          ASSERT_EQ(allocator_->Free(live[victim], stream), absl::OkStatus());
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      }
      for (const DeviceAddress address : live) {
        ASSERT_EQ(allocator_->Free(address, stream), absl::OkStatus());
      }
    });
  }
  std::thread drains([&] {
    while (!done) {
      allocator_->Trim();
      EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  drains.join();
  EXPECT_EQ(Statistics().total_allocations, allocations.load());
  EXPECT_EQ(Statistics().live_bytes, 0u);
  EXPECT_EQ(Statistics().requested_bytes, 0u);
}

}  // namespace
}  // namespace quire
