// Allocation traces in files: Quire's own CSV and memory snapshots, RAPIDS
// RMM's log, PyTorch's memory snapshots. docs/trace_formats.md describes each,
// column by column.
//
// Files are not trusted: readers check every field and end with
// kInvalidArgument, which names the line and the column (or the byte, in binary
// files), at the first that is not as it should be. What a reader returns
// passes CheckAllocationTrace.

#ifndef QUIRE_ALLOC_TRACE_FORMATS_H_
#define QUIRE_ALLOC_TRACE_FORMATS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/units.h"

namespace quire {

// The columns are those that the header names, in its order.
absl::StatusOr<AllocationTrace> ReadQuireCsv(std::string_view contents);
// REQUIRES, as for every writer: CheckAllocationTrace(trace).
std::string WriteQuireCsv(const AllocationTrace& trace);

// The log of RMM's logging_resource_adaptor. Its times have no date: they begin
// at 0 here, and a day is added at midnight. A pointer that is freed and was
// not allocated is taken for an allocation older than the log.
absl::StatusOr<AllocationTrace> ReadRmmCsv(std::string_view contents);
// What RMM's replay_benchmark reads. RMM's format has no place for alignments,
// recorded streams, reserves, marks and owners: they are left out, and
// allocations older than the trace are written as its first. Pointers are made
// up, each one once.
std::string WriteRmmCsv(const AllocationTrace& trace);

struct PyTorchTraceOptions {
  // The device whose trace is read; nullopt: the only one that has any. Where
  // several have, or the one that is wanted has none, the error lists them.
  std::optional<DeviceId> device;
};
// The events of torch.cuda.memory._dump_snapshot, a pickle. Nothing in the file
// is run: a pickle that names any class is refused. Allocations end where
// PyTorch says free_completed. Blocks that the snapshot holds, or that are
// freed, without an event that allocated them, are older than the recording.
absl::StatusOr<AllocationTrace> ReadPyTorchSnapshot(
    std::string_view contents, const PyTorchTraceOptions& options = {});
// The same for torch/cuda/_memory_viz.py and PyTorch's viewer. The format has
// no place for alignments, recorded streams, threads, marks and owners: they
// are left out. Times are microseconds, and counted from the first event by the
// reader; what is older than the trace and freed in it has the stream of its
// free. Addresses are made up, each one once. Errors: kInvalidArgument, with
// the event, for sizes and streams from 2^63 on.
absl::StatusOr<std::string> WritePyTorchSnapshot(const AllocationTrace& trace);

// The allocations in a memory snapshot of Quire's own (memory_snapshot.h),
// JSON: as far back as its events go.
absl::StatusOr<AllocationTrace> ReadSnapshotTrace(std::string_view contents);

// Any of them: told apart by how they begin. A device may be chosen in PyTorch's
// snapshots only: the others are of one, and refuse it.
absl::StatusOr<AllocationTrace> ReadAllocationTrace(
    std::string_view contents, const PyTorchTraceOptions& options = {});

}  // namespace quire

#endif  // QUIRE_ALLOC_TRACE_FORMATS_H_
