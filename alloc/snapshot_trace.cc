// The allocations in a memory snapshot of Quire's own, as a trace.

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "alloc/allocation_trace_builder.h"
#include "alloc/memory_snapshot_data.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

// Events by address whose record came late: where memory that one thread freed
// was handed to another before the first had recorded so.
using LateFrees = absl::flat_hash_map<uint64_t, uint64_t>;

void Allocate(const MemorySnapshot& snapshot, const TraceEvent& event,
              AllocationEvent added, LateFrees* late,
              AllocationTraceBuilder* trace) {
  const uint64_t address = event.address.value();
  if (trace->IsLive(address)) {
    AllocationEvent freed = added;
    freed.action = AllocationAction::kFree;
    trace->ContinueOlder(address, freed);
    ++(*late)[address];
  }
  added.action = AllocationAction::kAllocate;
  added.label = trace->Label(OwnerName(snapshot, event.owner.value()));
  (void)trace->Begin(address, added);  // not live: it was seen to
}

void Free(const TraceEvent& event, AllocationEvent added, LateFrees* late,
          AllocationTraceBuilder* trace) {
  const auto found = late->find(event.address.value());
  if (found != late->end() && found->second > 0) {
    --found->second;
    return;
  }
  added.action = AllocationAction::kFree;
  trace->ContinueOlder(event.address.value(), added);
}

void AddEvent(const MemorySnapshot& snapshot, const TraceEvent& event,
              LateFrees* late, AllocationTraceBuilder* trace) {
  AllocationEvent added;
  added.nanoseconds = event.nanoseconds;
  added.size = event.size;
  added.stream = event.stream.value();
  added.thread = event.thread;
  switch (event.action) {
    case TraceAction::kAllocate:
      return Allocate(snapshot, event, added, late, trace);
    case TraceAction::kFree:
      return Free(event, added, late, trace);
    case TraceAction::kRecordStream:
      added.action = AllocationAction::kRecordStream;
      trace->ContinueOlder(event.address.value(), added);
      return;
    case TraceAction::kOutOfMemory:
      added.action = AllocationAction::kFailure;
      added.label = trace->Label(OwnerName(snapshot, event.owner.value()));
      break;
    case TraceAction::kReserve:
      added.action = AllocationAction::kReserve;
      break;
    case TraceAction::kRelease:
      added.action = AllocationAction::kRelease;
      break;
    case TraceAction::kMark:
      added.action = AllocationAction::kMark;
      added.label = trace->Label(event.label);
      break;
    default:
      return;
  }
  trace->Add(added);
}

// What had been taken from the driver before the first event that says so;
// where none does, that is what there is at the end.
Bytes ReservedBefore(const MemorySnapshot& snapshot) {
  for (const TraceEvent& event : snapshot.events) {
    if (event.action == TraceAction::kReserve) {
      return SaturatingSubtract(event.in_use, event.size);
    }
    if (event.action == TraceAction::kRelease) {
      return SaturatingAdd(event.in_use, event.size);
    }
  }
  return snapshot.memory.in_use;
}

}  // namespace

absl::StatusOr<AllocationTrace> ReadSnapshotTrace(std::string_view contents) {
  const nlohmann::json json =
      nlohmann::json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  QUIRE_ASSIGN_OR_RETURN(const MemorySnapshot snapshot,
                         MemorySnapshotFromJson(json));
  AllocationTraceBuilder trace;
  LateFrees late;
  if (!snapshot.events.empty()) {
    AllocationEvent reserved;
    reserved.action = AllocationAction::kReserve;
    reserved.nanoseconds = snapshot.events.front().nanoseconds;
    reserved.thread = snapshot.events.front().thread;
    reserved.size = ReservedBefore(snapshot);
    if (!reserved.size.zero()) trace.Add(reserved);
  }
  for (const TraceEvent& event : snapshot.events) {
    AddEvent(snapshot, event, &late, &trace);
  }
  // What is live now and was not allocated on the way is older.
  for (const AllocationInfo& allocation : snapshot.allocations) {
    if (trace.IsLive(allocation.address.value())) continue;
    AllocationEvent older;
    older.action = AllocationAction::kLive;
    older.size = allocation.requested;
    older.stream = allocation.stream.value();
    older.label = trace.Label(OwnerName(snapshot, allocation.owner.value()));
    QUIRE_RETURN_IF_ERROR(trace.Begin(allocation.address.value(), older));
  }
  return trace.Finish();
}

}  // namespace quire
