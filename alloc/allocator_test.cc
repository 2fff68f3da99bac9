#include "quire/alloc/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "alloc/span.h"
#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/event_trace.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

class AllocatorTest : public AllocatorFixture {
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

// ---- Sizes and alignments ---------------------------------------------------

TEST_F(AllocatorTest, ZeroBytesHaveAnAddressOfTheirOwn) {
  std::set<DeviceAddress> addresses;
  for (int i = 0; i < 300; ++i) addresses.insert(Allocate(0));
  EXPECT_EQ(addresses.size(), 300u);
  EXPECT_EQ(Statistics().live_allocations, 300u);
  EXPECT_EQ(Statistics().requested_bytes, 0u);
  const auto info = allocator_->Find(*addresses.begin());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->requested, Bytes(0));
  for (const DeviceAddress address : addresses) Free(address);
  EXPECT_EQ(Statistics().live_allocations, 0u);
}

TEST_F(AllocatorTest, SizesThatCannotExistAreRefused) {
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < 1024; ++i) sizes.push_back(UINT64_MAX - i);
  for (const uint64_t around :
       {UINT64_MAX / 2, uint64_t{1} << 63, uint64_t{1} << 57, uint64_t{1} << 48,
        uint64_t{1} << 47, uint64_t{1} << 40, uint64_t{1} << 32}) {
    for (uint64_t i = 0; i <= 2; ++i) sizes.push_back(around - 1 + i);
  }
  for (const uint64_t size : sizes) {
    const OutOfMemoryVerdict verdict = ExpectOutOfMemory(size);
    EXPECT_EQ(verdict.kind, ShortageKind::kCapacity) << size;
    EXPECT_EQ(verdict.largest_possible, Options().limit) << size;
  }
  EXPECT_EQ(Statistics().failed_allocations, sizes.size());
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

TEST_F(AllocatorTest, TheLimitIsToBeHadAndOneByteMoreIsNot) {
  const uint64_t limit = Options().limit.value();
  const OutOfMemoryVerdict verdict = ExpectOutOfMemory(limit + 1);
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.limit, Options().limit);
  const DeviceAddress all = Allocate(limit);
  EXPECT_EQ(Statistics().live_bytes, limit);
  ExpectOutOfMemory(1);
  // Who holds memory is said also where nothing that is given up would help.
  const OutOfMemoryVerdict full = ExpectOutOfMemory(limit + 1);
  EXPECT_EQ(full.kind, ShortageKind::kLimit);
  ASSERT_EQ(full.owners.size(), 1u);
  EXPECT_EQ(full.owners[0].second, Options().limit);
  Free(all);
  Free(Allocate(1));
}

TEST_F(AllocatorTest, EveryAlignmentHolds) {
  for (uint64_t alignment = 1; alignment <= 8 * kPageBytes; alignment *= 2) {
    AllocateOptions options;
    options.alignment = Bytes(alignment);
    std::vector<DeviceAddress> addresses;
    for (const uint64_t size :
         {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{256}, uint64_t{257},
          alignment - 1, alignment, alignment + 1}) {
      const auto address = allocator_->Allocate(Bytes(size), options);
      ASSERT_TRUE(address.ok())
          << size << " at " << alignment << ": " << address.status();
      EXPECT_EQ(address->value() % std::max<uint64_t>(alignment, 256), 0u)
          << size << " at " << alignment;
      EXPECT_GE(allocator_->Find(*address)->allocated, Bytes(size));
      addresses.push_back(*address);
      if (addresses.size() > 2) {
        Free(addresses.front());
        addresses.erase(addresses.begin());
      }
    }
    for (const DeviceAddress address : addresses) Free(address);
  }
}

