#include "alloc/snapshot_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "quire/alloc/memory_growth.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TraceEvent Event(uint64_t time, TraceAction action, uint32_t owner,
                 uint64_t size, uint64_t in_use) {
  TraceEvent event;
  event.nanoseconds = time;
  event.action = action;
  event.owner = OwnerId(owner);
  event.address = DeviceAddress(1);
  event.size = Bytes(size);
  event.in_use = Bytes(in_use);
  return event;
}

TEST(SnapshotTimelineTest, FollowsEachOwner) {
  std::vector<TraceEvent> events = {
      Event(1, TraceAction::kCommit, 1, 10, 10),
      Event(2, TraceAction::kCommit, 2, 5, 15),
      Event(3, TraceAction::kAllocate, 2, 2, 15),
      Event(4, TraceAction::kDecommit, 1, 4, 11),
      Event(5, TraceAction::kOutOfMemory, 2, 99, 11),
      Event(6, TraceAction::kFree, 2, 1, 0),
  };
  events.push_back(Event(7, TraceAction::kMark, 0, 0, 0));
  events.back().label = "decode";
  const Timeline timeline = BuildTimeline(events, 0, {}, 100);
  EXPECT_THAT(timeline.nanoseconds, ElementsAre(1, 2, 3, 4, 6));
  EXPECT_THAT(timeline.live, ElementsAre(10, 15, 15, 11, 11));
  // Owner 1 asks no allocator: it uses all of its pages.
  EXPECT_THAT(timeline.requested, ElementsAre(10, 10, 12, 8, 7));
  EXPECT_THAT(timeline.owners.at(1).live, ElementsAre(10, 10, 10, 6, 6));
  EXPECT_THAT(timeline.owners.at(1).requested, ElementsAre(10, 10, 10, 6, 6));
  EXPECT_THAT(timeline.owners.at(2).live, ElementsAre(0, 5, 5, 5, 5));
  EXPECT_THAT(timeline.owners.at(2).requested, ElementsAre(0, 0, 2, 2, 1));
  ASSERT_EQ(timeline.failures.size(), 1u);
  EXPECT_EQ(timeline.failures[0].requested, 99u);
  ASSERT_EQ(timeline.marks.size(), 1u);
  EXPECT_EQ(timeline.marks[0].label, "decode");
}

TEST(SnapshotTimelineTest, TellsALostBeginningBackwardsFromNow) {
  const std::vector<TraceEvent> events = {
      Event(1, TraceAction::kCommit, 1, 10, 40),
      Event(2, TraceAction::kDecommit, 2, 5, 35),
      Event(3, TraceAction::kFree, 3, 2, 0),
  };
  // Owner 1 holds 30 now, so it held 20 before; owner 3's pages did not change.
  const Timeline timeline = BuildTimeline(
      events, 7, {{1, {30, 0, false}}, {2, {1, 0, false}}, {3, {4, 1, true}}},
      100);
  EXPECT_EQ(timeline.dropped, 7u);
  EXPECT_THAT(timeline.owners.at(1).live, ElementsAre(30, 30, 30));
  EXPECT_THAT(timeline.owners.at(2).live, ElementsAre(6, 1, 1));
  EXPECT_THAT(timeline.owners.at(3).live, ElementsAre(4, 4, 4));
  EXPECT_THAT(timeline.owners.at(3).requested, ElementsAre(3, 3, 1));
  EXPECT_THAT(timeline.live, ElementsAre(40, 35, 35));
  EXPECT_THAT(timeline.requested, ElementsAre(39, 34, 32));
}

// Freed on a stream: until that is done, the stream has it again, or its pages
// go.
TEST(SnapshotTimelineTest, FollowsWhatCools) {
  std::vector<TraceEvent> events;
  const auto add = [&events](TraceAction action, uint64_t address,
                             uint64_t size, uint64_t stream) {
    events.push_back(Event(events.size() + 1, action, 3, size, 100));
    events.back().address = DeviceAddress(address);
    events.back().stream = StreamId(stream);
  };
  add(TraceAction::kCommit, 1000, 100, 0);
  for (const uint64_t address : {1000, 1010, 1020, 1050}) {
    add(TraceAction::kAllocate, address, 10, 1);
  }
  add(TraceAction::kFree, 1000, 10, 0);  // nothing to wait for
  add(TraceAction::kFree, 1010, 10, 1);
  add(TraceAction::kFree, 1020, 10, 1);
  add(TraceAction::kFree, 1050, 10, 2);
  add(TraceAction::kFreeCompleted, 1010, 10, 1);
  add(TraceAction::kAllocate, 1020, 8, 1);
  add(TraceAction::kFreeCompleted, 1020, 10, 1);  // of nothing
  add(TraceAction::kDecommit, 1056, 44, 0);       // the end of the last one
  add(TraceAction::kDecommit, 1000, 56, 0);
  const Timeline timeline = BuildTimeline(events, 0, {}, 100);
  EXPECT_THAT(timeline.cooling,
              ElementsAre(0, 0, 0, 0, 0, 0, 10, 20, 30, 20, 10, 6, 0));
  EXPECT_EQ(timeline.owners.at(3).cooling, timeline.cooling);
  EXPECT_EQ(timeline.requested.back(), 8u);
}

