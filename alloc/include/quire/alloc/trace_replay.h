// Plays an allocation trace against a DeviceAllocator and measures what that
// costs in memory, driver calls and time.
//
// Stream-exact: each stream of the trace is a stream of the driver, memory is
// allocated and freed on the streams that the trace says, and recorded streams
// are recorded. No work is queued on them: a replay is about the allocator.

#ifndef QUIRE_ALLOC_TRACE_REPLAY_H_
#define QUIRE_ALLOC_TRACE_REPLAY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"

namespace quire {

struct TraceReplayOptions {
  // Each thread of the trace is a thread of its own, so that memory is freed by
  // threads other than those that allocated it. Events still happen one after
  // the other in the order of the trace, whoever plays them: the outcome does
  // not depend on chance.
  bool use_threads = false;
  // The pool is looked at after each allocation, for the peak of mapped memory.
  // Switched off where time is measured.
  bool measure_peak = true;
  // Tries what failed in the recording too, and frees it at once where it can
  // be had: would this allocator have served it?
  bool try_failures = false;
  // Where owners of the trace are registered; null: all memory is unnamed.
  OwnerRegistry* owners = nullptr;
};

struct TraceReplayResult {
  uint64_t allocations = 0;  // that succeeded, those before the recording too
  uint64_t frees = 0;
  uint64_t failures = 0;  // for lack of memory; their frees are passed over
  absl::Status first_failure;
  // Of TraceReplayOptions::try_failures.
  uint64_t failures_served = 0;

  // Sums of what was asked for and of physical pages, each counted once however
  // often it is mapped. Mapped memory is what is under addresses: live, kept by
  // the allocator or cooling; pages in use are these and prepared ones.
  Bytes peak_requested;
  Bytes peak_mapped;  // 0 without measure_peak
  Bytes peak_in_use;  // since the pool was made

  // Calls that the events caused, by name; those that were never made are left
  // out. Streams of the replay itself are not counted.
  std::vector<std::pair<std::string, uint64_t>> driver_calls;
  // Spent on the events after the recording began, and how many these were
  // (allocations, frees, recorded streams). With threads, handing over from one
  // to the next is part of it.
  uint64_t nanoseconds = 0;
  uint64_t operations = 0;
};

// `allocator` is on `memory`, and nobody else uses either meanwhile. Frees what
// it allocated, whatever happens. Lack of memory is part of the result; errors
// are those of CheckAllocationTrace and the driver's.
absl::StatusOr<TraceReplayResult> ReplayTrace(
    const AllocationTrace& trace, DeviceMemory* memory,
    DeviceAllocator* allocator, const TraceReplayOptions& options = {});

}  // namespace quire

#endif  // QUIRE_ALLOC_TRACE_REPLAY_H_
