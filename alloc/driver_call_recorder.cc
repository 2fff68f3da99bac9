#include "alloc/driver_call_recorder.h"

namespace quire {

void DriverCallRecorder::Record(DriverCall call, bool ok,
                                uint64_t nanoseconds) {
  Counters& counters = counters_[static_cast<size_t>(call)];
  counters.count.fetch_add(1, std::memory_order_relaxed);
  if (!ok) counters.failed.fetch_add(1, std::memory_order_relaxed);
  counters.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
}

DriverCallStatistics DriverCallRecorder::Get() const {
  DriverCallStatistics statistics;
  statistics.calls.reserve(counters_.size());
  for (size_t i = 0; i < counters_.size(); ++i) {
    const Counters& counters = counters_[i];
    statistics.calls.push_back(
        {DriverCallName(static_cast<DriverCall>(i)),
         counters.count.load(std::memory_order_relaxed),
         counters.failed.load(std::memory_order_relaxed),
         counters.nanoseconds.load(std::memory_order_relaxed)});
  }
  return statistics;
}

}  // namespace quire
