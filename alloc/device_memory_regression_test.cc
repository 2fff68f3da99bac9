// Failures reported against other allocators, as tests of this one. Each names
// the public report that it comes from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

using DeviceMemoryRegressionTest = DeviceMemoryFixture;

// pytorch#188008: the access call of the second of several maps failed, and the
// process could not be used afterwards.
TEST_F(DeviceMemoryRegressionTest, Pytorch188008SecondMapFails) {
  AddressRange* const range = Reserve(9);
  for (const uint64_t slot : {2, 5}) ASSERT_TRUE(Commit(range, slot, 1).ok());
  faulty_->FailCall(DriverCall::kMap, 2, absl::StatusCode::kInternal);
  EXPECT_FALSE(Commit(range, 0, 9).ok());
  EXPECT_EQ(Committed(range, 0, 9), 2u);
  ASSERT_TRUE(Commit(range, 0, 9).ok());
  for (uint64_t slot = 0; slot < 9; ++slot) Write(range, slot, slot);
  memory_->ReleaseRange(range, Fence());
}

// pytorch#189504: the only block that fitted waited for an event; the error
// path synchronised and did not search again.
TEST_F(DeviceMemoryRegressionTest, Pytorch189504SearchesAgainAfterWaiting) {
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_TRUE(Decommit(range, 0, kLimitPages, FenceOn(stream)).ok());
  gate.OpenAfter(std::chrono::milliseconds(20));
  AddressRange* const next = Reserve(kLimitPages);
  EXPECT_EQ(Commit(next, 0, kLimitPages), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
  memory_->ReleaseRange(next, Fence());
}

// pytorch#71616: events were looked at in order, so one long stream kept the
// memory of all others from being used again.
TEST_F(DeviceMemoryRegressionTest, Pytorch71616ALongStreamBlocksNoOther) {
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  const StreamId slow = MakeStream();
  Gate slow_gate(driver_.get(), slow);
  // More of them, and earlier, than one decommit looks at.
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(Decommit(range, i, 1, FenceOn(slow)).ok());
  }
  const StreamId fast = MakeStream();
  Gate fast_gate(driver_.get(), fast);
  ASSERT_TRUE(Decommit(range, 8, 8, FenceOn(fast)).ok());
  fast_gate.OpenAfter(std::chrono::milliseconds(10));
  AddressRange* const next = Reserve(8);
  // The slow stream is still held up when this returns.
  EXPECT_EQ(Commit(next, 0, 8), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().cooling.value(), 8 * kPageBytes);
  slow_gate.Open();
  memory_->ReleaseRange(range, Fence());
  memory_->ReleaseRange(next, Fence());
}