// Pages pile up in all three cases; why, only what cools tells.
TEST(SnapshotTimelineTest, WhatCoolsIsToldFromFragmentation) {
  enum class Case { kCools, kCompletes, kFreeAtOnce };
  for (const Case each : {Case::kCools, Case::kCompletes, Case::kFreeAtOnce}) {
    const uint64_t size = MiB(1).value();
    std::vector<TraceEvent> events;
    for (uint64_t i = 1; i <= 100; ++i) {
      for (const TraceAction action :
           {TraceAction::kCommit, TraceAction::kAllocate, TraceAction::kFree,
            TraceAction::kFreeCompleted}) {
        if (action == TraceAction::kFreeCompleted && each != Case::kCompletes) {
          continue;
        }
        events.push_back(Event(i * 1000, action, 3, size, i * size));
        events.back().address = DeviceAddress(i * size);
        events.back().stream = StreamId(each == Case::kFreeAtOnce ? 0 : 7);
      }
    }
    const Timeline timeline = BuildTimeline(events, 0, {}, 1000);
    const auto growth = FindMemoryGrowth(timeline.nanoseconds, timeline.live,
                                         timeline.requested, timeline.cooling);
    ASSERT_TRUE(growth.has_value());
    EXPECT_EQ(growth->kind, each == Case::kCools ? GrowthKind::kCooling
                                                 : GrowthKind::kFragmentation);
    EXPECT_EQ(timeline.cooling.back(), each == Case::kCools ? 100 * size : 0);
  }
}

// An owner that holds pages for an allocator and has nothing allocated.
TEST(SnapshotTimelineTest, PagesOfAnAllocatorAreNotAskedFor) {
  const std::vector<TraceEvent> events = {
      Event(1, TraceAction::kCommit, 4, 100, 100)};
  const Timeline timeline =
      BuildTimeline(events, 0, {{4, {100, 0, true}}}, 100);
  EXPECT_THAT(timeline.live, ElementsAre(100));
  EXPECT_THAT(timeline.requested, ElementsAre(0));
}

TEST(SnapshotTimelineTest, SumsThatDoNotFitStayWithinBounds) {
  const std::vector<TraceEvent> events = {
      Event(1, TraceAction::kDecommit, 1, 10, 0),
      Event(2, TraceAction::kCommit, 1, UINT64_MAX, 0),
      Event(3, TraceAction::kCommit, 1, UINT64_MAX, 0),
  };
  EXPECT_THAT(BuildTimeline(events, 0, {}, 100).owners.at(1).live,
              ElementsAre(0, UINT64_MAX, UINT64_MAX));
}

TEST(SnapshotTimelineTest, NothingComesOfNothing) {
  const Timeline timeline = BuildTimeline({}, 0, {}, 6);
  EXPECT_THAT(timeline.live, IsEmpty());
  EXPECT_TRUE(timeline.owners.empty());
}

TEST(SnapshotTimelineTest, ThinningIsBoundedAndLosesNoPeak) {
  std::mt19937 random(7);
  for (const size_t most : {6u, 7u, 40u, 399u, 6000u}) {
    std::vector<TraceEvent> events;
    std::vector<uint64_t> held(4, 0);
    std::vector<uint64_t> owner_peak(4, 0);
    uint64_t live = 0;
    uint64_t peak = 0;
    for (uint64_t t = 0; t < 1000; ++t) {
      const auto owner = static_cast<uint32_t>(random() % 4);
      const uint64_t size = 1 + random() % 100;
      const bool commit = held[owner] < size || random() % 2 == 0;
      held[owner] = commit ? held[owner] + size : held[owner] - size;
      live = commit ? live + size : live - size;
      peak = std::max(peak, live);
      owner_peak[owner] = std::max(owner_peak[owner], held[owner]);
      events.push_back(
          Event(t, commit ? TraceAction::kCommit : TraceAction::kDecommit,
                owner, size, live));
    }
    const Timeline timeline = BuildTimeline(events, 0, {}, most);
    EXPECT_LE(timeline.live.size(), most + 4);
    EXPECT_EQ(timeline.nanoseconds.front(), 0u);
    EXPECT_EQ(timeline.nanoseconds.back(), 999u);
    EXPECT_TRUE(std::is_sorted(timeline.nanoseconds.begin(),
                               timeline.nanoseconds.end()));
    EXPECT_EQ(*std::max_element(timeline.live.begin(), timeline.live.end()),
              peak);
    for (uint32_t owner = 0; owner < 4; ++owner) {
      const std::vector<uint64_t>& column = timeline.owners.at(owner).live;
      ASSERT_EQ(column.size(), timeline.live.size());
      EXPECT_EQ(*std::max_element(column.begin(), column.end()),
                owner_peak[owner]);
    }
    // At every point, the owners add up.
    for (size_t i = 0; i < timeline.live.size(); ++i) {
      uint64_t sum = 0;
      for (const auto& [owner, columns] : timeline.owners) {
        sum += columns.live[i];
      }
      EXPECT_EQ(sum, timeline.live[i]);
      EXPECT_EQ(sum, timeline.requested[i]);
    }
  }
}

}  // namespace
}  // namespace quire
