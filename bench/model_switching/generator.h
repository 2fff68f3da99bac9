// Days drawn at random: requests for models arrive, models are loaded for them
// and unloaded again, as a server does that keeps them for a while.
//
// A request takes `service_seconds` on average. Its model is loaded where it is
// not there; what was used longest ago is unloaded for it, as far as it takes;
// and a model that nobody has asked for during `keep_alive_seconds` goes as
// well. Requests that overlap run side by side, if they are of two models that
// are both there. So a day fits, except where a single model does not.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_GENERATOR_H_
#define QUIRE_BENCH_MODEL_SWITCHING_GENERATOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "bench/model_switching/scenario.h"
#include "quire/alloc/units.h"

namespace quire {

enum class ArrivalProcess {
  kPoisson,  // each request on its own, of a model of the mix
  kBursts,   // bursts on their own, of requests for one model each
};

struct GeneratorOptions {
  uint64_t requests = 0;
  ArrivalProcess arrivals = ArrivalProcess::kPoisson;
  double requests_per_hour = 60;
  double burst_size = 8;  // mean, geometric
  // Workload names with their weights in the mix.
  std::map<std::string, double> mix;
  double service_seconds = 20;  // mean, exponential
  double keep_alive_seconds = 300;
  Bytes usable;
  // Models are unloaded until what is there and the next run take no more than
  // this part of the device.
  double fill = 0.97;
  uint64_t seed = 1;
};

// "a=2,b=1,c": weights are 1 where none is given. Error: kInvalidArgument.
absl::StatusOr<std::map<std::string, double>> ParseModelMix(
    std::string_view text);

// The same for the same options and workloads. `workloads` has all of the mix.
// Errors: kInvalidArgument for a mix without weight, and for workloads without
// a phase to run.
absl::StatusOr<Scenario> GenerateScenario(
    const GeneratorOptions& options,
    const std::map<std::string, Workload>& workloads);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_GENERATOR_H_