// kvcached#437: churn of large allocations ended in an unmap with an invalid
// argument.
TEST_F(DeviceMemoryRegressionTest, Kvcached437LargeChurn) {
  std::mt19937 random(437);
  const StreamId stream = MakeStream();
  struct Sequence {
    AddressRange* range;
    uint64_t length;
  };
  std::vector<Sequence> sequences;
  uint64_t live = 0;
  for (int step = 0; step < 1500; ++step) {
    const uint64_t pages = 1 + random() % 12;
    while (live + pages > kLimitPages || sequences.size() >= 6) {
      const size_t victim = random() % sequences.size();
      live -= sequences[victim].length;
      memory_->ReleaseRange(sequences[victim].range,
                            random() % 2 == 0 ? Fence() : FenceOn(stream));
      sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    AddressRange* const range = Reserve(16);
    // Page by page, so that one range consists of many mappings.
    for (uint64_t i = 0; i < pages; ++i) {
      ASSERT_EQ(Commit(range, i, 1), absl::OkStatus());
    }
    live += pages;
    sequences.push_back({range, pages});
  }
  for (const Sequence& sequence : sequences) {
    memory_->ReleaseRange(sequence.range, Fence());
  }
  EXPECT_EQ(memory_->Health(), absl::OkStatus());
}

// kvcached#412: a batch of maps failed midway and stayed half done.
TEST_F(DeviceMemoryRegressionTest, Kvcached412ABatchIsAllOrNothing) {
  AddressRange* const range = Reserve(20);
  for (uint64_t slot = 1; slot < 20; slot += 2) {
    ASSERT_TRUE(Commit(range, slot, 1).ok());
    Write(range, slot, slot);
  }
  for (uint64_t n = 1; n <= 10; ++n) {
    faulty_->FailCall(DriverCall::kMap, n, absl::StatusCode::kInternal);
    EXPECT_FALSE(Commit(range, 0, 20).ok());
    for (uint64_t slot = 0; slot < 20; ++slot) {
      EXPECT_EQ(Committed(range, slot, 1), slot % 2);
      if (slot % 2 == 1) {
        EXPECT_EQ(Read(range, slot), slot);
      }
    }
  }
  memory_->ReleaseRange(range, Fence());
}

// vllm#45565: the error of one call was reported by the next, valid one.
TEST_F(DeviceMemoryRegressionTest, Vllm45565AnErrorDoesNotStick) {
  AddressRange* const range = Reserve(4);
  EXPECT_FALSE(Commit(range, 3, 2).ok());
  faulty_->FailCall(DriverCall::kCreatePage, 1, absl::StatusCode::kUnavailable);
  EXPECT_EQ(Commit(range, 0, 4).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Commit(range, 0, 4), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
}

// surogate#117: handles made before a failure in the middle of a batch were
// never given back.
TEST_F(DeviceMemoryRegressionTest, Surogate117HandlesReturnToTheBaseline) {
  AddressRange* const range = Reserve(12);
  const auto handles = [this] {
    return Calls("CreatePage") - Calls("ReleasePage");
  };
  const uint64_t baseline = handles();
  for (const DriverCall call : {DriverCall::kCreatePage, DriverCall::kMap}) {
    for (uint64_t n = 1; n <= (call == DriverCall::kMap ? 1 : 12); ++n) {
      faulty_->FailCall(call, n, absl::StatusCode::kInternal);
      EXPECT_FALSE(Commit(range, 0, 12).ok());
      EXPECT_EQ(handles(), baseline);
      EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
    }
  }
  memory_->ReleaseRange(range, Fence());
}

// HAMi-core#200: the limit less the usage went below zero, and the result was
// taken for 18 EB of room. kvcached#377: so did the headroom.
TEST_F(DeviceMemoryRegressionTest, HamiCore200ALimitBelowTheUseLeavesNoRoom) {
  AddressRange* const range = Reserve(20);
  ASSERT_TRUE(Commit(range, 0, 16).ok());
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {.hard = kPage}).ok());
  ASSERT_TRUE(memory_->SetLimit(kPage).ok());
  const OwnerStatistics owner = memory_->GetOwnerStatistics(kOwner);
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  for (const Bytes room : {owner.hard_room, owner.allowance,
                           statistics.growable, statistics.cached}) {
    EXPECT_EQ(room, Bytes(0));
  }
  EXPECT_FALSE(Commit(range, 16, 1).ok());
  EXPECT_EQ(memory_->SetOwnerLimits(kUnnamedOwner, {.reserved_minimum = kPage})
                .code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {}).ok());
  EXPECT_FALSE(Commit(range, 16, 1).ok());
  memory_->ReleaseRange(range, Fence());
}

// kvcached#448: addresses were compared with physical capacity.
TEST_F(DeviceMemoryRegressionTest, Kvcached448AddressesAreNoMemory) {
  ASSERT_TRUE(
      memory_->SetOwnerLimits(kOwner, {.hard = Bytes(2 * kPageBytes)}).ok());
  AddressRange* const range = Reserve(kAddressPages / 2);
  ASSERT_TRUE(Commit(range, 0, 1).ok());
  const std::vector<PageHandle> pages(kLimitPages * 3 / 2,
                                      memory_->PageAt(range, PageCount(0)));
  // More slots than the limit has pages, of one page.
  ASSERT_TRUE(memory_->CommitPages(range, PageCount(1), pages).ok());
  EXPECT_EQ(memory_->GetOwnerStatistics(kOwner).hard_room, kPage);
  EXPECT_EQ(memory_->GetStatistics().growable.value(),
            (kLimitPages - 1) * kPageBytes);
  memory_->ReleaseRange(range, Fence());
}

}  // namespace
}  // namespace quire
