// A day of switching as it is played: what is loaded, what is on the device,
// what each step took. PlayScenario (player.h) is what to call.
//
// day.cc walks through the steps; day_switch.cc sees to it that their models
// are on the device, as the strategy has it; day_pools.cc reserves, fills and
// empties pools; day_rows.cc plays what models ask for.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_DAY_H_
#define QUIRE_BENCH_MODEL_SWITCHING_DAY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/model_switching/player.h"
#include "bench/model_switching/process.h"
#include "bench/model_switching/scenario.h"
#include "bench/model_switching/switch_strategy.h"
#include "bench/model_switching/switching_result.h"
#include "bench/policies/policy_registry.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {

inline bool IsPool(const ScenarioStep& step) {
  return step.kind == ScenarioStep::Kind::kReserve ||
         step.kind == ScenarioStep::Kind::kRelease;
}

class SwitchingDay {
 public:
  SwitchingDay(const Scenario& scenario,
               const std::map<std::string, Workload>& workloads,
               const PolicySpec& policy, const SwitchingOptions& options)
      : scenario_(scenario),
        workloads_(workloads),
        spec_(policy),
        options_(options),
        strategy_(options.strategy) {}

  absl::StatusOr<ScenarioResult> Run();

 private:
  // What was loaded or reserved, and not unloaded, released or dropped since.
  struct Loaded {
    std::string name;
    const ScenarioStep* made_by;
    bool asleep = false;  // by a step of the day
  };
  // Rows being played for a model, on one stream.
  struct Play {
    std::string model;
    const WorkloadPhase* phase;
    size_t stream = 0;
    bool is_load = false;
    size_t done = 0;  // rows
  };

  // ---- The walk through the day ----

  absl::Status CheckNames() const;
  // Whatever was held is gone with the process before.
  absl::Status StartProcess();
  // Whose memory is whose matters where it is taken away from under its
  // addresses, or kept. Elsewhere it costs: owners share no page.
  bool NeedOwners() const;
  // Driver calls of all processes so far, and what they cost.
  uint64_t calls() const { return past_calls_ + process_->calls(); }
  uint64_t nanoseconds() const {
    return past_nanoseconds_ + process_->nanoseconds();
  }

  absl::Status PlayDay(uint64_t day);
  absl::Status UnloadAll();
  absl::Status PlayStep(const ScenarioStep& step);
  absl::Status DropAsTold();
  void AddToResult();

  // Who switches to a model waits for all that the step does before it runs.
  void NotePending(const ScenarioStep& step);

  // ---- What is to be on the device ----

  Loaded* Find(const std::string& name);
  void Forget(const std::string& name);

  // Everything that the step does before models run.
  absl::Status Switch(const ScenarioStep& step);

  // Whether the model is not there, since it was dropped.
  bool PassOver(const std::string& name);

  // The models of the step are on the device and awake, except those for which
  // memory is out.
  absl::Status MakeReady(const ScenarioStep& step);

  // A new process with what is to be there.
  absl::Status Restart();
  absl::Status PutOthersAway(const ScenarioStep& step);

  // Nothing where it is not there, or asleep and not to go for good.
  absl::Status PutAway(const std::string& name, bool for_good);
  absl::Status BringIn(const Loaded& loaded);
  absl::Status Wake(const std::string& name);

  // ---- Pools ----

  uint64_t LeastTensors(const ScenarioStep& reserve) const;
  absl::Status Reserve(const std::string& name, const ScenarioStep& step);
  absl::Status DropPool(const std::string& name);
  std::vector<std::string> Pools() const;

  // Balloons take what is left. Of several, the oldest has it.
  absl::Status InflatePools();

  // Balloons give up at least `size`, or all they may. False: nothing.
  absl::StatusOr<bool> DeflatePools(Bytes size);

  // Makes `attempt`, and again as long as memory is out and balloons have some.
  template <typename Attempt>
  auto WithRoom(Bytes size, Attempt attempt) -> decltype(attempt()) {
    while (true) {
      auto result = attempt();
      if (strategy_ != SwitchStrategy::kShared || result.ok() ||
          !absl::IsResourceExhausted(StatusOf(result))) {
        return result;
      }
      QUIRE_ASSIGN_OR_RETURN(const bool deflated, DeflatePools(size));
      if (!deflated) return result;
    }
  }
  static absl::Status StatusOf(const absl::Status& status) { return status; }
  static absl::Status StatusOf(const absl::StatusOr<Bytes>& result) {
    return result.status();
  }

  // ---- What models do ----

  absl::Status RunParts(const ScenarioStep& step);

  // No rows where the workload has no such phase.
  const WorkloadPhase* PhaseOf(const std::string& workload,
                               const std::string& phase) const;

  // Side by side, `chunk` rows of each in turn (0: all at once), until all have
  // ended.
  absl::Status PlayRows(std::vector<Play> plays, uint64_t chunk);

  // The first result of a play that began at `start`.
  void NoteFirst(const Play& play, uint64_t start);
  absl::Status PlayRow(const Play& play, const AllocationEvent& row);
  absl::Status Allocate(const std::string& name, uint64_t id, Bytes size,
                        size_t stream);

  // Drops the model whose request it was.
  absl::Status NoteFailure(const std::string& name, Bytes size);
  void NoteUse();

  const Scenario& scenario_;
  const std::map<std::string, Workload>& workloads_;
  const PolicySpec& spec_;
  const SwitchingOptions& options_;
  const SwitchStrategy strategy_;

  std::unique_ptr<SwitchingProcess> process_;
  std::vector<Loaded> loaded_;  // oldest first
  // Models that were switched to and have not run since.
  std::map<std::string, SwitchCost> pending_;
  // Of processes that have ended.
  uint64_t past_calls_ = 0;
  uint64_t past_nanoseconds_ = 0;

  StepResult now_;
  ScenarioResult result_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_DAY_H_
