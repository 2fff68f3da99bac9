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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model_switching/scenario.h"
#include "bench/policies/policy_registry.h"
#include "quire/alloc/verdict.h"

namespace quire {

// What becomes of the process when the set of loaded models changes.
enum class SwitchStrategy {
  kKeep,     // it goes on: everything stays where it is
  kRestart,  // it ends, and a new one loads what is to be there: the folk
             // remedy
};
const char* SwitchStrategyName(SwitchStrategy strategy);  // "keep", "restart"

struct StepResult {
  Bytes peak_requested;
  Bytes peak_reserved;
  uint64_t driver_calls = 0;
  uint64_t virtual_nanoseconds = 0;
  Bytes loaded;  // read from disk, by the loads of this step
  // Where memory ran out. kCapacity: the device has less than was live and asked
  // for, or than the step needs by the scenario; else kFragmentation.
  std::optional<ShortageKind> failure;
  Bytes failed_request;
  std::string dropped;  // the model
  bool passed_over = false;
};

struct ScenarioResult {
  std::vector<StepResult> steps;
  uint64_t switches = 0;           // loads and unloads
  uint64_t switches_survived = 0;  // of these, those that did not fail
  std::optional<uint64_t> first_failed_step;
  Bytes peak_requested;
  Bytes peak_reserved;
  uint64_t capacity_failures = 0;
  uint64_t fragmentation_failures = 0;

  Bytes loaded() const;
  uint64_t driver_calls() const;
  uint64_t virtual_nanoseconds() const;
};

// `workloads` has every one that the scenario names, by name. `progress` is
// told of the steps done; may be null. Errors: kInvalidArgument for workloads
// and phases that do not exist; what drivers and policies refuse for other
// reasons than lack of memory.
absl::StatusOr<ScenarioResult> PlayScenario(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    const PolicySpec& policy, SwitchStrategy strategy,
    const std::function<void(uint64_t done)>& progress = nullptr);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_PLAYER_H_