TEST_F(AllocatorTest, CachedRangesServeTheAlignmentsThatTheyHave) {
  AllocateOptions aligned;
  aligned.alignment = Bytes(8 * kPageBytes);
  std::vector<DeviceAddress> cached;
  for (int i = 0; i < 4; ++i) cached.push_back(AllocatePages(4));
  for (const DeviceAddress address : cached) Free(address);
  for (int i = 0; i < 3; ++i) {
    const auto address = allocator_->Allocate(Bytes(4 * kPageBytes), aligned);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->value() % (8 * kPageBytes), 0u);
  }
}

TEST_F(AllocatorTest, AlignmentsThatAreNoPowersOfTwoAreRefused) {
  for (const uint64_t alignment :
       {uint64_t{0}, uint64_t{3}, uint64_t{24}, uint64_t{255}, uint64_t{257},
        uint64_t{384}, kPageBytes + 1, kPageBytes * 3, UINT64_MAX,
        UINT64_MAX - 1}) {
    AllocateOptions options;
    options.alignment = Bytes(alignment);
    for (const uint64_t size : {uint64_t{1}, kPageBytes, UINT64_MAX}) {
      EXPECT_EQ(allocator_->Allocate(Bytes(size), options).status().code(),
                absl::StatusCode::kInvalidArgument)
          << alignment;
    }
  }
}

TEST_F(AllocatorTest, HugeAlignmentsAreNoLackOfMemory) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, kPageBytes}) {
    AllocateOptions options;
    options.alignment = Bytes(uint64_t{1} << 63);
    EXPECT_EQ(ExpectOutOfMemory(size, options).kind,
              ShortageKind::kAddressSpace);
  }
  AllocateOptions options;
  options.alignment = Bytes(uint64_t{1} << 63);
  ExpectOutOfMemory(UINT64_MAX, options);
}

