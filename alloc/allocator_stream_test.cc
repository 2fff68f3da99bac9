// Who may have freed memory, and when.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

class AllocatorStreamTest : public AllocatorFixture {};

TEST_F(AllocatorStreamTest, AStreamHasItsOwnMemoryBackAtOnce) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  for (const uint64_t size : {uint64_t{700}, 3 * kPageBytes}) {
    const DeviceAddress first = Allocate(size, stream);
    Free(first, stream);
    EXPECT_EQ(Allocate(size, stream), first);
  }
}

// Frees share an event (fence_batch); who wants the memory does not wait for
// more of them.
TEST_F(AllocatorStreamTest, WhatAStreamIsDoneWithIsTrimmed) {
  const StreamId stream = MakeStream();
  for (const bool to_driver : {false, true}) {
    SCOPED_TRACE(to_driver);
    const DeviceAddress large = AllocatePages(3, stream);
    Free(Allocate(kPageBytes / 2, stream), stream);
    Free(large, stream);
    ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
    if (to_driver) {
      memory_->Trim(PageCount(0));
      EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
    } else {
      EXPECT_GE(allocator_->Trim().pages_freed, PageCount(3));
    }
    EXPECT_EQ(Statistics().mapped_bytes, 0u);
    EXPECT_EQ(Statistics().cooling_bytes, 0u);
  }
}

TEST_F(AllocatorStreamTest, AStreamHasLargerSlotsOfItsOwnWhenThereIsNoOther) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  const DeviceAddress most = AllocatePages(kLimitPages - 1, stream);
  const DeviceAddress slot = Allocate(kPageBytes / 2, stream);
  Free(slot, stream);
  EXPECT_EQ(Allocate(500, stream), slot);
  Free(most);
}

TEST_F(AllocatorStreamTest, AStreamHasAPartOfItsOwnMemoryWhenThereIsNoOther) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  const DeviceAddress all = AllocatePages(kLimitPages, stream);
  Free(all, stream);
  const DeviceAddress part = AllocatePages(3, stream);
  EXPECT_EQ(part, all);
  // The rest serves others once the stream is done with it.
  gate.OpenAfter(milliseconds(10));
  AllocatePages(kLimitPages - 3);
  Free(part, stream);
}

TEST_F(AllocatorStreamTest, AFreeSlotOfALargerClassIsBetterThanAnError) {
  const DeviceAddress most = AllocatePages(kLimitPages - 1);
  std::vector<DeviceAddress> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(Allocate(16384));
  ExpectOutOfMemory(256);
  Free(slots[2]);
  const DeviceAddress address = Allocate(256);
  EXPECT_EQ(address, slots[2]);
  EXPECT_EQ(allocator_->Find(address)->allocated, Bytes(16384));
  Free(most);
}

// pytorch#186232: what was idle in the cache of one stream was no other's.
TEST_F(AllocatorStreamTest, PyTorch186232OthersHaveItWhenTheFenceIsComplete) {
  DeviceAllocatorOptions options;
  options.fence_batch = Bytes(0);
  MakeAllocator(options);
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const uint64_t size : {uint64_t{700}, 3 * kPageBytes}) {
    Gate gate(driver_.get(), a);
    const DeviceAddress freed = Allocate(size, a);
    Free(freed, a);
    EXPECT_GT(Statistics().cooling_bytes, 0u);
    std::set<DeviceAddress> others;
    for (int i = 0; i < 3; ++i) {
      others.insert(Allocate(size, b));
      others.insert(Allocate(size));
    }
    EXPECT_FALSE(others.contains(freed));
    for (const DeviceAddress address : others) Free(address, b);
    gate.Open();
    ASSERT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
    ASSERT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
    // Everything that is free now serves anybody, before new memory does.
    const uint64_t mapped = Statistics().mapped_bytes;
    std::set<DeviceAddress> again;
    for (int i = 0; i < 7; ++i) again.insert(Allocate(size));
    EXPECT_EQ(Statistics().mapped_bytes, mapped);
    if (size > kPageBytes) {
      EXPECT_TRUE(again.contains(freed));
    }
    for (const DeviceAddress address : again) Free(address);
  }
}

