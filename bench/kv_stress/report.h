// What kv_stress found, as a table and as JSON.

#ifndef QUIRE_BENCH_KV_STRESS_REPORT_H_
#define QUIRE_BENCH_KV_STRESS_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/kv_stress/bursts.h"
#include "bench/serving/simulation.h"

namespace quire {

// A column for each result.
std::string FormatResults(const std::vector<SimulationResult>& results);
nlohmann::json ResultToJson(const SimulationResult& result);

// A row for each model, and the same as JSON.
std::string FormatBursts(Bytes kv_memory,
                         const std::vector<BurstResult>& results);
nlohmann::json BurstsToJson(Bytes kv_memory,
                            const std::vector<BurstResult>& results);

}  // namespace quire

#endif  // QUIRE_BENCH_KV_STRESS_REPORT_H_
