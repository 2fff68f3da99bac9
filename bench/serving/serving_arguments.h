// What programs that simulate serving are told alike, and what becomes of it:
// requests, caches and the settings of a simulation.

#ifndef QUIRE_BENCH_SERVING_SERVING_ARGUMENTS_H_
#define QUIRE_BENCH_SERVING_SERVING_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/cache_kind.h"
#include "bench/serving/request_source.h"
#include "bench/serving/simulation.h"
#include "quire/alloc/units.h"

namespace CLI {
class App;
}

namespace quire {

// As given on a command line.
struct ServingArguments {
  std::string trace;  // empty: random requests
  std::string model;  // empty: the shape below, and no weights
  uint32_t layers = 36;
  uint32_t kv_heads = 8;
  uint32_t head_dim = 128;
  std::string device_memory = "8GiB";
  double memory_utilization = 0.9;
  std::string page_size = "2MiB";
  std::string headroom = "256MiB";
  std::string dtype = "f16";
  std::vector<std::string> caches;
  double waste_limit = 0.02;
  uint64_t map_ahead = 0;
  std::optional<uint32_t> page_ahead;
  bool park = false;
  std::optional<double> max_parked;  // with park, a part of the memory
  std::string swap_space = "0";
  RandomRequestOptions random;
  uint64_t requests = 0;
  double load_factor = 1;
  bool saturate = false;
  double arrivals_per_second = 1;
  uint64_t max_model_len = 0;
  uint32_t max_sequences = 256;
  uint32_t max_batched_tokens = 2048;
  std::optional<double> halve_above;  // of CompleteBatchLevels
  std::optional<double> grow_below;
  std::string policy = "youngest";
  std::string costs = QUIRE_SOURCE_DIR "/bench/costs/a100-80g.json";
};

// Without traces and load factors: one for one program, several for another.
void AddServingArguments(CLI::App* app, ServingArguments* arguments);
// kInvalidArgument, which is wrong usage, for what is wrong of the arguments
// beside each other, whatever the requests are, and for options of `app` that
// would change nothing. `random`: there is no trace. `caches` are their names.
absl::Status CheckServingArguments(const CLI::App& app,
                                   const ServingArguments& arguments,
                                   bool random,
                                   const std::vector<std::string>& caches);

struct ServingWorkload {
  std::vector<StressRequest> requests;
  uint64_t too_long = 0;  // left out
};
// Requests of at most `max_model_len` tokens, at the pace of the arguments.
// Errors: those of ReadTrace, and kInvalidArgument where none is left.
absl::StatusOr<ServingWorkload> MakeServingWorkload(
    const ServingArguments& arguments, uint64_t max_model_len);

// What weights and caches may have of the device.
Bytes UsableMemory(const ServingArguments& arguments);

// Error: kInvalidArgument where weights leave nothing.
absl::StatusOr<SimulationOptions> MakeSimulation(
    const ServingArguments& arguments);

// Kinds by name; contiguous:auto may waste `waste_limit`, a share, of what
// these requests keep. Error: kInvalidArgument for what is no kind.
absl::StatusOr<std::vector<CacheKind>> MakeCacheKinds(
    const std::vector<std::string>& names, double waste_limit,
    const SimulationOptions& simulation,
    const std::vector<StressRequest>& requests);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_SERVING_ARGUMENTS_H_
