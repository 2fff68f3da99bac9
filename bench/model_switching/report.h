// What model_switching says of its runs: JSON, and a table.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_
#define QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_

#include <string>
#include <vector>

#include "bench/model_switching/player.h"
#include "bench/model_switching/scenario.h"
#include "bench/policies/policy_registry.h"

namespace quire {

// One policy on one scenario with one strategy.
struct SwitchingRun {
  const Scenario* scenario = nullptr;
  std::string policy;
  const PolicyKind* kind = nullptr;
  SwitchStrategy strategy = SwitchStrategy::kKeep;
  Bytes disk_rate;  // in a second
  ScenarioResult result;

  // From the decision to switch until the model can run: reading what was
  // loaded at the disk's rate, and driver calls on the virtual clock.
  double SwitchSeconds(const StepResult& step) const;
  // No failure where the scenario fits; where it does not, none but for
  // capacity, and none before the step that the scenario names.
  bool AsGoodAsCanBe() const;
};

// An array with one object per run.
std::string ToJson(const std::vector<SwitchingRun>& runs);
std::string ToTable(const std::vector<SwitchingRun>& runs);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_
