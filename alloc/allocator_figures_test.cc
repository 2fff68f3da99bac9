// What an allocator tells of itself: statistics, allocations found, what is to
// be had, verdicts and events.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/span.h"
#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/event_trace.h"

namespace quire {
namespace {

class AllocatorFiguresTest : public AllocatorFixture {
 protected:
  // A pool that may use the whole device.
  void UseWholeDevice() {
    allocator_.reset();
    DeviceMemoryOptions options = Options();
    options.limit = DriverOptions().memory_per_device;
    MakeMemory(options);
    MakeAllocator();
  }
  // As many as there is room for, by address.
  std::vector<DeviceAddress> AllocateAll(uint64_t size,
                                         const AllocateOptions& options = {}) {
    std::vector<DeviceAddress> live;
    for (;;) {
      const auto address = allocator_->Allocate(Bytes(size), options);
      if (!address.ok()) break;
      live.push_back(*address);
    }
    std::sort(live.begin(), live.end());
    return live;
  }
};

TEST_F(AllocatorFiguresTest, StatisticsAreThoseOfAPencil) {
  EXPECT_EQ(Statistics().internal_fragmentation(), 0.0);
  EXPECT_EQ(Statistics().external_fragmentation(), 0.0);
  // One slot of 1024 in a page of 64 of them; two pages for one and a half.
  const DeviceAddress small = Allocate(900);
  const DeviceAddress large = Allocate(kPageBytes * 3 / 2);
  AllocatorStatistics now = Statistics();
  EXPECT_EQ(now.requested_bytes, 900 + kPageBytes * 3 / 2);
  EXPECT_EQ(now.live_bytes, 1024 + kPageBytes * 3 / 2);
  EXPECT_EQ(now.cached_bytes, kPageBytes - 1024 + kPageBytes / 2);
  EXPECT_EQ(now.cooling_bytes, 0u);
  EXPECT_EQ(now.slack_bytes, 0u);
  EXPECT_EQ(now.mapped_bytes, 3 * kPageBytes);
  EXPECT_EQ(now.slab_count, 1u);
  EXPECT_EQ(now.live_allocations, 2u);
  const double live = 1024 + 1.5 * kPageBytes;
  EXPECT_DOUBLE_EQ(now.internal_fragmentation(),
                   (live - (900 + kPageBytes * 1.5)) / live);
  EXPECT_DOUBLE_EQ(now.external_fragmentation(),
                   (3.0 * kPageBytes - live) / (3.0 * kPageBytes));
  Free(large);
  now = Statistics();
  EXPECT_EQ(now.cached_bytes, kPageBytes * 3 - 1024);
  EXPECT_EQ(now.requested_bytes, 900u);
  EXPECT_EQ(now.peak_requested_bytes, 900 + kPageBytes * 3 / 2);
  Free(small);
  now = Statistics();
  EXPECT_EQ(now.mapped_bytes, 3 * kPageBytes);
  EXPECT_EQ(now.peak_mapped_bytes, 3 * kPageBytes);
  EXPECT_EQ(now.total_allocations, 2u);
  EXPECT_EQ(now.total_frees, 2u);
}

TEST_F(AllocatorFiguresTest, SlackIsTheEndOfASlab) {
  // 4608-byte slots, 14 of them in a page.
  const DeviceAddress small = Allocate(4300);
  EXPECT_EQ(allocator_->Find(small)->allocated, Bytes(4608));
  EXPECT_EQ(Statistics().slack_bytes, kPageBytes % 4608);
  // Ends 512 bytes behind its second page; the next one begins there.
  const DeviceAddress first = Allocate(2 * kPageBytes + 500);
  EXPECT_EQ(allocator_->Find(first)->allocated, Bytes(2 * kPageBytes + 512));
  const DeviceAddress second = Allocate(3 * kPageBytes - 512);
  EXPECT_EQ(Statistics().slack_bytes, kPageBytes % 4608);
  EXPECT_EQ(Statistics().mapped_bytes, 6 * kPageBytes);
  Free(first);
  Free(second);
  allocator_->Trim();
  EXPECT_EQ(Statistics().slack_bytes, kPageBytes % 4608);
  Free(small);
}

TEST_F(AllocatorFiguresTest, FindKnowsTheAllocationOfEveryByte) {
  AllocateOptions options;
  options.stream = MakeStream();
  options.owner = kOwner;
  for (const uint64_t size : {uint64_t{1000}, 2 * kPageBytes + 5}) {
    const DeviceAddress address = *allocator_->Allocate(Bytes(size), options);
    const uint64_t allocated = allocator_->Find(address)->allocated.value();
    for (const uint64_t offset : {uint64_t{0}, size / 2, allocated - 1}) {
      const auto info =
          allocator_->Find(DeviceAddress(address.value() + offset));
      ASSERT_TRUE(info.has_value());
      EXPECT_EQ(info->address, address);
      EXPECT_EQ(info->requested, Bytes(size));
      EXPECT_EQ(info->stream, options.stream);
      EXPECT_EQ(info->owner, kOwner);
    }
    EXPECT_FALSE(allocator_->Find(DeviceAddress(address.value() + allocated)));
  }
  const auto live = allocator_->CalculateLiveAllocations();
  ASSERT_EQ(live.size(), 2u);
  EXPECT_LT(live[0].address, live[1].address);
}

TEST_F(AllocatorFiguresTest, TheLargestPossibleIsExact) {
  const auto check = [this] {
    const uint64_t largest = allocator_->GetLargestPossible().value();
    ExpectOutOfMemory(largest + 1);
    if (largest > 0) Free(Allocate(largest));
    EXPECT_EQ(allocator_->GetLargestPossible().value(), largest);
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  };
  check();
  std::vector<DeviceAddress> live;
  live.push_back(AllocatePages(kLimitPages - 3));
  check();
  // The rest of the pool as small slots: then only a slot is to be had.
  for (;;) {
    const auto address = allocator_->Allocate(Bytes(3000));
    if (!address.ok()) break;
    live.push_back(*address);
  }
  EXPECT_EQ(live.size(), 1 + 3 * (kPageBytes / 3072));
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(0));
  check();
  Free(live.back());
  live.pop_back();
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(3072));
  check();
  const StreamId stream = MakeStream();
  Free(live.front(), stream);
  EXPECT_EQ(allocator_->GetLargestPossible(),
            Bytes((kLimitPages - 3) * kPageBytes));
  check();
}

