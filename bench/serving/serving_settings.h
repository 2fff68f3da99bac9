// The settings of a simulation of serving in JSON: what the arguments came to.

#ifndef QUIRE_BENCH_SERVING_SERVING_SETTINGS_H_
#define QUIRE_BENCH_SERVING_SERVING_SETTINGS_H_

#include "bench/serving/cost_model.h"
#include "bench/serving/serving_arguments.h"
#include "bench/serving/simulation.h"
#include "nlohmann/json.hpp"

namespace quire {

// All but the trace, the load and the caches, with the defaults of what was not
// given. `simulation` is of these arguments.
nlohmann::json ServingSettingsToJson(const ServingArguments& arguments,
                                     const SimulationOptions& simulation,
                                     const CostModel& costs);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_SERVING_SETTINGS_H_
