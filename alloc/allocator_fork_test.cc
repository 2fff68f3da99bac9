// A forked child cannot use the parent's allocator, and does no harm.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/run_in_child.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorForkTest : public AllocatorFixture {
 protected:
  // In the parent; a test's fork is inside of it.
  QuiescentSection BeginSection() {
    auto section = QuiescentSection::Begin(memory_.get(), {});
    EXPECT_TRUE(section.ok()) << section.status();
    return *std::move(section);
  }
  // The number of the first call that was not refused, or 0.
  int CallEverything(DeviceAddress live, const QuiescentSection& section) {
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
    if (!allocator_->Trim().pages_freed.zero()) return 11;
    if (!allocator_->GetLargestPossible().zero()) return 12;
    if (!absl::IsFailedPrecondition(allocator_->CreateGraphPool().status()))
      return 13;
    if (!absl::IsFailedPrecondition(
            allocator_->BeginGraphCapture(GraphPoolId(1), StreamId(1))))
      return 14;
    if (!absl::IsFailedPrecondition(
            allocator_->ReleaseGraphPool(GraphPoolId(1), {})))
      return 15;
    if (!absl::IsFailedPrecondition(allocator_->EndGraphCapture(StreamId(1))))
      return 16;
    if (!absl::IsFailedPrecondition(allocator_->Mesh(section).status()))
      return 17;
    if (!absl::IsFailedPrecondition(
            allocator_->BeginRelocation(section).status()))
      return 18;
    ThresholdPolicy policy;
    if (!absl::IsFailedPrecondition(
            allocator_->Compact(section, &policy).status()))
      return 19;
    if (!absl::IsFailedPrecondition(
            allocator_->Sleep(section, kOwner).status()))
      return 20;
    if (!absl::IsFailedPrecondition(allocator_->Wake(kOwner).status()))
      return 21;
    allocator_.reset();
    return 0;
  }
};

TEST_F(AllocatorForkTest, EveryCallIsRefusedAndTheParentGoesOn) {
  const DeviceAddress live = Allocate(100);
  // There is a slot in the cache of this thread.
  Free(Allocate(100));
  const QuiescentSection section = BeginSection();
  EXPECT_EQ(RunInChild([&] { return CallEverything(live, section); }), 0);
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
  const QuiescentSection section = BeginSection();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(RunInChild([&] { return CallEverything(live, section); }), 0);
  }
  stop = true;
  other.join();
}

// Sparse slabs of movable memory, so that there is something to move.
TEST_F(AllocatorForkTest, APassOfTheParentIsNotTheChilds) {
  AllocateOptions options;
  options.movable = true;
  std::set<DeviceAddress> live;
  for (int i = 0; i < 160; ++i) {
    const auto address = allocator_->Allocate(Bytes(4096), options);
    ASSERT_TRUE(address.ok()) << address.status();
    live.insert(*address);
  }
  for (auto each = live.begin(); each != live.end();) {
    if (each->value() / 4096 % 16 == 3) {
      std::memset(each++->host_pointer<char>(), 7, 4096);
    } else {
      Free(*each);
      each = live.erase(each);
    }
  }
  const QuiescentSection section = BeginSection();
  auto pass = allocator_->BeginRelocation(section);
  ASSERT_TRUE(pass.ok()) << pass.status();
  const std::vector<RelocationMove> moves(pass->moves().begin(),
                                          pass->moves().end());
  ASSERT_FALSE(moves.empty());
  for (const bool end : {false, true}) {
    EXPECT_EQ(RunInChild([&] {
                if (!absl::IsFailedPrecondition(pass->Copy())) return 1;
                if (end && pass->End().moves != 0) return 2;
                const RelocationPass given_up = *std::move(pass);
                return 0;
              }),
              0);
  }
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  for (const RelocationMove& move : moves) {
    EXPECT_EQ(std::memcmp(move.to.host_pointer<char>(),
                          move.from.host_pointer<char>(), 4096),
              0);
  }
  EXPECT_EQ(pass->End().moves, moves.size());
  for (const RelocationMove& move : moves) {
    live.erase(move.from);
    live.insert(move.to);
  }
  for (const DeviceAddress address : live) Free(address);
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
