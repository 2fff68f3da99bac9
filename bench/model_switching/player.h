// Plays a scenario on a policy, and tells what each step took.
//
// Where memory cannot be had, the model whose request it was is dropped: what
// it holds is freed, its steps are passed over until it is loaded again, and
// the day goes on.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_PLAYER_H_
#define QUIRE_BENCH_MODEL_SWITCHING_PLAYER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model_switching/scenario.h"
#include "bench/model_switching/switch_strategy.h"
#include "bench/policies/policy_registry.h"
#include "quire/alloc/verdict.h"

namespace quire {

struct SwitchingOptions {
  SwitchStrategy strategy = SwitchStrategy::kKeep;
  // What a balloon never gives up, as a part of the reserved pool.
  double pool_minimum = 0;
  // False: balloons stay at that.
  bool inflate_pools = true;
  // The most that is live in each step, under this strategy, with a policy that
  // wastes nothing: a step that needs more than there is fails for capacity.
  // Empty: not known. CountMinima has it.
  std::span<const Bytes> minima;
  // Told of the steps done; may be null.
  std::function<void(uint64_t done)> progress;
};

// What it takes until models are ready: bytes at the rates of the disk and of
// the host's link, and driver calls on the virtual clock.
struct SwitchCost {
  Bytes loaded;      // from disk
  Bytes copied_out;  // to host memory
  Bytes copied_in;
  uint64_t nanoseconds = 0;

  void Add(const SwitchCost& other);
};

struct StepResult {
  Bytes peak_requested;
  Bytes peak_reserved;
  Bytes host_memory;  // that sleeping models hold, at the end
  uint64_t driver_calls = 0;
  uint64_t virtual_nanoseconds = 0;
  // Models were loaded, unloaded, put to sleep or woken up, or should have
  // been.
  bool is_switch = false;
  SwitchCost cost;  // of that
  // Of `cost`, the driver calls of waking up alone.
  uint64_t wake_nanoseconds = 0;
  // From the decision to switch to a model until its first result: the switch,
  // be it in an earlier step, and driver calls of the run until then. One for
  // each part of the step that runs for the first time after a switch to it.
  std::vector<SwitchCost> first_tokens;
  // Of the device, what neither models nor balloons had after the step, in
  // [0, 1]; only where there is a balloon.
  std::optional<double> idle;
  // Where memory ran out. kCapacity: the device has less than was live and
  // asked for, or than the step needs at its worst; else kFragmentation.
  std::optional<ShortageKind> failure;
  Bytes failed_request;
  std::string dropped;  // the model
  bool passed_over = false;
};

struct ScenarioResult {
  std::vector<StepResult> steps;
  uint64_t switches = 0;
  uint64_t switches_survived = 0;  // of these, those that did not fail
  std::optional<uint64_t> first_failed_step;
  Bytes peak_requested;
  Bytes peak_reserved;
  Bytes peak_host_memory;
  uint64_t capacity_failures = 0;
  uint64_t fragmentation_failures = 0;

  SwitchCost cost() const;
  uint64_t wake_nanoseconds() const;
  uint64_t driver_calls() const;
  uint64_t virtual_nanoseconds() const;
};

// `workloads` has every one that the scenario names, by name. Errors:
// kInvalidArgument for workloads and phases that do not exist, and for loads of
// what is loaded; what drivers and policies refuse for other reasons than lack
// of memory.
absl::StatusOr<ScenarioResult> PlayScenario(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    const PolicySpec& policy, const SwitchingOptions& options);

// SwitchingOptions::minima: the day is played without limit, on a policy that
// takes what is asked for and keeps nothing. Balloons have their least. Same
// errors.
absl::StatusOr<std::vector<Bytes>> CountMinima(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    SwitchStrategy strategy, double pool_minimum);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_PLAYER_H_
