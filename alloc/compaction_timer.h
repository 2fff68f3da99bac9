// What every kind of compaction reports: time, and calls to the driver.

#ifndef QUIRE_ALLOC_COMPACTION_TIMER_H_
#define QUIRE_ALLOC_COMPACTION_TIMER_H_

#include <chrono>
#include <cstdint>

#include "quire/alloc/compaction.h"
#include "quire/alloc/driver.h"

namespace quire {

// Counts from its making on. Calls of other threads are counted as well.
class CompactionTimer {
 public:
  explicit CompactionTimer(const Driver& driver)
      : driver_(&driver),
        calls_(driver.GetCallStatistics().total_count()),
        start_(std::chrono::steady_clock::now()) {}

  void Report(CompactionReport* report) const {
    report->driver_calls = driver_->GetCallStatistics().total_count() - calls_;
    report->seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_)
            .count();
  }

 private:
  const Driver* driver_;
  uint64_t calls_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_COMPACTION_TIMER_H_
