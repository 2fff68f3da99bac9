// A clock for stamps that are taken often and read seldom.
//
// A stamp is a value of the processor's time stamp counter where that runs at
// one rate in all states and on all processors (x86-64 says so, "invariant
// TSC": AMD64 Architecture Programmer's Manual 3, CPUID 8000_0007h), else of
// the steady clock, which takes twice as long. A reading puts the counter and
// the steady clock side by side at the start and now; between the two, time
// goes at one rate, so that every stamp is right to a fraction of a microsecond
// however short or long the clock has run. From one reading to the next a stamp
// may differ by as much.

#ifndef QUIRE_ALLOC_TICK_CLOCK_H_
#define QUIRE_ALLOC_TICK_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace quire {

// Thread-safe.
class TickClock {
 public:
  // Stamps to nanoseconds since the clock was made. A later stamp is never an
  // earlier time.
  class Reading {
   public:
    uint64_t Nanoseconds(uint64_t ticks) const {
      if (ticks <= start_) return 0;  // a processor may be a few ticks behind
      return static_cast<uint64_t>(static_cast<double>(ticks - start_) *
                                   nanoseconds_per_tick_);
    }

   private:
    friend class TickClock;
    uint64_t start_ = 0;
    double nanoseconds_per_tick_ = 1;
  };

  TickClock();

  uint64_t Ticks() const {
#ifdef __x86_64__
    if (has_invariant_counter_) return __builtin_ia32_rdtsc();
#endif
    return SteadyNanoseconds();
  }
  Reading Read() const;

 private:
  struct Sample {
    uint64_t ticks;
    uint64_t nanoseconds;
  };

  static uint64_t SteadyNanoseconds() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
  Sample TakeSample() const;

  const bool has_invariant_counter_;
  const Sample start_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TICK_CLOCK_H_
