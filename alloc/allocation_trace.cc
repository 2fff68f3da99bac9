#include "quire/alloc/allocation_trace.h"

#include <algorithm>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace quire {
namespace {

bool Begins(AllocationAction action) {
  return action == AllocationAction::kLive ||
         action == AllocationAction::kAllocate;
}

}  // namespace

const char* AllocationActionName(AllocationAction action) {
  switch (action) {
    case AllocationAction::kLive:
      return "live";
    case AllocationAction::kAllocate:
      return "allocate";
    case AllocationAction::kFree:
      return "free";
    case AllocationAction::kRecordStream:
      return "record stream";
    case AllocationAction::kFailure:
      return "failure";
    case AllocationAction::kReserve:
      return "reserve";
    case AllocationAction::kRelease:
      return "release";
    case AllocationAction::kMark:
      return "mark";
  }
  return "unknown";
}

AllocationTraceSummary SummarizeAllocationTrace(const AllocationTrace& trace) {
  AllocationTraceSummary summary;
  absl::flat_hash_map<uint64_t, Bytes> live;
  std::set<uint64_t> streams;
  std::set<uint64_t> threads;
  Bytes requested;
  Bytes reserved;
  for (const AllocationEvent& event : trace.events) {
    switch (event.action) {
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
        ++summary.allocations;
        live[event.allocation] = event.size;
        requested = SaturatingAdd(requested, event.size);
        summary.largest = std::max(summary.largest, event.size);
        break;
      case AllocationAction::kFree: {
        ++summary.frees;
        // Frees need not say the size.
        const auto ended = live.find(event.allocation);
        requested = SaturatingSubtract(requested, ended->second);
        live.erase(ended);
        break;
      }
      case AllocationAction::kFailure:
        ++summary.failures;
        break;
      case AllocationAction::kReserve:
        reserved = SaturatingAdd(reserved, event.size);
        break;
      case AllocationAction::kRelease:
        reserved = SaturatingSubtract(reserved, event.size);
        break;
      case AllocationAction::kRecordStream:
      case AllocationAction::kMark:
        break;
    }
    if (event.action != AllocationAction::kMark) {
      streams.insert(event.stream);
      threads.insert(event.thread);
    }
    summary.peak_requested = std::max(summary.peak_requested, requested);
    summary.peak_reserved = std::max(summary.peak_reserved, reserved);
  }
  summary.streams = streams.size();
  summary.threads = threads.size();
  summary.live_at_end = requested;
  return summary;
}

absl::Status CheckAllocationTrace(const AllocationTrace& trace) {
  enum class State { kLive, kFreed };
  absl::flat_hash_map<uint64_t, State> states;
  bool recording = false;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const AllocationEvent& event = trace.events[i];
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("event ", i, " (", AllocationActionName(event.action),
                       "): ", what...));
    };
    if (event.label >= trace.labels.size()) {
      return error("label ", event.label, " of ", trace.labels.size());
    }
    if (!event.alignment.zero() && !IsPowerOfTwo(event.alignment.value())) {
      return error("alignment ", event.alignment.value(),
                   " is not a power of two");
    }
    if (event.action == AllocationAction::kLive && recording) {
      return error("comes after what was recorded");
    }
    recording = event.action != AllocationAction::kLive;
    const auto state = states.find(event.allocation);
    if (Begins(event.action)) {
      if (state != states.end()) {
        return error("allocation ", event.allocation, " begins twice");
      }
      states[event.allocation] = State::kLive;
    } else if (event.action == AllocationAction::kFree ||
               event.action == AllocationAction::kRecordStream) {
      if (state == states.end() || state->second != State::kLive) {
        return error("allocation ", event.allocation, " is not live");
      }
      if (event.action == AllocationAction::kFree) {
        state->second = State::kFreed;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