TEST_F(AllocatorStreamTest, WorkQueuedAfterTheFreeHoldsNothingUp) {
  DeviceAllocatorOptions options;
  options.fence_batch = Bytes(0);
  MakeAllocator(options);
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const uint64_t size : {kPageBytes / 4, kLimitPages * kPageBytes}) {
    std::vector<DeviceAddress> all;
    const uint64_t count = kLimitPages * kPageBytes / size;
    for (uint64_t i = 0; i < count; ++i) all.push_back(Allocate(size, a));
    for (const DeviceAddress address : all) Free(address, a);
    Gate gate(driver_.get(), a);  // opens only at the end of the scope
    const DeviceAddress address = Allocate(size, b);
    Free(address, b);
    ASSERT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
  }
}

TEST_F(AllocatorStreamTest, WaitsForWhatCoolsBeforeItFails) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const uint64_t size : {uint64_t{200}, kPageBytes / 4, 3 * kPageBytes}) {
    Gate gate(driver_.get(), a);
    std::vector<DeviceAddress> all;
    for (;;) {
      AllocateOptions options;
      options.stream = a;
      const auto address = allocator_->Allocate(Bytes(size), options);
      if (!address.ok()) break;
      all.push_back(*address);
    }
    Free(all.back(), a);
    all.pop_back();
    gate.OpenAfter(milliseconds(20));
    all.push_back(Allocate(size, b));
    for (const DeviceAddress address : all) Free(address);
    ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  }
}

TEST_F(AllocatorStreamTest, RecordedStreamsAreWaitedFor) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const uint64_t size : {uint64_t{700}, 3 * kPageBytes}) {
    const DeviceAddress address = Allocate(size, a);
    EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
    EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
    Gate gate(driver_.get(), b);
    Free(address, a);
    // Not even the stream that freed it may have it while b is using it.
    for (int i = 0; i < 3; ++i) EXPECT_NE(Allocate(size, a), address);
    gate.Open();
    ASSERT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
    ASSERT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
    const uint64_t mapped = Statistics().mapped_bytes;
    allocator_->Trim(Bytes(UINT64_MAX));  // looks what is complete
    EXPECT_EQ(Statistics().cooling_bytes, 0u);
    EXPECT_EQ(Statistics().mapped_bytes, mapped);
  }
}

TEST_F(AllocatorStreamTest, ARecordedStreamAloneIsAFreeOnThatStream) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  const DeviceAddress address = AllocatePages(2, a);
  EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
  Gate gate(driver_.get(), b);
  Free(address);
  EXPECT_NE(AllocatePages(2, a), address);
  EXPECT_EQ(AllocatePages(2, b), address);
}

// Between the free and the second allocation nothing was waited for, so the
// work queued before the free may still be using the memory, whatever stream
// the second free names.
TEST_F(AllocatorStreamTest, AFreeElsewhereWaitsForTheFormerLifeOfTheMemory) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const StreamId second_free : {b, StreamId()}) {
    for (const uint64_t size : {uint64_t{700}, 3 * kPageBytes}) {
      Gate gate(driver_.get(), a);
      const DeviceAddress address = Allocate(size, a);
      Free(address, a);
      ASSERT_EQ(Allocate(size, a), address);
      Free(address, second_free);
      std::vector<DeviceAddress> others;
      for (int i = 0; i < 3; ++i) {
        others.push_back(Allocate(size, b));
        others.push_back(Allocate(size));
      }
      for (const DeviceAddress other : others) EXPECT_NE(other, address);
      for (const DeviceAddress other : others) Free(other);
      gate.Open();
      EXPECT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
      allocator_->Trim();
    }
  }
}

// Pages may lie under a second address for the stream that freed them, and must
// not come to anybody else by way of it.
TEST_F(AllocatorStreamTest, PagesMoveToOtherAddressesOfTheirStreamOnly) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  // Four pages are left beside the eight.
  const DeviceAddress filler = AllocatePages(kLimitPages - 12);
  Gate gate(driver_.get(), a);
  std::vector<DeviceAddress> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(AllocatePages(1, a));
  for (int i = 0; i < 8; i += 2) Free(pages[i], a);
  const uint64_t live = Statistics().mapped_bytes;
  const DeviceAddress second = AllocatePages(4, a);
  EXPECT_EQ(std::count(pages.begin(), pages.end(), second), 0);
  EXPECT_EQ(Statistics().mapped_bytes, live);
  Free(second, a);
  // Nothing of it is to be had on b before a is done.
  gate.OpenAfter(milliseconds(20));
  std::atomic<bool> opened = false;
  EXPECT_EQ(driver_->LaunchHostFunction(a, [&] { opened = true; }),
            absl::OkStatus());
  const DeviceAddress other = AllocatePages(7, b);
  EXPECT_TRUE(opened);
  Free(other, b);
  for (int i = 1; i < 8; i += 2) Free(pages[i], a);
  Free(filler);
}

