// Counts a driver's calls: what GetCallStatistics reports.
//
// Thread-safe and lock-free: each number is a relaxed counter, so a snapshot
// taken beside running calls may show a call's count before its time.

#ifndef QUIRE_ALLOC_DRIVER_CALL_RECORDER_H_
#define QUIRE_ALLOC_DRIVER_CALL_RECORDER_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "quire/alloc/driver.h"
#include "quire/alloc/driver_call.h"

namespace quire {

class DriverCallRecorder {
 public:
  void Record(DriverCall call, bool ok, uint64_t nanoseconds);
  // One entry per DriverCall, in its order, calls never made included.
  DriverCallStatistics Get() const;

 private:
  struct Counters {
    std::atomic<uint64_t> count{0};
    std::atomic<uint64_t> failed{0};
    std::atomic<uint64_t> nanoseconds{0};
  };
  std::array<Counters, kDriverCallCount> counters_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_DRIVER_CALL_RECORDER_H_
