// What fragmentation_stress says of its runs: JSON, and a table.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_REPORT_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/fragmentation_stress/workload_order.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_replay.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/allocation_trace.h"

namespace quire {

// One policy on one trace: all figures are of one configuration in one run,
// and what was looked at of another one that is the same.
struct StressRun {
  std::string trace;  // the file, or the load with its seed
  std::string policy;
  const PolicyKind* kind = nullptr;
  Bytes device_memory;
  uint64_t events = 0;
  uint64_t iterations = 1;
  AllocationTraceSummary asked;  // by the trace, of any allocator
  PolicyReplayResult result;
  PolicyLooks looks;
  nlohmann::json settings;  // all that decides the figures
  // Where memory ran out: what came before, in words.
  WorkloadOrder before_failure;

  bool survived() const { return result.failures == 0; }
  bool repeats() const { return iterations > 1; }
};

// Places among the runs of one trace, from 1 on: survivors first, then the
// least reserved per requested byte; equal ones share a place. Policies that
// are not validated have none.
std::vector<std::optional<int>> RankRuns(const std::vector<StressRun>& runs);

// An array with one object per run. `ranks` is of the same runs.
std::string ToJson(const std::vector<StressRun>& runs,
                   const std::vector<std::optional<int>>& ranks);
// The runs of one trace.
std::string ToTable(const std::vector<StressRun>& runs,
                    const std::vector<std::optional<int>>& ranks);

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_REPORT_H_
