// The last events of a runtime, for timelines, verdicts and replay.
//
// Recording is cheap enough to stay on: each thread writes into a ring of its
// own, without a lock and without a word shared with another thread; a reader
// puts the rings together. What a thread recorded stays when it ends.

#ifndef QUIRE_ALLOC_EVENT_TRACE_H_
#define QUIRE_ALLOC_EVENT_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

class EventRing;
class TickClock;

// Events of a device as a whole (kReserve to kWake) have the first of its
// addresses.
enum class TraceAction : uint8_t {
  // Of DeviceAllocator. What a relocation pass moves is freed, and allocated
  // elsewhere.
  kAllocate,
  kFree,           // asked for: streams may still use the memory
  kFreeCompleted,  // of a free on streams: they are done with it. Not recorded
                   // where the stream has it again first, nor where its pages
                   // were given up (kDecommit)
  kRecordStream,   // `stream` uses the allocation too
  kOutOfMemory,
  // Of DeviceMemory.
  kCommit,      // pages that became live
  kDecommit,    // pages given up, cooling or unmapped
  kReserve,     // physical memory taken from the driver
  kRelease,     // and given back
  kLimit,       // the limit is `size` from here on
  kSoftLimit,   // so is the soft one; 0, here and below: there is none
  kOwnerLimit,  // the owner's hard limit
  kOwnerSoftLimit,
  kOwnerMinimum,  // what is reserved for it
  // Compaction: `size` is what it freed, of kWake what came back.
  kTrim,      // to the driver, DeviceMemory::Trim
  kMesh,      // by a DeviceAllocator, to its DeviceMemory; so
  kRelocate,  // does this. The owner is whose memory was looked at
  kSleep,     // the owner, with all below it
  kWake,
  kMark,  // a phase of the program: "load", "prefill"
};
// "allocate", "free", ...: as snapshots call it.
const char* TraceActionName(TraceAction action);
std::optional<TraceAction> TraceActionFromName(std::string_view name);

struct TraceEvent {
  // Since the trace began, by the steady clock, to a fraction of a microsecond.
  uint64_t nanoseconds = 0;
  TraceAction action = TraceAction::kMark;
  OwnerId owner;
  DeviceAddress address;
  Bytes size;
  // After the event: of kCommit and kDecommit the live bytes of the device, of
  // kReserve and kRelease its physical memory in use. Else whatever the
  // recorder said, 0 for nothing.
  Bytes in_use;
  StreamId stream;
  // Which thread of the process, numbered from 1 in order of their first event;
  // 0: not known.
  uint32_t thread = 0;
  std::string label;  // of marks, else empty
};

// Thread-safe.
class EventTrace {
 public:
  // Keeps the last `capacity` events; 0 keeps none. Each thread that records
  // takes memory for as many as it records, at most `capacity`.
  explicit EventTrace(size_t capacity);
  ~EventTrace();
  EventTrace(const EventTrace&) = delete;
  EventTrace& operator=(const EventTrace&) = delete;

  // Wait-free, apart from the first event of a thread. Never fails: what cannot
  // be kept counts as dropped.
  void Record(TraceAction action, OwnerId owner, DeviceAddress address,
              Bytes size, Bytes in_use, StreamId stream = StreamId());
  // Marks carry no numbers: a timeline draws them at their time.
  void Mark(std::string label);

  // In order of time. Where threads record meanwhile, the oldest few may be
  // missing. O(n log n).
  std::vector<TraceEvent> Events() const;
  size_t capacity() const { return capacity_; }
  // Events that no longer fit.
  uint64_t dropped() const;

 private:
  struct TraceMark {
    uint64_t ticks;
    uint32_t thread;
    std::string label;
  };

  // The ring of the calling thread; null where there can be none any more.
  EventRing* FindRing();
  uint64_t Total() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;
  const uint64_t serial_;  // of all traces of the process: none is used twice
  const std::unique_ptr<TickClock> clock_;
  mutable Mutex mutex_;
  // Shared with the threads that write them.
  std::vector<std::shared_ptr<EventRing>> rings_ ABSL_GUARDED_BY(mutex_);
  // Written under the lock, by threads that are ending.
  std::shared_ptr<EventRing> late_ring_ ABSL_GUARDED_BY(mutex_);
  std::deque<TraceMark> marks_ ABSL_GUARDED_BY(mutex_);
  uint64_t total_marks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_EVENT_TRACE_H_
