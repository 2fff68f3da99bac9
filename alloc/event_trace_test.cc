#include "quire/alloc/event_trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
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
    const auto action = static_cast<TraceAction>(i);
    names.insert(TraceActionName(action));
    EXPECT_EQ(TraceActionFromName(TraceActionName(action)), action);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(TraceAction::kMark) + 1);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(TraceActionFromName("unknown"), std::nullopt);
}

TEST(EventTraceTest, EventsSayStreamAndThread) {
  EventTrace trace(8);
  trace.Record(TraceAction::kFree, OwnerId(1), DeviceAddress(2), Bytes(3),
               Bytes(4), StreamId(5));
  std::thread([&] { RecordSize(&trace, 1); }).join();
  trace.Mark("x");
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].stream, StreamId(5));
  EXPECT_EQ(events[1].stream, StreamId());
  EXPECT_NE(events[0].thread, 0u);
  EXPECT_NE(events[1].thread, 0u);
  EXPECT_NE(events[0].thread, events[1].thread);
  EXPECT_EQ(events[2].thread, events[0].thread);
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

// Whatever thread they are of.
TEST(EventTraceTest, TheLastOfAllThreadsAreKept) {
  EventTrace trace(10);
  const auto record = [&](uint64_t from, uint64_t to) {
    std::thread([&trace, from, to] {
      for (uint64_t i = from; i < to; ++i) RecordSize(&trace, i);
    }).join();
  };
  RecordSize(&trace, 0);
  record(1, 8);
  RecordSize(&trace, 8);
  record(9, 14);
  RecordSize(&trace, 14);
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 10u);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].size, Bytes(5 + i));
  }
  EXPECT_EQ(trace.dropped(), 5u);
}

TEST(EventTraceTest, OldMarksGiveWayToo) {
  EventTrace trace(3);
  for (int i = 0; i < 5; ++i) trace.Mark(std::to_string(i));
  ASSERT_EQ(trace.Events().size(), 3u);
  EXPECT_EQ(trace.Events()[0].label, "2");
  EXPECT_EQ(trace.dropped(), 2u);
  for (uint64_t i = 0; i < 3; ++i) RecordSize(&trace, i);
  EXPECT_EQ(trace.Events()[0].action, TraceAction::kCommit);
}

// One thread may record in several traces, of which some are gone.
TEST(EventTraceTest, TracesDoNotMix) {
  auto first = std::make_unique<EventTrace>(10);
  EventTrace second(10);
  for (uint64_t i = 0; i < 4; ++i) {
    RecordSize(first.get(), i);
    RecordSize(&second, 100 + i);
  }
  ASSERT_EQ(first->Events().size(), 4u);
  ASSERT_EQ(second.Events().size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(first->Events()[i].size, Bytes(i));
    EXPECT_EQ(second.Events()[i].size, Bytes(100 + i));
  }
  // A trace that takes the place of another has its own events only.
  for (int round = 0; round < 3; ++round) {
    first.reset();
    first = std::make_unique<EventTrace>(10);
    EXPECT_TRUE(first->Events().empty());
    RecordSize(first.get(), 7);
    EXPECT_EQ(first->Events().size(), 1u);
  }
}

// Records when the thread is almost gone: after the trace's own thread-local
// data, which was made later.
TEST(EventTraceTest, AThreadMayRecordWhileItEnds) {
  struct Late {
    EventTrace* trace = nullptr;
    ~Late() {
      if (trace != nullptr) RecordSize(trace, 99);
    }
  };
  EventTrace trace(10);
  for (int i = 0; i < 2; ++i) {
    std::thread([&] {
      static thread_local Late late;
      late.trace = &trace;
      RecordSize(&trace, 1);
    }).join();
  }
  const std::vector<TraceEvent> events = trace.Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].size, Bytes(99));
  EXPECT_EQ(events[3].size, Bytes(99));
}

// Threads come and go while one reads: nothing is torn or out of order.
TEST(EventTraceTest, ReadingDoesNotDisturb) {
  EventTrace trace(500);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      uint64_t last = 0;
      for (const TraceEvent& event : trace.Events()) {
        EXPECT_GE(event.nanoseconds, last);
        last = event.nanoseconds;
        EXPECT_EQ(event.in_use.value(), 2 * event.size.value());
        EXPECT_EQ(event.address.value(), event.size.value() + 1);
      }
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (uint64_t i = 0; i < 500; ++i) RecordSize(&trace, i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  done = true;
  reader.join();
  EXPECT_EQ(trace.Events().size(), 500u);
  EXPECT_EQ(trace.dropped(), 20u * 3 * 500 - 500);
}

}  // namespace
}  // namespace quire
