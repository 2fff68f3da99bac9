// What model_switching says of real models: JSON, and a table.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_REAL_REPORT_H_
#define QUIRE_BENCH_MODEL_SWITCHING_REAL_REPORT_H_

#include <string>
#include <vector>

#include "bench/model_switching/real_models.h"
#include "nlohmann/json_fwd.hpp"

namespace quire {

// Whether every model has said what it says alone.
bool AllEqual(const std::vector<RealModel>& models, const RealResult& result);

// An array with one object for each strategy, each on a line of its own, with
// `settings` in it.
std::string RealToJson(const std::vector<RealModel>& models,
                       const std::vector<RealResult>& results,
                       const nlohmann::json& settings);
std::string RealToTable(const std::vector<RealModel>& models,
                        const std::vector<RealResult>& results);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_REAL_REPORT_H_
