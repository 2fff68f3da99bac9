// What a program asked of a device allocator, in order: recorded here or by
// another allocator, kept in files (trace_formats.h), played again
// (trace_replay.h).
//
// A trace is of one device. It says what was asked for, not where it was put:
// addresses of the recording are names of allocations and no more, and are
// replaced by dense numbers when a file is read.

#ifndef QUIRE_ALLOC_ALLOCATION_TRACE_H_
#define QUIRE_ALLOC_ALLOCATION_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

enum class AllocationAction : uint8_t {
  kLive,          // an allocation that is older than the recording
  kAllocate,      // one that succeeded
  kFree,          // from here on its memory may be handed out again
  kRecordStream,  // another stream uses the allocation
  kFailure,       // a request that could not be had
  kReserve,       // the recorded allocator took memory from its driver
  kRelease,       // and gave it back
  kMark,          // a phase of the program begins
};
const char* AllocationActionName(AllocationAction action);  // "allocate", ...

struct AllocationEvent {
  AllocationAction action = AllocationAction::kAllocate;
  // Since the trace began; 0 throughout where nobody recorded times.
  uint64_t nanoseconds = 0;
  // Of kLive, kAllocate, kFree, kRecordStream: which one, each number once.
  uint64_t allocation = 0;
  // As requested; of kReserve and kRelease the memory moved. Frees may say 0.
  Bytes size;
  Bytes alignment;  // 0: the allocator's default
  // As the recording names them: 0 is its default stream. Of kFree the stream
  // behind whose work the memory is free.
  uint64_t stream = 0;
  uint64_t thread = 0;
  // Whom an allocation is accounted to, or what a mark says: an index into
  // AllocationTrace::labels.
  uint32_t label = 0;
};

struct AllocationTrace {
  // kLive first, then in order of time.
  std::vector<AllocationEvent> events;
  // labels[0] is "": no label.
  std::vector<std::string> labels = {std::string()};
};

// What a trace asks of any allocator, whatever that does. Sums stop at
// 2^64 - 1.
struct AllocationTraceSummary {
  uint64_t allocations = 0;  // those before the recording included
  uint64_t frees = 0;
  uint64_t failures = 0;
  uint64_t streams = 0;
  uint64_t threads = 0;
  Bytes peak_requested;  // the least that any allocator needs
  Bytes largest;         // request
  // The most that the recorded allocator held, as far as it was recorded: 0
  // where no event tells.
  Bytes peak_reserved;
  Bytes live_at_end;
};
// REQUIRES: CheckAllocationTrace(trace). O(events).
AllocationTraceSummary SummarizeAllocationTrace(const AllocationTrace& trace);

// OK where the trace can be played: kLive comes first, allocations begin once
// and are freed at most once, every label exists, alignments are powers of two.
// Else kInvalidArgument, with the event.
absl::Status CheckAllocationTrace(const AllocationTrace& trace);

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATION_TRACE_H_
