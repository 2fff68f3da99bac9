// Whatever the bytes of a trace (RMM's log, PyTorch's snapshot, Quire's CSV or
// snapshot), they are refused or make a trace that can be played, and that says
// the same after it was written and read again.

#include <string>

#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {

absl::Status FuzzAllocationTrace(std::string_view input) {
  const absl::StatusOr<AllocationTrace> trace = ReadAllocationTrace(input);
  if (!trace.ok()) return CheckRefusal(trace.status());
  QUIRE_RETURN_IF_ERROR(CheckAllocationTrace(*trace));
  const AllocationTraceSummary summary = SummarizeAllocationTrace(*trace);

  const std::string written = WriteQuireCsv(*trace);
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace again, ReadQuireCsv(written));
  // Allocations are numbered anew, once.
  const std::string rewritten = WriteQuireCsv(again);
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace twice, ReadQuireCsv(rewritten));
  const AllocationTraceSummary same = SummarizeAllocationTrace(again);
  QUIRE_RETURN_IF_ERROR(
      Property(WriteQuireCsv(twice) == rewritten &&
                   again.events.size() == trace->events.size() &&
                   same.allocations == summary.allocations &&
                   same.frees == summary.frees &&
                   same.peak_requested == summary.peak_requested &&
                   same.live_at_end == summary.live_at_end,
               "a trace that was read again is the same"));
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace through_rmm,
                         ReadRmmCsv(WriteRmmCsv(*trace)));
  const AllocationTraceSummary rmm = SummarizeAllocationTrace(through_rmm);
  return Property(rmm.allocations == summary.allocations &&
                      rmm.frees == summary.frees &&
                      rmm.peak_requested == summary.peak_requested,
                  "RMM's form has the same allocations");
}

}  // namespace quire
