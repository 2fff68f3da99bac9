// What DeviceMemory counts, by owner and in the trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

namespace quire {
namespace {

using DeviceMemoryFiguresTest = DeviceMemoryFixture;

std::vector<TraceEvent> EventsOf(const EventTrace& trace,
                                 const std::set<TraceAction>& actions) {
  std::vector<TraceEvent> events = trace.Events();
  std::erase_if(events, [&](const TraceEvent& event) {
    return !actions.contains(event.action);
  });
  return events;
}

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
  const std::vector<TraceEvent> events =
      EventsOf(trace, {TraceAction::kCommit, TraceAction::kDecommit,
                       TraceAction::kOutOfMemory});
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

// What was reserved and not released is what is in use, at every moment.
TEST_F(DeviceMemoryFiguresTest, TellsTheTraceOfPhysicalMemoryAndItsLimit) {
  EventTrace trace(64);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  AddressRange* const range = Reserve(10);
  ASSERT_EQ(Commit(range, 0, 6), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 0, 4), absl::OkStatus());
  ASSERT_EQ(Commit(range, 6, 3), absl::OkStatus());
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(1));
  ASSERT_EQ(memory_->SetLimit(Bytes(8 * kPageBytes)), absl::OkStatus());
  const std::vector<TraceEvent> events =
      EventsOf(trace, {TraceAction::kReserve, TraceAction::kRelease,
                       TraceAction::kTrim, TraceAction::kLimit});
  uint64_t in_use = 0;
  for (const TraceEvent& event : events) {
    EXPECT_TRUE(memory_->Contains(event.address));
    if (event.action == TraceAction::kReserve) in_use += event.size.value();
    if (event.action == TraceAction::kRelease) in_use -= event.size.value();
    if (event.action == TraceAction::kTrim) {
      EXPECT_EQ(event.size, kPage);
    } else if (event.action == TraceAction::kLimit) {
      EXPECT_EQ(event.size.value(), 8 * kPageBytes);
    } else {
      EXPECT_EQ(event.in_use.value(), in_use);
    }
  }
  EXPECT_EQ(events.size(), 4u);
  EXPECT_EQ(in_use, 5 * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().in_use.value(), in_use);
  memory_->ReleaseRange(range, Fence());
  memory_.reset();
}

TEST_F(DeviceMemoryFiguresTest, TellsTheTraceOfEveryLimitThatChanges) {
  EventTrace trace(64);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  const auto pages = [](uint64_t count) { return Bytes(count * kPageBytes); };
  ASSERT_TRUE(memory_->SetSoftLimit(pages(20)).ok());
  ASSERT_TRUE(memory_
                  ->SetOwnerLimits(kOwner, {.soft = pages(4),
                                            .hard = pages(8),
                                            .reserved_minimum = pages(2)})
                  .ok());
  // In whole pages, and only what is another than before.
  ASSERT_TRUE(memory_
                  ->SetOwnerLimits(kOwner, {.soft = pages(4),
                                            .hard = Bytes(9 * kPageBytes + 7)})
                  .ok());
  ASSERT_FALSE(memory_->SetOwnerLimits(kOwner, {.hard = Bytes(1)}).ok());
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {}).ok());
  ASSERT_TRUE(memory_->SetSoftLimit(Bytes(0)).ok());
  struct Expected {
    TraceAction action;
    uint64_t pages;
    OwnerId owner = kOwner;
  };
  const std::vector<Expected> expected = {
      {TraceAction::kSoftLimit, 20, kUnnamedOwner},
      {TraceAction::kOwnerLimit, 8},
      {TraceAction::kOwnerSoftLimit, 4},
      {TraceAction::kOwnerMinimum, 2},
      {TraceAction::kOwnerLimit, 9},
      {TraceAction::kOwnerMinimum, 0},
      {TraceAction::kOwnerLimit, 0},
      {TraceAction::kOwnerSoftLimit, 0},
      {TraceAction::kSoftLimit, 0, kUnnamedOwner}};
  const std::vector<TraceEvent> events = EventsOf(
      trace, {TraceAction::kSoftLimit, TraceAction::kOwnerLimit,
              TraceAction::kOwnerSoftLimit, TraceAction::kOwnerMinimum});
  ASSERT_EQ(events.size(), expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].action, expected[i].action) << i;
    EXPECT_EQ(events[i].size, pages(expected[i].pages)) << i;
    EXPECT_EQ(events[i].owner, expected[i].owner) << i;
  }
  memory_.reset();
}

TEST_F(DeviceMemoryFiguresTest, TellsTheTraceOfSleep) {
  EventTrace trace(64);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  AddressRange* const range = Reserve(4);
  ASSERT_EQ(Commit(range, 0, 3), absl::OkStatus());
  {
    auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(section.ok()) << section.status();
    SleepOptions sleep;
    sleep.target = SleepTarget::kDrop;
    ASSERT_TRUE(memory_->Sleep(*section, kOwner, sleep).ok());
  }
  ASSERT_TRUE(memory_->Wake(kOwner).ok());
  const std::vector<TraceEvent> events =
      EventsOf(trace, {TraceAction::kSleep, TraceAction::kWake});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].action, TraceAction::kSleep);
  for (const TraceEvent& event : events) {
    EXPECT_EQ(event.owner, kOwner);
    EXPECT_EQ(event.size.value(), 3 * kPageBytes);
  }
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
  const std::vector<TraceEvent> events =
      EventsOf(trace, {TraceAction::kCommit, TraceAction::kDecommit});
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