TEST_F(AllocatorFiguresTest, VerdictsTellWhatTheMemoryIsHeldAs) {
  UseWholeDevice();
  const std::vector<DeviceAddress> live = AllocateAll(1024);
  ASSERT_EQ(live.size(), kDevicePages * 64);
  const OutOfMemoryVerdict full = ExpectOutOfMemory(kPageBytes);
  EXPECT_EQ(full.kind, ShortageKind::kCapacity);
  EXPECT_EQ(full.held_as_slack, Bytes(0));
  EXPECT_EQ(full.largest_possible, Bytes(0));
  // Three quarters of the slots, in random order, leave few pages or none
  // empty, but much room in them.
  std::vector<DeviceAddress> kept;
  for (size_t i = 0; i < live.size(); ++i) {
    if (i % 4 == 0) {
      kept.push_back(live[i]);
    } else {
      Free(live[i]);
    }
  }
  const OutOfMemoryVerdict split = ExpectOutOfMemory(kPageBytes);
  EXPECT_EQ(split.kind, ShortageKind::kFragmentation);
  // None of that can be trimmed, and slots so small are not meshed.
  EXPECT_EQ(split.held_as_slack, Bytes(0));
  EXPECT_EQ(split.mesh_frees, Bytes(0));
  EXPECT_THAT(split.advice, ::testing::HasSubstr("2.25 MiB lie free between"));
  EXPECT_EQ(split.largest_possible, Bytes(1024));
  for (const DeviceAddress address : kept) Free(address);
}

