#include "alloc/tick_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace quire {
namespace {

using std::chrono::steady_clock;

uint64_t Since(steady_clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() -
                                                           start)
          .count());
}

// The steady clock read before and after a stamp bounds it. A processor that is
// taken away between two readings widens what is allowed, never the other way.
TEST(TickClockTest, StampsAreWhatTheSteadyClockSays) {
  constexpr uint64_t kOff =
      1'000'000;  // of a counter at a wrong rate: far more
  const steady_clock::time_point before_start = steady_clock::now();
  const TickClock clock;
  const uint64_t start_took = Since(before_start);
  struct Stamp {
    uint64_t ticks, earliest, latest;
  };
  std::vector<Stamp> stamps;
  for (int i = 0; i < 6; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t earliest = Since(before_start);
    const uint64_t ticks = clock.Ticks();
    stamps.push_back({ticks, earliest, Since(before_start)});
  }
  const TickClock::Reading reading = clock.Read();
  for (const Stamp& stamp : stamps) {
    const uint64_t nanoseconds = reading.Nanoseconds(stamp.ticks);
    EXPECT_GE(nanoseconds + start_took + kOff, stamp.earliest);
    EXPECT_LE(nanoseconds, stamp.latest + kOff);
  }
}

TEST(TickClockTest, TimeNeverGoesBack) {
  const TickClock clock;
  std::vector<uint64_t> ticks;
  for (int i = 0; i < 1000; ++i) ticks.push_back(clock.Ticks());
  const TickClock::Reading reading = clock.Read();
  uint64_t last = 0;
  for (const uint64_t tick : ticks) {
    EXPECT_GE(reading.Nanoseconds(tick), last);
    last = reading.Nanoseconds(tick);
  }
  EXPECT_EQ(reading.Nanoseconds(0), 0u);
}

}  // namespace
}  // namespace quire
