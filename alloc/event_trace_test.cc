#include "quire/alloc/event_trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace quire {
namespace {

void RecordSize(EventTrace* trace, uint64_t size) {
  trace->Record(TraceAction::kCommit, OwnerId(2), DeviceAddress(size + 1),
                Bytes(size), Bytes(2 * size));
}

TEST(EventTraceTest, KeepsTheLastEventsInOrderOfTime) {
  EventTrace trace(4);
  for (uint64_t i = 0; i < 3; ++i) RecordSize(&trace, i);
  EXPECT_EQ(trace.Events().size(), 3u);
  EXPECT_EQ(trace.dropped(), 0u);
  for (uint64_t i = 3; i < 11; ++i) RecordSize(&trace, i);
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(trace.dropped(), 7u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].size.value(), 7 + i);
    EXPECT_EQ(events[i].in_use.value(), 2 * (7 + i));
    EXPECT_EQ(events[i].address.value(), 8 + i);
    EXPECT_EQ(events[i].owner, OwnerId(2));
    if (i > 0) {
      EXPECT_GE(events[i].nanoseconds, events[i - 1].nanoseconds);
    }
  }
}

TEST(EventTraceTest, AFullRingThatHasNotWrappedStartsAtItsFirst) {
  EventTrace trace(3);
  for (uint64_t i = 0; i < 3; ++i) RecordSize(&trace, i);
  EXPECT_EQ(trace.Events().front().size, Bytes(0));
}

TEST(EventTraceTest, MarksCarryTheirLabel) {
  EventTrace trace(4);
  trace.Mark("prefill");
  ASSERT_EQ(trace.Events().size(), 1u);
  EXPECT_EQ(trace.Events()[0].action, TraceAction::kMark);
  EXPECT_EQ(trace.Events()[0].label, "prefill");
}

TEST(EventTraceTest, ACapacityOfZeroKeepsNothing) {
  EventTrace trace(0);
  RecordSize(&trace, 1);
  trace.Mark("x");
  EXPECT_TRUE(trace.Events().empty());
  EXPECT_EQ(trace.dropped(), 0u);
}

TEST(EventTraceTest, EveryActionHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(TraceAction::kMark); ++i) {
    names.insert(TraceActionName(static_cast<TraceAction>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(TraceAction::kMark) + 1);
}

TEST(EventTraceTest, ThreadsLoseNothing) {
  EventTrace trace(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 250; ++i) RecordSize(&trace, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.Events().size(), 1000u);
  EXPECT_EQ(trace.dropped(), 0u);
}

}  // namespace
}  // namespace quire
