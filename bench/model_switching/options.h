// What model_switching is told on its command line.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_OPTIONS_H_
#define QUIRE_BENCH_MODEL_SWITCHING_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model_switching/generator.h"
#include "bench/model_switching/real_models.h"
#include "bench/model_switching/report.h"
#include "bench/model_switching/switch_strategy.h"
#include "bench/policies/policy_registry.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
}

namespace quire {

// As given.
struct SwitchingArguments {
  std::string file;
  std::string traces;
  std::vector<std::string> names;
  std::string policies = "quire,pytorch,pytorch-expandable";
  std::string strategies;
  std::string disk_rate = "2GB";
  std::string host_rate = "24GB";
  double pool_minimum = 0;
  uint64_t days = 1;
  GeneratorOptions generator;  // no requests: days are read from a file
  std::string arrivals = "poisson";
  std::string mix;
  // Empty: 16 GiB for days, and what is needed for real models.
  std::string device_memory;
  std::string write;
  RealOptions real;  // no models: days are played
  std::string page_size = "2MiB";
  bool json = false;
};

void AddArguments(CLI::App* app, SwitchingArguments* arguments);

// As meant.
struct SwitchingPlan {
  std::vector<PolicySpec> policies;
  std::vector<SwitchStrategy> strategies;
  SwitchRates rates;
  GeneratorOptions generator;
  RealOptions real;
};
// Errors, for which the command line is to blame: kInvalidArgument with the
// option.
absl::StatusOr<SwitchingPlan> MakePlan(const SwitchingArguments& arguments);
// kInvalidArgument where an option of `app` was given that changes nothing.
absl::Status CheckIdle(const CLI::App& app, const SwitchingArguments& arguments,
                       const SwitchingPlan& plan);

// All that decides what a run gives.
nlohmann::json SettingsToJson(const SwitchingArguments& arguments);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_OPTIONS_H_