// A small request that is refused needs a page; that bytes lie unused between
// live allocations does not make one.
TEST_F(AllocatorFiguresTest,
       VerdictsOnSmallRequestsNameSleepBeforeFragmentation) {
  UseWholeDevice();
  AllocateOptions options;
  options.owner = owners_.Register("sleeper");
  std::vector<DeviceAddress> live = AllocateAll(768, options);
  // Slots too small for the next request, some pages in sum.
  for (size_t i = 0; i < live.size(); i += 16) {
    Free(live[i]);
    live[i] = DeviceAddress();
  }
  std::erase(live, DeviceAddress());
  const uint64_t unused = Statistics().cached_bytes + Statistics().slack_bytes;
  ASSERT_GT(unused, 2 * kPageBytes);

  // Whoever asks for others is told that these could sleep.
  const OutOfMemoryVerdict small = ExpectOutOfMemory(1024);
  EXPECT_EQ(small.kind, ShortageKind::kCapacity);
  EXPECT_EQ(small.sleep_frees, Bytes(kDevicePages * kPageBytes));
  EXPECT_THAT(small.advice, ::testing::HasSubstr("sleep"));
  // A large request is held up by bytes that would serve it side by side.
  const OutOfMemoryVerdict large = ExpectOutOfMemory(2 * kPageBytes);
  EXPECT_EQ(large.kind, ShortageKind::kFragmentation);
  EXPECT_THAT(large.advice, ::testing::HasSubstr("lie free between"));
  EXPECT_THAT(large.advice, ::testing::HasSubstr("sleep"));
  // More than all of them is a lack of pages, whatever its size.
  EXPECT_EQ(ExpectOutOfMemory(unused + kPageBytes).kind,
            ShortageKind::kCapacity);
  // Who has all of it cannot put others to sleep.
  const OutOfMemoryVerdict own = ExpectOutOfMemory(1024, options);
  EXPECT_EQ(own.kind, ShortageKind::kFragmentation);
  EXPECT_EQ(own.sleep_frees, Bytes(0));
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(AllocatorFiguresTest, VerdictsOnSmallRequestsAreCapacityWhereAllIsLive) {
  UseWholeDevice();
  std::vector<DeviceAddress> live = AllocateAll(1024);
  // Less than a page is unused.
  for (int i = 0; i < 3; ++i) {
    Free(live.back());
    live.pop_back();
  }
  const OutOfMemoryVerdict verdict = ExpectOutOfMemory(1025);
  EXPECT_EQ(verdict.kind, ShortageKind::kCapacity);
  EXPECT_EQ(verdict.advice.find("lie free"), std::string::npos);
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(AllocatorFiguresTest, RecordsOfTheSmallestSlotsAreLessThanOnePercent) {
  constexpr uint64_t kSlot = 256;
  const uint64_t before = Statistics().metadata_bytes;
  std::vector<DeviceAddress> live;
  for (uint64_t i = 0; i < kLimitPages * kPageBytes / kSlot; ++i) {
    live.push_back(Allocate(kSlot));
  }
  const AllocatorStatistics full = Statistics();
  EXPECT_EQ(full.live_bytes, full.mapped_bytes);
  // Beside a span for each of these small pages.
  EXPECT_LE(full.metadata_bytes - before - kLimitPages * sizeof(Span),
            full.live_bytes / 100);
  for (const DeviceAddress address : live) Free(address);
}

// Eight bytes in the list of the stream, or sixteen where a thread has room for
// it in its cache.
TEST_F(AllocatorFiguresTest, WhatWasFreedIsCountedAsMetadata) {
  constexpr uint64_t kSlot = 256;
  constexpr uint64_t kSlots = kLimitPages * kPageBytes / kSlot;
  DeviceAllocatorOptions options;
  options.thread_cache = Bytes(0);
  MakeAllocator(options);
  const StreamId stream = MakeStream();
  std::vector<DeviceAddress> live;
  for (uint64_t i = 0; i < kSlots; ++i) live.push_back(Allocate(kSlot, stream));
  const uint64_t full = Statistics().metadata_bytes;
  for (const DeviceAddress address : live) Free(address, stream);
  EXPECT_EQ(Statistics().metadata_bytes, full + 8 * kSlots);
  EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  allocator_->Trim();
  EXPECT_LE(Statistics().metadata_bytes, full);

  options.thread_cache = Bytes(kLimitPages * kPageBytes);
  MakeAllocator(options);
  const uint64_t before = Statistics().metadata_bytes;
  Free(Allocate(kSlot, stream), stream);
  // For 64 slots, and a span of 256 records of two bytes.
  EXPECT_GE(Statistics().metadata_bytes, before + 64 * 16 + 256 * 2);
}

TEST_F(AllocatorFiguresTest, TracesWhatItDoes) {
  EventTrace trace(16);
  DeviceAllocatorOptions options;
  options.trace = &trace;
  MakeAllocator(options);
  AllocateOptions allocate;
  allocate.owner = kOwner;
  const DeviceAddress address = *allocator_->Allocate(Bytes(100), allocate);
  Free(address);
  ExpectOutOfMemory(UINT64_MAX, allocate);
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].action, TraceAction::kAllocate);
  EXPECT_EQ(events[1].action, TraceAction::kFree);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(events[i].address, address);
    EXPECT_EQ(events[i].size, Bytes(100));
    EXPECT_EQ(events[i].in_use, kPage);
  }
  EXPECT_EQ(events[2].action, TraceAction::kOutOfMemory);
  EXPECT_EQ(events[2].size, Bytes(UINT64_MAX));
  for (const TraceEvent& event : events) EXPECT_EQ(event.owner, kOwner);
  allocator_.reset();
}

