#include "alloc/tick_clock.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace quire {
namespace {

bool HasInvariantCounter() {
#ifdef __x86_64__
  constexpr unsigned kInvariant = 1u << 8;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kInvariant) != 0;
#else
  return false;
#endif
}

}  // namespace

TickClock::TickClock()
    : has_invariant_counter_(HasInvariantCounter()), start_(TakeSample()) {}

TickClock::Sample TickClock::TakeSample() const {
  // The thread may lose the processor between the two: the quickest of a few.
  constexpr int kTries = 5;
  Sample best = {};
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = Ticks();
    const uint64_t nanoseconds = SteadyNanoseconds();
    const uint64_t took = Ticks() - before;
    if (took >= shortest) continue;
    shortest = took;
    best = {before + took / 2, nanoseconds};
  }
  return best;
}

TickClock::Reading TickClock::Read() const {
  const Sample now = TakeSample();
  Reading reading;
  reading.start_ = start_.ticks;
  if (now.ticks > start_.ticks) {
    reading.nanoseconds_per_tick_ =
        static_cast<double>(now.nanoseconds - start_.nanoseconds) /
        static_cast<double>(now.ticks - start_.ticks);
  }
  return reading;
}

}  // namespace quire
