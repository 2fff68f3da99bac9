// A policy on a trace, from a new device on: figures, and what can be seen
// while the trace is played.

#ifndef QUIRE_BENCH_POLICIES_POLICY_RUN_H_
#define QUIRE_BENCH_POLICIES_POLICY_RUN_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_replay.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/units.h"

namespace quire {

struct PolicyRunOptions {
  // As in PolicyReplayOptions and PolicyLookOptions.
  uint64_t iterations = 1;
  uint64_t timeline_points = 0;
  uint64_t page_map_points = 0;  // the peak of requests is seen as well
  std::function<void(uint64_t done, uint64_t total)> progress;  // may be null
};

struct PolicyRun {
  PolicyReplayResult result;
  PolicyLooks looks;
};

// `result` is the same whatever is looked at: where looks are asked for, or
// more than one iteration, the trace is played once more for them, on a second
// device. Errors: those of SimulatedDevice::Create, PolicySpec::Create and
// ReplayOnPolicy.
absl::StatusOr<PolicyRun> RunPolicy(const AllocationTrace& trace,
                                    Bytes device_memory, const PolicySpec& spec,
                                    const PolicyRunOptions& options = {});

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_RUN_H_
