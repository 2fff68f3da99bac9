// Several models on one device that have work in turns: what those without work
// keep of the memory that the others need.

#ifndef QUIRE_BENCH_KV_STRESS_BURSTS_H_
#define QUIRE_BENCH_KV_STRESS_BURSTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/model_table.h"
#include "bench/serving/request_source.h"
#include "quire/alloc/units.h"

namespace quire {

struct BurstOptions {
  std::vector<StressModel> models;
  Bytes kv_memory;  // of all of them together
  Bytes page_size = MiB(2);
  uint64_t max_sequence_length = 8192;
  uint32_t rounds = 3;  // bursts of each model
  // Of one burst; all arrive at once.
  std::vector<StressRequest> requests;
  // What ends is unmapped at once, else parked for the next one.
  bool eager_reclaim = true;
  // Told of the part of the bursts that are over; may be null.
  std::function<void(double done)> progress;
};

struct BurstResult {
  std::string model;
  uint64_t served = 0;
  uint64_t preemptions = 0;
  Bytes peak_held;       // in its own bursts
  Bytes most_idle_held;  // in any step of the bursts of others, after the first
                         // burst of its own
};

// With contiguous caches that have all layers in a row.
absl::StatusOr<std::vector<BurstResult>> SimulateBursts(
    const BurstOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_KV_STRESS_BURSTS_H_
