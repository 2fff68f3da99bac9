// Serving requests from one cache, on a software device and a virtual clock.
//
// Pages carry no memory, so that any device fits on any machine. A step takes
// what the driver calls that it waits for cost, and then what the model
// computes (cost_model.h) or what is called meanwhile, whichever is longer:
// what ended is released, who runs next is admitted, and pages are mapped
// ahead.

#ifndef QUIRE_BENCH_SERVING_SIMULATION_H_
#define QUIRE_BENCH_SERVING_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/cache_kind.h"
#include "bench/serving/cost_model.h"
#include "bench/serving/model_table.h"
#include "bench/serving/request_source.h"
#include "quire/alloc/units.h"
#include "quire/paging/scheduler.h"

namespace quire {

struct SimulationOptions {
  StressModel model = {};
  KvDType dtype = KvDType::kF16;
  CacheSettings cache;
  Bytes kv_memory;  // what the cache may have
  SchedulerOptions scheduler;
  std::string policy = "youngest";
  bool prepare_pages = false;  // all of kv_memory is created at the start
  bool prefixes = false;       // equal blocks of prompts are equal tokens
  // The clock of arrivals, and what means are over: steps, else virtual time.
  bool clock_is_steps = false;
  // All have arrived and so many run: memory is trimmed and the rest weighed.
  uint32_t idle_sequences = 16;
  // Called after each step with the part of the requests that are served; may
  // be null.
  std::function<void(double done)> progress;
};

// In seconds, a hundred years: the clock counts nanoseconds in 64 bits.
inline constexpr double kLongestVirtualDay = 100 * 365.25 * 86400;

// Of one request: when it came and when its tokens were there, on the virtual
// clock, whatever the clock of arrivals.
struct RequestTiming {
  double arrival = 0;
  double first_token = 0;
  double last_token = 0;
  uint64_t output = 0;  // tokens

  double time_to_first_token() const { return first_token - arrival; }
  // Mean of the tokens behind the first one; 0 where there are none.
  double time_per_output_token() const {
    return output < 2
               ? 0
               : (last_token - first_token) / static_cast<double>(output - 1);
  }
};

struct SimulationResult {
  std::string cache;
  double create_page_us = 0;
  double virtual_seconds = 0;
  uint64_t steps = 0;
  uint64_t served = 0;
  SchedulerStatistics scheduler;
  uint64_t prompt_tokens = 0;  // computed, those computed again included
  uint64_t decoded_tokens = 0;

  // Means over the clock.
  double running = 0;
  double live_bytes = 0;    // keys and values that were computed
  double needed_bytes = 0;  // CacheUse
  // What others cannot have: parked and mapped ahead included, and of a pool of
  // blocks those in use, since the pool as a whole is a setting.
  double held_bytes = 0;
  // held / live: 1 where nothing is wasted. Below 1 where sequences share.
  double waste_ratio() const {
    return live_bytes > 0 ? held_bytes / live_bytes : 0;
  }
  Bytes peak_held;
  PageCount peak_pages;

  // Calls that change pages and addresses: those in a step, which waits for
  // them, and those that are made while the device computes.
  uint64_t driver_calls = 0;
  double driver_ms = 0;
  uint64_t driver_calls_meanwhile = 0;
  double driver_ms_meanwhile = 0;
  // By which the latter outlast what the device computes: steps wait for that
  // as well.
  double overrun_ms = 0;
  double longest_wait_ms = 0;  // of one step, for calls of either kind
  // Of requests that were swapped out, and back; steps wait for what is copied
  // before them, and not for what is copied while the device computes, unless
  // it outlasts that.
  Bytes swapped_out;
  Bytes swapped_in;
  double copy_ms = 0;
  uint64_t decode_steps = 0;
  uint64_t decode_steps_waiting = 0;  // for calls of either kind
  uint64_t decode_steps_overrun = 0;  // of these, for calls made meanwhile

  // Of this machine, medians: Schedule and Complete of steps that wait for no
  // driver call, and Step of the cache for 256 sequences with nothing to map.
  double host_us_per_step = 0;
  double host_us_per_cache_step = 0;

  // With idle_sequences left, after Trim.
  Bytes idle_held;
  Bytes idle_needed;  // the pages, or blocks, that its tokens need
  Bytes idle_live;

  std::vector<RequestTiming> timings;  // in the order of arrival
};

// Every request must fit in the longest sequence. Arrivals are in order, and
// in times that the virtual clock reaches (kLongestVirtualDay).
absl::StatusOr<SimulationResult> Simulate(
    const SimulationOptions& options, const CostModel& costs,
    double create_page_us, const CacheKind& kind,
    const std::vector<StressRequest>& requests);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_SIMULATION_H_
