#include "bench/model_switching/player.h"

#include "bench/model_switching/day.h"
#include "bench/model_switching/ideal_policy.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Says of each failure why: `minima` is the least that each step needs, where
// the same was dropped before.
void Judge(std::span<const Bytes> minima, Bytes usable,
           ScenarioResult* result) {
  for (size_t i = 0; i < result->steps.size(); ++i) {
    StepResult& step = result->steps[i];
    for (const SwitchFailure& failure : step.failures) {
      const bool capacity = failure.over_device || minima[i] > usable;
      ++(capacity ? result->capacity_failures : result->fragmentation_failures);
      if (step.failure) continue;
      step.failure =
          capacity ? ShortageKind::kCapacity : ShortageKind::kFragmentation;
    }
  }
}

}  // namespace

absl::StatusOr<ScenarioResult> PlayScenario(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    const PolicySpec& policy, const SwitchingOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(
      ScenarioResult result,
      SwitchingDay(scenario, workloads, policy, options).Run());
  if (!result.first_failed_step) return result;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> minima,
                         CountMinima(scenario, workloads, options.strategy,
                                     options.pool_minimum, result.steps));
  Judge(minima, scenario.usable, &result);
  return result;
}

absl::StatusOr<std::vector<Bytes>> CountMinima(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    SwitchStrategy strategy, double pool_minimum,
    std::span<const StepResult> drop_as) {
  Scenario unlimited = scenario;
  unlimited.usable = kLargestRequest;
  const PolicySpec ideal = IdealPolicy::Spec();
  SwitchingOptions options;
  options.inflate_pools = false;
  options.strategy = strategy;
  options.pool_minimum = pool_minimum;
  options.drop_as = drop_as;
  QUIRE_ASSIGN_OR_RETURN(const ScenarioResult result,
                         PlayScenario(unlimited, workloads, ideal, options));
  std::vector<Bytes> minima;
  for (const StepResult& step : result.steps) {
    minima.push_back(step.peak_requested);
  }
  return minima;
}

}  // namespace quire