TEST_F(AllocatorFiguresTest, WhatIsStillAllocatedAtTheEndGoesBackToThePool) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  Gate gate(driver_.get(), b);
  Allocate(100, a);
  const DeviceAddress large = AllocatePages(3, a);
  EXPECT_EQ(allocator_->RecordStream(large, b), absl::OkStatus());
  Free(AllocatePages(2, b), b);
  allocator_.reset();
  // b may be writing still.
  EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
  EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(6 * kPageBytes));
  gate.Open();
  AddressRange* const all = Reserve(kLimitPages);
  EXPECT_EQ(Commit(all, 0, kLimitPages), absl::OkStatus());
  memory_->ReleaseRange(all, Fence());
}

TEST_F(AllocatorFiguresTest, TheLargestPossibleMindsTheLimitsOfTheOwner) {
  OwnerLimits limits;
  limits.hard = Bytes(4 * kPageBytes);
  ASSERT_EQ(memory_->SetOwnerLimits(kOwner, limits), absl::OkStatus());
  EXPECT_EQ(allocator_->GetLargestPossible(kOwner), limits.hard);
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(kLimitPages * kPageBytes));
  AllocateOptions options;
  options.owner = kOwner;
  const auto one = allocator_->Allocate(Bytes(3 * kPageBytes), options);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(allocator_->GetLargestPossible(kOwner), Bytes(kPageBytes));
  Free(*one);
  EXPECT_EQ(allocator_->GetLargestPossible(kOwner), limits.hard);
}

TEST_F(AllocatorFiguresTest, TheLargestPossibleMindsALimitThatWasLowered) {
  const DeviceAddress held = AllocatePages(10);
  const DeviceAddress cached = AllocatePages(8);
  Free(cached);
  ASSERT_EQ(memory_->SetLimit(Bytes(12 * kPageBytes)), absl::OkStatus());
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(2 * kPageBytes));
  ExpectOutOfMemory(3 * kPageBytes);
  Free(AllocatePages(2));
  ASSERT_EQ(memory_->SetLimit(Bytes(9 * kPageBytes)), absl::OkStatus());
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(0));
  Free(held);
}

}  // namespace
}  // namespace quire
