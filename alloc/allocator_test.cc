#include "quire/alloc/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "alloc/testing/allocator_fixture.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

using AllocatorTest = AllocatorFixture;

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

}  // namespace
}  // namespace quire
