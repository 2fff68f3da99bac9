#include "quire/alloc/allocation_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "alloc/allocation_trace_builder.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

AllocationEvent Event(AllocationAction action, uint64_t allocation,
                      uint64_t size = 0, uint64_t stream = 0) {
  AllocationEvent event;
  event.action = action;
  event.allocation = allocation;
  event.size = Bytes(size);
  event.stream = stream;
  return event;
}

constexpr auto kLive = AllocationAction::kLive;
constexpr auto kAllocate = AllocationAction::kAllocate;
constexpr auto kFree = AllocationAction::kFree;

TEST(AllocationTraceTest, TheSummaryCountsWhatIsAskedFor) {
  AllocationTrace trace;
  trace.events = {
      Event(kLive, 7, 100),
      Event(AllocationAction::kReserve, 0, 1000),
      Event(kAllocate, 1, 300, 5),
      Event(kFree, 7),  // frees need not say the size
      Event(kAllocate, 2, 350, 5),
      Event(AllocationAction::kRelease, 0, 900),
      Event(AllocationAction::kReserve, 0, 200),
      Event(AllocationAction::kFailure, 0, 9999),
      Event(AllocationAction::kMark, 3, 0, 77),
      Event(kFree, 1),
  };
  ASSERT_EQ(CheckAllocationTrace(trace), absl::OkStatus());
  const AllocationTraceSummary summary = SummarizeAllocationTrace(trace);
  EXPECT_EQ(summary.allocations, 3u);
  EXPECT_EQ(summary.frees, 2u);
  EXPECT_EQ(summary.failures, 1u);
  EXPECT_EQ(summary.streams, 2u);  // a mark is on none
  EXPECT_EQ(summary.threads, 1u);
  EXPECT_EQ(summary.peak_requested, Bytes(650));
  EXPECT_EQ(summary.largest, Bytes(350));
  EXPECT_EQ(summary.peak_reserved, Bytes(1000));
  EXPECT_EQ(summary.live_at_end, Bytes(350));
}

TEST(AllocationTraceTest, SumsStopAtTheLargestNumber) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  AllocationTrace trace;
  trace.events = {Event(kAllocate, 0, kMost - 1), Event(kAllocate, 1, 5),
                  Event(kFree, 0), Event(kFree, 1)};
  const AllocationTraceSummary summary = SummarizeAllocationTrace(trace);
  EXPECT_EQ(summary.peak_requested, Bytes(kMost));
  EXPECT_EQ(summary.live_at_end, Bytes(0));
}

TEST(AllocationTraceTest, WhatCannotBePlayedIsRefusedWithTheEvent) {
  const auto error_of = [](std::vector<AllocationEvent> events) {
    AllocationTrace trace;
    trace.events = std::move(events);
    const absl::Status status = CheckAllocationTrace(trace);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error_of({Event(kAllocate, 4), Event(kLive, 5)}),
              HasSubstr("event 1 (live)"));
  EXPECT_THAT(error_of({Event(kAllocate, 4), Event(kAllocate, 4)}),
              HasSubstr("allocation 4 begins twice"));
  // A number is used once: also when the first is over.
  EXPECT_THAT(
      error_of({Event(kAllocate, 4), Event(kFree, 4), Event(kAllocate, 4)}),
      HasSubstr("event 2"));
  EXPECT_THAT(error_of({Event(kFree, 9)}), HasSubstr("9 is not live"));
  EXPECT_THAT(error_of({Event(kAllocate, 9), Event(kFree, 9), Event(kFree, 9)}),
              HasSubstr("event 2 (free)"));
  EXPECT_THAT(error_of({Event(AllocationAction::kRecordStream, 9)}),
              HasSubstr("record stream"));
  AllocationEvent event = Event(kAllocate, 0);
  event.alignment = Bytes(48);
  EXPECT_THAT(error_of({event}), HasSubstr("48"));
  event.alignment = Bytes(64);
  event.label = 1;
  EXPECT_THAT(error_of({event}), HasSubstr("label 1 of 1"));
}

TEST(AllocationTraceTest, EveryActionHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(AllocationAction::kMark); ++i) {
    names.insert(AllocationActionName(static_cast<AllocationAction>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(AllocationAction::kMark) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(AllocationTraceBuilderTest, NamesThatAreUsedAgainAreOtherAllocations) {
  AllocationTraceBuilder builder;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(builder.Begin(0x700, Event(kAllocate, 0, 10)).ok());
    EXPECT_FALSE(builder.Begin(0x700, Event(kAllocate, 0, 10)).ok());
    ASSERT_TRUE(builder.Continue(0x700, Event(kFree, 0)).ok());
    EXPECT_FALSE(builder.Continue(0x700, Event(kFree, 0)).ok());
  }
  const AllocationTrace trace = builder.Finish();
  EXPECT_EQ(trace.events.size(), 6u);
  EXPECT_EQ(CheckAllocationTrace(trace), absl::OkStatus());
  EXPECT_TRUE(builder.Finish().events.empty());
}

TEST(AllocationTraceBuilderTest, WhatEndsWithoutABeginningComesFirst) {
  AllocationTraceBuilder builder;
  ASSERT_TRUE(builder.Begin(1, Event(kAllocate, 0, 10)).ok());
  AllocationEvent freed = Event(kFree, 0, 64, 3);
  freed.nanoseconds = 500;
  builder.ContinueOlder(2, freed);
  builder.ContinueOlder(1, freed);
  const AllocationTrace trace = builder.Finish();
  ASSERT_EQ(CheckAllocationTrace(trace), absl::OkStatus());
  ASSERT_EQ(trace.events.size(), 4u);
  EXPECT_EQ(trace.events[0].action, kLive);
  EXPECT_EQ(trace.events[0].size, Bytes(64));
  EXPECT_EQ(trace.events[0].stream, 3u);
  EXPECT_EQ(trace.events[0].nanoseconds, 0u);
}

TEST(AllocationTraceBuilderTest, EqualLabelsHaveOneNumber) {
  AllocationTraceBuilder builder;
  EXPECT_EQ(builder.Label(""), 0u);
  const uint32_t kv = builder.Label("kv");
  EXPECT_NE(kv, builder.Label("weights"));
  EXPECT_EQ(kv, builder.Label("kv"));
  EXPECT_EQ(builder.Finish().labels[kv], "kv");
}

}  // namespace
}  // namespace quire
