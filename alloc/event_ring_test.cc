#include "alloc/event_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace quire {
namespace {

// Every word follows from one number, so that a torn event shows.
RingEvent Numbered(uint64_t n) {
  RingEvent event;
  event.ticks = n;
  event.action = static_cast<TraceAction>(n % 14);
  event.owner = OwnerId(static_cast<uint32_t>(3 * n));
  event.thread = static_cast<uint32_t>(n & 0xffffff);
  event.address = DeviceAddress(5 * n);
  event.size = Bytes(7 * n);
  event.in_use = Bytes(11 * n);
  event.stream = StreamId(13 * n);
  return event;
}

void ExpectNumbered(const RingEvent& event, uint64_t n) {
  const RingEvent expected = Numbered(n);
  EXPECT_EQ(event.ticks, n);
  EXPECT_EQ(event.action, expected.action) << n;
  EXPECT_EQ(event.owner, expected.owner) << n;
  EXPECT_EQ(event.thread, expected.thread) << n;
  EXPECT_EQ(event.address, expected.address) << n;
  EXPECT_EQ(event.size, expected.size) << n;
  EXPECT_EQ(event.in_use, expected.in_use) << n;
  EXPECT_EQ(event.stream, expected.stream) << n;
}

TEST(EventRingTest, KeepsTheLastOfAnyNumber) {
  for (const size_t capacity : {1, 2, 7, 255, 256, 257, 1000}) {
    EventRing ring(capacity);
    uint64_t pushed = 0;
    for (const uint64_t target : {uint64_t{0}, uint64_t{1}, capacity - 1,
                                  capacity, capacity + 1, 3 * capacity + 2}) {
      while (pushed < target) ring.Push(Numbered(pushed++));
      EXPECT_EQ(ring.count(), pushed);
      std::vector<RingEvent> events;
      ring.AppendTo(&events);
      ASSERT_EQ(events.size(), std::min<uint64_t>(pushed, capacity));
      for (size_t i = 0; i < events.size(); ++i) {
        ExpectNumbered(events[i], pushed - events.size() + i);
      }
    }
  }
}

TEST(EventRingTest, ReadingAddsToWhatIsThere) {
  EventRing ring(2);
  for (uint64_t n = 0; n < 3; ++n) ring.Push(Numbered(n));
  std::vector<RingEvent> events = {Numbered(100)};
  ring.AppendTo(&events);
  ASSERT_EQ(events.size(), 3u);
  ExpectNumbered(events[0], 100);
  ExpectNumbered(events[2], 2);
}

TEST(EventRingTest, ReadersSeeWholeEventsInOrderWhileOneWrites) {
  constexpr uint64_t kEvents = 200000;
  EventRing ring(64);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t n = 0; n < kEvents; ++n) ring.Push(Numbered(n));
    done = true;
  });
  bool last_round = false;
  while (!last_round) {
    last_round = done;
    std::vector<RingEvent> events;
    ring.AppendTo(&events);
    ASSERT_LE(events.size(), 64u);
    for (size_t i = 0; i < events.size(); ++i) {
      ExpectNumbered(events[i], events[i].ticks);
      if (i > 0) {
        EXPECT_EQ(events[i].ticks, events[i - 1].ticks + 1);
      }
    }
  }
  writer.join();
}

TEST(EventRingTest, IsHeldByOneAtATime) {
  EventRing ring(1);
  EXPECT_TRUE(ring.TryHold());
  EXPECT_FALSE(ring.TryHold());
  ring.LetGo();
  EXPECT_TRUE(ring.TryHold());
}

}  // namespace
}  // namespace quire
