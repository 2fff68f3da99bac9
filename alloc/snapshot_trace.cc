// The allocations in a memory snapshot of Quire's own, as a trace.

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "alloc/allocation_trace_builder.h"
#include "alloc/memory_snapshot_data.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

absl::Status AddEvent(const MemorySnapshot& snapshot, const TraceEvent& event,
                      AllocationTraceBuilder* trace) {
  AllocationEvent added;
  added.nanoseconds = event.nanoseconds;
  added.size = event.size;
  added.stream = event.stream.value();
  added.thread = event.thread;
  const uint64_t address = event.address.value();
  switch (event.action) {
    case TraceAction::kAllocate:
      added.action = AllocationAction::kAllocate;
      added.label = trace->Label(OwnerName(snapshot, event.owner.value()));
      return trace->Begin(address, added);
    case TraceAction::kFree:
      added.action = AllocationAction::kFree;
      trace->ContinueOlder(address, added);
      return absl::OkStatus();
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
      return absl::OkStatus();
  }
  trace->Add(added);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AllocationTrace> ReadSnapshotTrace(std::string_view contents) {
  const nlohmann::json json =
      nlohmann::json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  QUIRE_ASSIGN_OR_RETURN(const MemorySnapshot snapshot,
                         MemorySnapshotFromJson(json));
  AllocationTraceBuilder trace;
  for (size_t i = 0; i < snapshot.events.size(); ++i) {
    const absl::Status status = AddEvent(snapshot, snapshot.events[i], &trace);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("events[", i, "]: ", std::string(status.message())));
    }
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
