// What kv_stress found, as a table and as JSON.

#ifndef QUIRE_BENCH_KV_STRESS_REPORT_H_
#define QUIRE_BENCH_KV_STRESS_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/kv_stress/attention_speed.h"
#include "bench/kv_stress/bursts.h"
#include "bench/serving/simulation.h"

namespace quire {

// Of one kind of cache, at one cost of creating pages.
struct StressResult {
  SimulationResult simulation;
  AttentionSpeed attention;  // 0: it was not measured
  // Why it served nothing, or not all: its memory has no room for a request.
  std::string failure;
};

// A column for each result.
std::string FormatResults(const std::vector<StressResult>& results);
nlohmann::json ResultToJson(const StressResult& result);

// A row for each model, and the same as JSON.
std::string FormatBursts(Bytes kv_memory,
                         const std::vector<BurstResult>& results);
nlohmann::json BurstsToJson(Bytes kv_memory,
                            const std::vector<BurstResult>& results);

}  // namespace quire

#endif  // QUIRE_BENCH_KV_STRESS_REPORT_H_