TEST_F(AllocatorStreamTest, StreamsMayGoAwayBetweenTheFreeAndTheNextUse) {
  const StreamId gone = *driver_->CreateStream(DeviceId(0));
  const StreamId also_gone = *driver_->CreateStream(DeviceId(0));
  const DeviceAddress small = Allocate(500, gone);
  const DeviceAddress large = Allocate(kLimitPages * kPageBytes / 2, gone);
  const DeviceAddress recorded = AllocatePages(4, gone);
  EXPECT_EQ(allocator_->RecordStream(recorded, also_gone), absl::OkStatus());
  Free(small, gone);
  Free(large, gone);
  EXPECT_EQ(driver_->DestroyStream(also_gone), absl::OkStatus());
  Free(recorded, gone);
  EXPECT_EQ(driver_->DestroyStream(gone), absl::OkStatus());
  const DeviceAddress all = Allocate(kLimitPages * kPageBytes);
  Free(all);
}

// A stream that is gone has done its work, whatever it was named for.
TEST_F(AllocatorStreamTest, StreamsMayEndBeforeTheFreeThatWaitsForThem) {
  const auto stream = driver_->CreateStream(DeviceId(0));
  ASSERT_TRUE(stream.ok());
  const DeviceAddress recorded = Allocate(1000);
  ASSERT_EQ(allocator_->RecordStream(recorded, *stream), absl::OkStatus());
  // Freed on the stream and handed out again, so that it inherits.
  Free(AllocatePages(3, *stream), *stream);
  const DeviceAddress inherits = AllocatePages(3, *stream);
  ASSERT_EQ(driver_->DestroyStream(*stream), absl::OkStatus());
  Free(recorded);
  Free(inherits);
  EXPECT_EQ(Statistics().live_allocations, 0u);
}

TEST_F(AllocatorStreamTest, AStreamThatNeverWasIsRefusedAmongOthers) {
  const DeviceAddress address = Allocate(1000);
  ASSERT_EQ(allocator_->RecordStream(address, MakeStream()), absl::OkStatus());
  EXPECT_EQ(allocator_->Free(address, StreamId(1000000)).code(),
            absl::StatusCode::kNotFound);
  Free(address);
}

// The record of so small a slot names the first streams only; of others it is
// known that it is one of them.
TEST_F(AllocatorStreamTest, TheSmallestSlotsOfManyStreamsWaitForTheirs) {
  constexpr int kStreams = 20;
  std::vector<StreamId> many;
  for (int i = 0; i < kStreams; ++i) {
    if (i > 0) Free(Allocate(256, many.back()), many.back());
    many.push_back(MakeStream());
  }
  Gate gate(driver_.get(), many.back());
  const DeviceAddress first = Allocate(256, many.back());
  Free(first, many.back());
  // It has its memory back while its work goes on, and gives it up elsewhere.
  EXPECT_EQ(Allocate(256, many.back()), first);
  Free(first, many.front());
  ASSERT_EQ(driver_->SynchronizeStream(many.front()), absl::OkStatus());
  allocator_->Trim();
  EXPECT_GT(Statistics().cooling_bytes, 0u);
  gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(many.back()), absl::OkStatus());
  allocator_->Trim();
  EXPECT_EQ(Statistics().cooling_bytes, 0u);
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

TEST_F(AllocatorStreamTest, RecordingAStreamThatIsKnownTakesNoDriverCall) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  Free(Allocate(256, b), b);
  const DeviceAddress address = AllocatePages(2, a);
  Gate gate(driver_.get(), b);
  const uint64_t calls = DriverCalls();
  EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
  EXPECT_EQ(DriverCalls(), calls);
  Free(address, a);
  EXPECT_EQ(Statistics().cooling_bytes, 2 * kPageBytes);
  allocator_->Trim();
  EXPECT_EQ(Statistics().cooling_bytes, 2 * kPageBytes);
  gate.Open();
  EXPECT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
  allocator_->Trim();
  EXPECT_EQ(Statistics().cooling_bytes, 0u);
}

}  // namespace
}  // namespace quire
