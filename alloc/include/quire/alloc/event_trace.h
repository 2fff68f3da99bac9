// The last events of a runtime, for timelines and verdicts: a fixed ring that
// costs one lock and one store per event.

#ifndef QUIRE_ALLOC_EVENT_TRACE_H_
#define QUIRE_ALLOC_EVENT_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

enum class TraceAction : uint8_t {
  kAllocate,  // DeviceAllocator
  kFree,
  kCommit,    // pages that became live
  kDecommit,  // pages given up, cooling or unmapped
  kOutOfMemory,
  kMark,  // a phase of the program: "load", "prefill"
};
const char* TraceActionName(TraceAction action);  // "allocate", ...

struct TraceEvent {
  uint64_t nanoseconds;  // since the trace began, steady clock
  TraceAction action;
  OwnerId owner;
  DeviceAddress address;
  Bytes size;
  // Live bytes of the device after the event: what a timeline draws.
  Bytes in_use;
  std::string label;  // of marks, else empty
};

// Thread-safe.
class EventTrace {
 public:
  // Keeps the last `capacity` events; 0 keeps none.
  explicit EventTrace(size_t capacity);

  void Record(TraceAction action, OwnerId owner, DeviceAddress address,
              Bytes size, Bytes in_use);
  // Marks carry no numbers: a timeline draws them at their time.
  void Mark(std::string label);
  // In order of time.
  std::vector<TraceEvent> Events() const;
  // Events that no longer fit.
  uint64_t dropped() const;

 private:
  void Add(TraceEvent event);

  const size_t capacity_;
  const uint64_t start_;
  mutable Mutex mutex_;
  std::vector<TraceEvent> ring_ ABSL_GUARDED_BY(mutex_);
  uint64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_EVENT_TRACE_H_
