// What serving_replay found: JSON lines, and a table.

#ifndef QUIRE_BENCH_SERVING_REPLAY_REPORT_H_
#define QUIRE_BENCH_SERVING_REPLAY_REPORT_H_

#include <string>
#include <vector>

#include "bench/serving/simulation.h"
#include "bench/serving_replay/service.h"
#include "nlohmann/json_fwd.hpp"
#include "quire/alloc/units.h"

namespace quire {

// One cache at one load.
struct ServingRun {
  std::string trace;
  double load_factor = 1;
  uint64_t requests = 0;
  uint64_t too_long = 0;  // left out of the trace
  Bytes kv_memory;
  ServiceObjective objective;
  SimulationResult result;
  ServiceQuality quality;
  // Why it served nothing: its memory has no room for a request.
  std::string failure;
};

// One object, on one line, with `settings` in it.
std::string ServingToJson(const ServingRun& run,
                          const nlohmann::json& settings);
std::string ServingToTable(const std::vector<ServingRun>& runs);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_REPLAY_REPORT_H_
