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
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model_switching/scenario.h"
#include "bench/model_switching/switch_strategy.h"
#include "bench/model_switching/switching_result.h"
#include "bench/policies/policy_registry.h"
#include "quire/alloc/units.h"

namespace quire {

struct SwitchingOptions {
  SwitchStrategy strategy = SwitchStrategy::kKeep;
  // What a balloon never gives up, as a part of the reserved pool.
  double pool_minimum = 0;
  // False: balloons stay at that.
  bool inflate_pools = true;
  // Of another run of the day: what failed there is dropped after the same
  // step.
  std::span<const StepResult> drop_as;
  // So often the day is played in all, one after the other: what caches have
  // learned is seen from the second one on. What the day leaves loaded is
  // unloaded in between.
  uint64_t days = 1;
  // Told of the steps done, of all days; may be null.
  std::function<void(uint64_t done)> progress;
};

// `workloads` has every one that the scenario names, by name. REQUIRES: the
// order of steps is one that ReadScenarios takes. Errors: kInvalidArgument for
// workloads and phases that do not exist; what drivers and policies refuse for
// other reasons than lack of memory.
absl::StatusOr<ScenarioResult> PlayScenario(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    const PolicySpec& policy, const SwitchingOptions& options);

// The most that is live in each step, with a policy that wastes nothing: the
// day is played without limit, on one that takes what is asked for and keeps
// nothing. Balloons have their least. `drop_as` as in SwitchingOptions. Same
// errors.
absl::StatusOr<std::vector<Bytes>> CountMinima(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    SwitchStrategy strategy, double pool_minimum,
    std::span<const StepResult> drop_as = {});

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_PLAYER_H_
