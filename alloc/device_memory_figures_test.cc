// What DeviceMemory counts, by owner and in the trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

using DeviceMemoryFiguresTest = DeviceMemoryFixture;

TEST_F(DeviceMemoryFiguresTest, PeaksAndOwnersAreCounted) {
  const OwnerId kv = owners_.Register("kv");
  AddressRange* const weights = Reserve(4);
  AddressRange* const cache = *memory_->ReserveRange(PageCount(4), kv);
  ASSERT_TRUE(Commit(weights, 0, 3).ok());
  ASSERT_TRUE(Commit(cache, 0, 4).ok());
  ASSERT_TRUE(Decommit(cache, 0, 3).ok());
  const std::vector<Bytes> by_owner = memory_->GetLiveByOwner();
  ASSERT_GT(by_owner.size(), kv.value());
  EXPECT_EQ(by_owner[kOwner.value()].value(), 3 * kPageBytes);
  EXPECT_EQ(by_owner[kv.value()].value(), 1 * kPageBytes);
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.peak_live.value(), 7 * kPageBytes);
  EXPECT_EQ(statistics.peak_in_use.value(), 7 * kPageBytes);
  EXPECT_EQ(statistics.live.value(), 4 * kPageBytes);
  EXPECT_EQ(statistics.reserved.value(), 8 * kPageBytes);
  EXPECT_EQ(statistics.unmapped.value(), 4 * kPageBytes);

  const auto map = memory_->CalculatePageMap();
  ASSERT_EQ(map.size(), 4u);
  for (size_t i = 1; i < map.size(); ++i) {
    EXPECT_LT(map[i - 1].address, map[i].address);
  }
  memory_->ReleaseRange(weights, Fence());
  memory_->ReleaseRange(cache, Fence());
}

TEST_F(DeviceMemoryFiguresTest, TellsTheTraceWhatBecameLiveAndWhatDidNot) {
  EventTrace trace(16);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  AddressRange* const range = Reserve(kLimitPages + 1);
  ASSERT_TRUE(Commit(range, 1, 2).ok());
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  ASSERT_TRUE(Decommit(range, 0, 1).ok());
  EXPECT_FALSE(Commit(range, 0, kLimitPages + 1).ok());
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 4u);
  const auto expect = [&](size_t i, TraceAction action, uint64_t pages,
                          uint64_t live) {
    EXPECT_EQ(events[i].action, action) << i;
    EXPECT_EQ(events[i].size.value(), pages * kPageBytes) << i;
    EXPECT_EQ(events[i].in_use.value(), live * kPageBytes) << i;
    EXPECT_EQ(events[i].owner, kOwner) << i;
  };
  expect(0, TraceAction::kCommit, 2, 2);
  expect(1, TraceAction::kCommit, 2, 4);
  expect(2, TraceAction::kDecommit, 1, 3);
  expect(3, TraceAction::kOutOfMemory, kLimitPages + 1 - 3, 3);
  memory_->ReleaseRange(range, Fence());
  memory_.reset();
}

TEST_F(DeviceMemoryFiguresTest, SetOwnerMovesTheAccountOfLivePages) {
  EventTrace trace(16);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  const OwnerId kv = owners_.Register("kv");
  AddressRange* const range = Reserve(4);
  EXPECT_EQ(memory_->SetOwner(range, kv), absl::OkStatus());
  ASSERT_EQ(Commit(range, 0, 3), absl::OkStatus());
  EXPECT_EQ(memory_->GetLiveByOwner()[kv.value()], Bytes(3 * kPageBytes));
  EXPECT_EQ(memory_->SetOwner(range, kOwner), absl::OkStatus());
  EXPECT_EQ(range->owner(), kOwner);
  EXPECT_EQ(memory_->GetLiveByOwner()[kv.value()], Bytes(0));
  EXPECT_EQ(memory_->GetLiveByOwner()[kOwner.value()], Bytes(3 * kPageBytes));
  EXPECT_EQ(memory_->GetStatistics().peak_live, Bytes(3 * kPageBytes));
  // The trace follows: one commit, then the pages change hands.
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].action, TraceAction::kDecommit);
  EXPECT_EQ(events[1].owner, kv);
  EXPECT_EQ(events[1].in_use, Bytes(0));
  EXPECT_EQ(events[2].action, TraceAction::kCommit);
  EXPECT_EQ(events[2].owner, kOwner);
  EXPECT_EQ(events[2].in_use, Bytes(3 * kPageBytes));
  memory_->ReleaseRange(range, Fence());
  memory_.reset();
}

}  // namespace
}  // namespace quire