TEST_F(AllocatorTest, OwnersBeyondTheRegistryAreRefused) {
  AllocateOptions options;
  options.owner = OwnerId(UINT32_MAX);
  for (const uint64_t size : {uint64_t{1}, kPageBytes}) {
    EXPECT_EQ(allocator_->Allocate(Bytes(size), options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(AllocatorTest, StreamsThatNeverWereAreRefused) {
  const DeviceAddress address = Allocate(100);
  EXPECT_EQ(allocator_->Free(address, StreamId(987654)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(allocator_->RecordStream(address, StreamId(987654)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(allocator_->RecordStream(address, StreamId()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Statistics().live_allocations, 1u);
  Free(address);
}

// ---- Pages ------------------------------------------------------------------

TEST_F(AllocatorTest, LargeAllocationsTakeAnyFreePages) {
  std::vector<DeviceAddress> pages;
  for (uint64_t i = 0; i < kLimitPages; ++i) pages.push_back(AllocatePages(1));
  for (uint64_t i = 0; i < kLimitPages; i += 2) Free(pages[i]);
  // Every second page is free, nowhere two side by side.
  const DeviceAddress large = AllocatePages(kLimitPages / 2);
  Free(large);
  for (uint64_t i = 1; i < kLimitPages; i += 2) Free(pages[i]);
}

// pytorch#188110: what was cached was not trimmed before the error.
TEST_F(AllocatorTest, PyTorch188110CachedMemoryServesTheRestOfThePool) {
  std::vector<DeviceAddress> freed;
  for (int i = 0; i < 4; ++i) freed.push_back(AllocatePages(4));
  for (int i = 0; i < 300; ++i) freed.push_back(Allocate(600));
  for (const DeviceAddress address : freed) Free(address);
  AddressRange* const range = Reserve(kLimitPages);
  EXPECT_EQ(Commit(range, 0, kLimitPages), absl::OkStatus());
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(AllocatorTest, CoolingMemoryServesTheRestOfThePool) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  Gate gate_a(driver_.get(), a);
  Gate gate_b(driver_.get(), b);
  std::vector<DeviceAddress> freed;
  for (int i = 0; i < 300; ++i) freed.push_back(Allocate(600, a));
  for (size_t i = 0; i < freed.size(); ++i) {
    // A slab with slots of one stream, of both, and of both at once.
    if (i % 5 == 4) {
      EXPECT_EQ(allocator_->RecordStream(freed[i], b), absl::OkStatus());
    }
    Free(freed[i], i < 100 || i % 3 == 0 ? a : b);
  }
  Free(AllocatePages(4, a), a);
  const DeviceAddress shared = AllocatePages(4, a);
  EXPECT_EQ(allocator_->RecordStream(shared, b), absl::OkStatus());
  Free(shared, a);
  gate_a.OpenAfter(milliseconds(10));
  gate_b.OpenAfter(milliseconds(20));
  AddressRange* const range = Reserve(kLimitPages);
  EXPECT_EQ(Commit(range, 0, kLimitPages), absl::OkStatus());
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(AllocatorTest, TakesASinglePageWhereASlabIsNotToBeHad) {
  // Slots of 26 KiB leave less than an eighth over only in slabs of more pages.
  const uint64_t size = 26 * 1024;
  const DeviceAddress most = AllocatePages(kLimitPages - 1);
  const DeviceAddress address = Allocate(size);
  EXPECT_EQ(allocator_->Find(address)->allocated, Bytes(size));
  EXPECT_EQ(Statistics().mapped_bytes, kLimitPages * kPageBytes);
  Free(address);
  Free(most);
}

TEST_F(AllocatorTest, TrimGivesWholePagesBackDownToWhatIsToBeKept) {
  std::vector<DeviceAddress> freed;
  for (const uint64_t pages : {1, 2, 4, 8}) {
    freed.push_back(AllocatePages(pages));
  }
  const DeviceAddress small = Allocate(300);
  for (const DeviceAddress address : freed) Free(address);
  const uint64_t slab_rest = Statistics().cached_bytes - 15 * kPageBytes;
  EXPECT_EQ(allocator_->Trim(Bytes(15 * kPageBytes + slab_rest)).pages_freed,
            PageCount(0));
  const PageCount given =
      allocator_->Trim(Bytes(6 * kPageBytes + slab_rest)).pages_freed;
  EXPECT_GE(given, PageCount(9));
  EXPECT_LE(Statistics().cached_bytes, 6 * kPageBytes + slab_rest);
  EXPECT_EQ(memory_->GetStatistics().cached, Bytes(given.value() * kPageBytes));
  EXPECT_EQ(given.value() + allocator_->Trim().pages_freed.value(), 15u);
  // The rest of a slab that is in use stays.
  EXPECT_EQ(Statistics().cached_bytes, slab_rest);
  Free(small);
  EXPECT_EQ(allocator_->Trim().pages_freed, PageCount(1));
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(16));
}

// Pages are there, but the end of what is parked would be in the way.
TEST_F(AllocatorTest, WhatWasFreedServesShorterRequestsWhereItLies) {
  Free(Allocate(2 * kPageBytes + kPageBytes / 2));
  const uint64_t calls = DriverCalls();
  Allocate(kPageBytes + kPageBytes / 4);
  Allocate(kPageBytes + kPageBytes / 4);
  EXPECT_EQ(DriverCalls(), calls);
  EXPECT_EQ(Statistics().mapped_bytes, 3 * kPageBytes);
}

// What lies apart is mapped side by side once, and found again.
TEST_F(AllocatorTest, BytesThatLieApartServeARequestTogether) {
  std::vector<DeviceAddress> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(AllocatePages(1));
  for (int i = 0; i < 8; i += 2) Free(pages[i]);
  const DeviceAddress four = AllocatePages(4);
  EXPECT_EQ(Statistics().mapped_bytes, 8 * kPageBytes);
  Free(four);
  // They are as good as before for what is shorter.
  for (int i = 0; i < 8; i += 2) pages[i] = AllocatePages(1);
  for (int i = 0; i < 8; i += 2) Free(pages[i]);
  const uint64_t calls = DriverCalls();
  EXPECT_EQ(AllocatePages(4), four);
  EXPECT_EQ(DriverCalls(), calls);
}

// Few blocks of many classes: each class finds its slab where it left it,
// rather than take the pages of the one before.
TEST_F(AllocatorTest, ClassesThatTakeTurnsMakeNoDriverCall) {
  constexpr uint64_t kSizes = 12;
  const auto take_turns = [&] {
    for (uint64_t round = 0; round < 20; ++round) {
      for (uint64_t i = 1; i <= kSizes; ++i) {
        Free(Allocate(i * kPageBytes / 32));
        // Else the cache of the thread hides that a slab is empty.
        (void)allocator_->GetLargestPossible();
      }
    }
  };
  take_turns();
  const uint64_t calls = DriverCalls();
  take_turns();
  EXPECT_EQ(DriverCalls(), calls);
  // Nothing is kept from who needs it.
  Free(AllocatePages(kLimitPages));
}

TEST_F(AllocatorTest, TheSteadyStateMakesNoDriverCall) {
  const StreamId stream = MakeStream();
  const std::vector<uint64_t> sizes = {0, 100, 5000, 30000, 65536, 200000};
  const auto round = [&](StreamId on) {
    std::vector<DeviceAddress> live;
    for (const uint64_t size : sizes) live.push_back(Allocate(size, on));
    for (const DeviceAddress address : live) Free(address, on);
  };
  for (const StreamId on : {StreamId(), stream}) {
    round(on);
    const uint64_t calls = DriverCalls();
    const uint64_t events = Calls("CreateEvent") + Calls("RecordEvent") +
                            Calls("DestroyEvent") + Calls("QueryEvent");
    for (int i = 0; i < 100; ++i) round(on);
    const uint64_t new_events = Calls("CreateEvent") + Calls("RecordEvent") +
                                Calls("DestroyEvent") + Calls("QueryEvent") -
                                events;
    EXPECT_EQ(DriverCalls() - calls, new_events);
    if (on == StreamId()) {
      EXPECT_EQ(new_events, 0u);
    }
  }
}

TEST_F(AllocatorTest, ReusedRangesAreAccountedToTheirNewOwner) {
  const OwnerId kv = owners_.Register("kv");
  AllocateOptions options;
  options.owner = kOwner;
  Free(*allocator_->Allocate(Bytes(5 * kPageBytes), options));
  options.owner = kv;
  const DeviceAddress address =
      *allocator_->Allocate(Bytes(5 * kPageBytes), options);
  EXPECT_EQ(memory_->GetLiveByOwner()[kv.value()], Bytes(5 * kPageBytes));
  EXPECT_EQ(memory_->GetLiveByOwner()[kOwner.value()], Bytes(0));
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  Free(address);
}

// ---- Figures ----------------------------------------------------------------

TEST_F(AllocatorTest, StatisticsAreThoseOfAPencil) {
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

TEST_F(AllocatorTest, SlackIsTheEndOfASlab) {
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

TEST_F(AllocatorTest, FindKnowsTheAllocationOfEveryByte) {
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

TEST_F(AllocatorTest, TheLargestPossibleIsExact) {
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

TEST_F(AllocatorTest, VerdictsTellWhatTheMemoryIsHeldAs) {
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
TEST_F(AllocatorTest, VerdictsOnSmallRequestsNameSleepBeforeFragmentation) {
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

TEST_F(AllocatorTest, VerdictsOnSmallRequestsAreCapacityWhereAllIsLive) {
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

TEST_F(AllocatorTest, RecordsOfTheSmallestSlotsAreLessThanOnePercent) {
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

TEST_F(AllocatorTest, TracesWhatItDoes) {
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

TEST_F(AllocatorTest, WhatIsStillAllocatedAtTheEndGoesBackToThePool) {
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

TEST_F(AllocatorTest, TheLargestPossibleMindsTheLimitsOfTheOwner) {
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

TEST_F(AllocatorTest, TheLargestPossibleMindsALimitThatWasLowered) {
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
