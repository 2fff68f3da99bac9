// A forked child cannot use the parent's allocator, and does no harm.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/run_in_child.h"
#include "quire/alloc/allocator.h"

namespace quire {
namespace {

class AllocatorForkTest : public AllocatorFixture {
 protected:
  // The number of the first call that was not refused, or 0.
  int CallEverything(DeviceAddress live) {
    if (!absl::IsFailedPrecondition(allocator_->Allocate(Bytes(100)).status()))
      return 1;
    if (!absl::IsFailedPrecondition(
            allocator_->Allocate(Bytes(5 * kPageBytes)).status()))
      return 2;
    if (!absl::IsFailedPrecondition(allocator_->Free(live))) return 3;
    if (!absl::IsFailedPrecondition(
            allocator_->RecordStream(live, StreamId(1))))
      return 4;
    if (!absl::IsFailedPrecondition(allocator_->Pin(live))) return 5;
    if (!absl::IsFailedPrecondition(allocator_->Unpin(live))) return 6;
    if (!absl::IsFailedPrecondition(allocator_->CheckInvariants())) return 7;
    if (allocator_->Find(live).has_value()) return 8;
    if (!allocator_->CalculateLiveAllocations().empty()) return 9;
    if (allocator_->GetStatistics().live_bytes != 0) return 10;
    if (!allocator_->Trim().zero()) return 11;
    if (!allocator_->GetLargestPossible().zero()) return 12;
    if (!absl::IsFailedPrecondition(allocator_->CreateGraphPool().status()))
      return 13;
    if (!absl::IsFailedPrecondition(
            allocator_->BeginGraphCapture(GraphPoolId(1), StreamId(1))))
      return 14;
    if (!absl::IsFailedPrecondition(
            allocator_->ReleaseGraphPool(GraphPoolId(1), {})))
      return 15;
    allocator_.reset();
    return 0;
  }
};

TEST_F(AllocatorForkTest, EveryCallIsRefusedAndTheParentGoesOn) {
  const DeviceAddress live = Allocate(100);
  // There is a slot in the cache of this thread.
  Free(Allocate(100));
  EXPECT_EQ(RunInChild([&] { return CallEverything(live); }), 0);
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  Free(Allocate(100));
  Free(live);
}

TEST_F(AllocatorForkTest, AChildDoesNotWaitForLocksOfThreadsItDoesNotHave) {
  if (!kChildrenOfThreadsMayAllocate) {
    GTEST_SKIP() << "the sanitizer's allocator may hang in such a child";
  }
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) {
      const auto address = allocator_->Allocate(Bytes(3 * kPageBytes));
      if (address.ok()) (void)allocator_->Free(*address);
    }
  });
  const DeviceAddress live = Allocate(100);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(RunInChild([&] { return CallEverything(live); }), 0);
  }
  stop = true;
  other.join();
}

TEST_F(AllocatorForkTest, WhatTheChildMakesIsItsOwn) {
  Free(Allocate(100));
  EXPECT_EQ(RunInChild([&] {
              HostDriverOptions options;
              options.backing = HostDriverOptions::Backing::kNone;
              options.memory_per_device = GiB(1);
              const auto driver = HostDriver::Create(options);
              if (!driver.ok()) return 1;
              OwnerRegistry owners;
              const auto memory =
                  DeviceMemory::Create(driver->get(), &owners, {});
              if (!memory.ok()) return 2;
              const auto allocator = DeviceAllocator::Create(memory->get());
              const auto first = allocator->Allocate(Bytes(100));
              if (!first.ok() || !allocator->Free(*first).ok()) return 3;
              const auto second = allocator->Allocate(Bytes(100));
              return second.ok() && *second == *first ? 0 : 4;
            }),
            0);
}

}  // namespace
}  // namespace quire
