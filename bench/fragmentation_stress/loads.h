// Made-up allocation traces: what programs do to allocators, and what
// allocators do not like. The same seed gives the same trace on every machine.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_LOADS_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_LOADS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/allocation_trace.h"

namespace quire {

struct LoadOptions {
  uint64_t seed = 1;
  // The trace ends with the first step that reaches so many.
  uint64_t events = 100000;
  // About so much is live at the peak.
  Bytes live = GiB(8);
};

// OK, or kInvalidArgument for unknown names, with those known.
absl::Status CheckLoad(std::string_view name);
// Errors: those of CheckLoad.
absl::StatusOr<AllocationTrace> MakeLoad(std::string_view name,
                                         const LoadOptions& options);

// "churn, random-death, ...".
std::string KnownLoads();
// One line per load: its name and what it does.
std::string DescribeLoads();

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_LOADS_H_
