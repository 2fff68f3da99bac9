// Page maps of a run as JSON, folded to what can be drawn and read.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_PAGE_MAP_REPORT_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_PAGE_MAP_REPORT_H_

#include "bench/policies/policy_replay.h"
#include "nlohmann/json.hpp"

namespace quire {

// "at_peak", "at_failure" (or null) and "at_end": the pages of the device's
// memory in order, in 4,096 cells at most. "heat": the same in 48 bands at most
// at each look. All of a run on one scale. docs/experiments.md has the fields.
// REQUIRES: page maps were asked for.
nlohmann::json PageMapsToJson(const PolicyLooks& looks);

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_PAGE_MAP_REPORT_H_
