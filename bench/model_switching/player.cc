#include "bench/model_switching/player.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/model_switching/ideal_policy.h"
#include "bench/model_switching/process.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

bool IsPool(const ScenarioStep& step) {
  return step.kind == Kind::kReserve || step.kind == Kind::kRelease;
}

class Day {
 public:
  Day(const Scenario& scenario,
      const std::map<std::string, Workload>& workloads,
      const PolicySpec& policy, const SwitchingOptions& options)
      : scenario_(scenario),
        workloads_(workloads),
        spec_(policy),
        options_(options),
        strategy_(options.strategy) {}

  absl::StatusOr<ScenarioResult> Run() {
    QUIRE_RETURN_IF_ERROR(CheckNames());
    QUIRE_RETURN_IF_ERROR(StartProcess());
    QUIRE_RETURN_IF_ERROR(PlayDay(0));
    ScenarioResult first = std::exchange(result_, ScenarioResult());
    for (uint64_t day = 1; day < options_.days; ++day) {
      const DayCost before = {calls(), nanoseconds()};
      QUIRE_RETURN_IF_ERROR(UnloadAll());
      QUIRE_RETURN_IF_ERROR(PlayDay(day));
      first.last_day = {calls() - before.driver_calls,
                        nanoseconds() - before.virtual_nanoseconds};
      result_ = ScenarioResult();
    }
    return first;
  }

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

  absl::Status CheckNames() const {
    for (const ScenarioStep& step : scenario_.steps) {
      if (IsPool(step)) continue;
      for (const ScenarioPart& part : step.parts) {
        const auto found = workloads_.find(part.workload);
        if (found == workloads_.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat("there is no workload ", part.workload));
        }
        if (!part.phase.empty() && !found->second.phases.contains(part.phase)) {
          return absl::InvalidArgumentError(
              absl::StrCat(part.workload, " has no phase ", part.phase));
        }
      }
    }
    return absl::OkStatus();
  }

  // Whatever was held is gone with the process before.
  absl::Status StartProcess() {
    if (process_ != nullptr) {
      past_calls_ += process_->calls();
      past_nanoseconds_ += process_->nanoseconds();
    }
    size_t streams = 1;
    for (const ScenarioStep& step : scenario_.steps) {
      streams = std::max(streams, step.parts.size());
    }
    process_.reset();
    QUIRE_ASSIGN_OR_RETURN(
        process_, SwitchingProcess::Start(scenario_.usable, spec_, streams,
                                          NeedOwners()));
    result_.owners = process_->has_owners();
    return absl::OkStatus();
  }

  // Whose memory is whose matters where it is taken away from under its
  // addresses, or kept. Elsewhere it costs: owners share no page.
  bool NeedOwners() const {
    const auto any = [&](auto passes) {
      return std::any_of(scenario_.steps.begin(), scenario_.steps.end(),
                         passes);
    };
    switch (strategy_) {
      case SwitchStrategy::kSleep:
        return true;
      case SwitchStrategy::kReload:
      case SwitchStrategy::kRestart:
        return false;
      case SwitchStrategy::kShared:
        if (any(IsPool)) return true;
        break;
      case SwitchStrategy::kKeep:
        break;
    }
    return any(
        [](const ScenarioStep& step) { return step.kind == Kind::kSleep; });
  }

  uint64_t calls() const { return past_calls_ + process_->calls(); }
  uint64_t nanoseconds() const {
    return past_nanoseconds_ + process_->nanoseconds();
  }

  absl::Status PlayDay(uint64_t day) {
    for (const ScenarioStep& step : scenario_.steps) {
      QUIRE_RETURN_IF_ERROR(PlayStep(step));
      if (options_.progress) {
        options_.progress(day * scenario_.steps.size() + result_.steps.size());
      }
    }
    return absl::OkStatus();
  }

  absl::Status UnloadAll() {
    for (const Loaded& loaded : std::exchange(loaded_, {})) {
      QUIRE_RETURN_IF_ERROR(IsPool(*loaded.made_by)
                                ? DropPool(loaded.name)
                                : PutAway(loaded.name, /*for_good=*/true));
    }
    pending_.clear();
    return absl::OkStatus();
  }

  absl::Status PlayStep(const ScenarioStep& step) {
    now_ = StepResult();
    const uint64_t calls_before = calls();
    const uint64_t nanoseconds_before = nanoseconds();
    NoteUse();
    QUIRE_RETURN_IF_ERROR(Switch(step));
    now_.cost.nanoseconds = nanoseconds() - nanoseconds_before;
    NotePending(step);
    if (step.kind == Kind::kRun || step.kind == Kind::kParallel) {
      QUIRE_RETURN_IF_ERROR(RunParts(step));
    }
    if (strategy_ == SwitchStrategy::kShared && options_.inflate_pools) {
      QUIRE_RETURN_IF_ERROR(InflatePools());
    }
    QUIRE_RETURN_IF_ERROR(DropAsTold());
    now_.driver_calls = calls() - calls_before;
    now_.virtual_nanoseconds = nanoseconds() - nanoseconds_before;
    now_.host_memory = process_->host_memory();
    AddToResult();
    return absl::OkStatus();
  }

  absl::Status DropAsTold() {
    if (result_.steps.size() >= options_.drop_as.size()) {
      return absl::OkStatus();
    }
    for (const SwitchFailure& failure :
         options_.drop_as[result_.steps.size()].failures) {
      Forget(failure.dropped);
      if (process_->Has(failure.dropped)) {
        QUIRE_RETURN_IF_ERROR(process_->Drop(failure.dropped));
      }
    }
    return absl::OkStatus();
  }

  void AddToResult() {
    const bool failed = !now_.failures.empty();
    if (now_.is_switch) {
      ++result_.switches;
      if (!failed && !now_.passed_over) ++result_.switches_survived;
    }
    if (failed && !result_.first_failed_step) {
      result_.first_failed_step = result_.steps.size();
    }
    result_.peak_requested =
        std::max(result_.peak_requested, now_.peak_requested);
    result_.peak_reserved = std::max(result_.peak_reserved, now_.peak_reserved);
    result_.peak_host_memory =
        std::max(result_.peak_host_memory, now_.host_memory);
    result_.steps.push_back(std::move(now_));
  }

  // Who switches to a model waits for all that the step does before it runs.
  void NotePending(const ScenarioStep& step) {
    if (!now_.is_switch || step.kind == Kind::kUnload ||
        step.kind == Kind::kSleep) {
      return;
    }
    for (const ScenarioPart& part : step.parts) {
      if (Find(part.workload) != nullptr) {
        pending_[part.workload].Add(now_.cost);
      }
    }
  }

  // ---- What is to be on the device ----

  Loaded* Find(const std::string& name) {
    const auto found =
        std::find_if(loaded_.begin(), loaded_.end(),
                     [&](const Loaded& loaded) { return loaded.name == name; });
    return found == loaded_.end() ? nullptr : &*found;
  }

  void Forget(const std::string& name) {
    std::erase_if(loaded_,
                  [&](const Loaded& loaded) { return loaded.name == name; });
    pending_.erase(name);
  }

  // Everything that the step does before models run.
  absl::Status Switch(const ScenarioStep& step) {
    const std::string name =
        step.parts.empty() ? "" : step.parts.front().workload;
    switch (step.kind) {
      case Kind::kLoad:
      case Kind::kReserve:
        now_.is_switch = step.kind == Kind::kLoad;
        if (Loaded* const known = Find(name)) {
          known->asleep = false;
        } else {
          loaded_.push_back({name, &step});
        }
        return MakeReady(step);
      case Kind::kWake:
        now_.is_switch = true;
        if (PassOver(name)) return absl::OkStatus();
        Find(name)->asleep = false;
        return MakeReady(step);
      case Kind::kRun:
      case Kind::kParallel:
        for (const ScenarioPart& part : step.parts) {
          Loaded* const loaded = Find(part.workload);
          if (loaded != nullptr) loaded->asleep = false;
        }
        return MakeReady(step);
      case Kind::kUnload:
      case Kind::kSleep:
        now_.is_switch = true;
        if (PassOver(name)) return absl::OkStatus();
        if (step.kind == Kind::kSleep) {
          Find(name)->asleep = true;
        } else {
          Forget(name);
        }
        if (strategy_ == SwitchStrategy::kRestart) return Restart();
        return PutAway(name, /*for_good=*/step.kind == Kind::kUnload);
      case Kind::kRelease:
        if (PassOver(name)) return absl::OkStatus();
        Forget(name);
        return DropPool(name);
    }
    return absl::OkStatus();
  }

  // Whether the model is not there, since it was dropped.
  bool PassOver(const std::string& name) {
    if (Find(name) != nullptr) return false;
    now_.passed_over = true;
    return true;
  }

  // The models of the step are on the device and awake, except those for which
  // memory is out.
  absl::Status MakeReady(const ScenarioStep& step) {
    if (strategy_ == SwitchStrategy::kRestart && step.kind != Kind::kReserve &&
        std::any_of(step.parts.begin(), step.parts.end(),
                    [&](const ScenarioPart& part) {
                      return Find(part.workload) != nullptr &&
                             !process_->Has(part.workload);
                    })) {
      return Restart();
    }
    QUIRE_RETURN_IF_ERROR(PutOthersAway(step));
    for (const ScenarioPart& part : step.parts) {
      const Loaded* const loaded = Find(part.workload);
      if (loaded != nullptr) QUIRE_RETURN_IF_ERROR(BringIn(*loaded));
    }
    return absl::OkStatus();
  }

  // A new process with what is to be there.
  absl::Status Restart() {
    now_.is_switch = true;
    QUIRE_RETURN_IF_ERROR(StartProcess());
    const std::vector<Loaded> to_be_there = loaded_;
    for (const Loaded& loaded : to_be_there) {
      if (!loaded.asleep) QUIRE_RETURN_IF_ERROR(BringIn(loaded));
    }
    return absl::OkStatus();
  }

  absl::Status PutOthersAway(const ScenarioStep& step) {
    if (strategy_ != SwitchStrategy::kReload &&
        strategy_ != SwitchStrategy::kSleep) {
      return absl::OkStatus();
    }
    const std::vector<std::string> names = process_->names();
    for (const std::string& name : names) {
      const bool needed = IsPool(step) || IsPool(*process_->made_by(name)) ||
                          std::any_of(step.parts.begin(), step.parts.end(),
                                      [&](const ScenarioPart& part) {
                                        return part.workload == name;
                                      });
      if (!needed) QUIRE_RETURN_IF_ERROR(PutAway(name, /*for_good=*/false));
    }
    return absl::OkStatus();
  }

  // Nothing where it is not there, or asleep and not to go for good.
  absl::Status PutAway(const std::string& name, bool for_good) {
    if (!process_->Has(name)) return absl::OkStatus();
    if (strategy_ == SwitchStrategy::kReload ||
        (for_good && strategy_ != SwitchStrategy::kSleep)) {
      now_.is_switch = true;
      if (!process_->IsAsleep(name)) {
        QUIRE_RETURN_IF_ERROR(PlayRows({{name, PhaseOf(name, "unload")}}, 0));
      }
      return process_->Drop(name);
    }
    if (process_->IsAsleep(name)) return absl::OkStatus();
    now_.is_switch = true;
    QUIRE_ASSIGN_OR_RETURN(const Bytes copied, process_->Sleep(name));
    now_.cost.copied_out = SaturatingAdd(now_.cost.copied_out, copied);
    return absl::OkStatus();
  }

  absl::Status BringIn(const Loaded& loaded) {
    const std::string name = loaded.name;
    if (process_->IsAsleep(name)) return Wake(name);
    if (process_->Has(name)) return absl::OkStatus();
    process_->Add(name, loaded.made_by);
    if (loaded.made_by->kind == Kind::kReserve) {
      return Reserve(name, *loaded.made_by);
    }
    now_.is_switch = true;
    QUIRE_RETURN_IF_ERROR(
        PlayRows({{name, PhaseOf(name, "load"), 0, /*is_load=*/true}}, 0));
    if (!process_->Has(name)) return absl::OkStatus();
    return PlayRows({{name, PhaseOf(name, "warmup")}}, 0);
  }

  absl::Status Wake(const std::string& name) {
    now_.is_switch = true;
    const uint64_t before = nanoseconds();
    const Bytes size = process_->RequestedBy(name);
    const absl::StatusOr<Bytes> copied = WithRoom(
        size, [&]() -> absl::StatusOr<Bytes> { return process_->Wake(name); });
    if (absl::IsResourceExhausted(copied.status())) {
      return NoteFailure(name, size);
    }
    QUIRE_RETURN_IF_ERROR(copied.status());
    now_.cost.copied_in = SaturatingAdd(now_.cost.copied_in, *copied);
    now_.wake_nanoseconds += nanoseconds() - before;
    NoteUse();
    return absl::OkStatus();
  }

  // ---- Pools ----

  uint64_t LeastTensors(const ScenarioStep& reserve) const {
    if (strategy_ != SwitchStrategy::kShared) return reserve.count;
    return static_cast<uint64_t>(
        std::ceil(static_cast<double>(reserve.count) * options_.pool_minimum));
  }

  absl::Status Reserve(const std::string& name, const ScenarioStep& step) {
    const uint64_t least = LeastTensors(step);
    for (uint64_t i = 0; i < least && process_->Has(name); ++i) {
      QUIRE_RETURN_IF_ERROR(Allocate(name, i, step.bytes_each, 0));
    }
    if (strategy_ != SwitchStrategy::kShared || !process_->Has(name)) {
      return absl::OkStatus();
    }
    return process_->SetMinimum(name, Bytes(least * step.bytes_each.value()));
  }

  absl::Status DropPool(const std::string& name) {
    if (strategy_ == SwitchStrategy::kShared) {
      QUIRE_RETURN_IF_ERROR(process_->SetMinimum(name, Bytes(0)));
    }
    return process_->Drop(name);
  }

  std::vector<std::string> Pools() const {
    std::vector<std::string> pools;
    for (const std::string& name : process_->names()) {
      if (IsPool(*process_->made_by(name))) pools.push_back(name);
    }
    return pools;
  }

  // Balloons take what is left. Of several, the oldest has it.
  absl::Status InflatePools() {
    const std::vector<std::string> pools = Pools();
    for (const std::string& name : pools) {
      const Bytes each = process_->made_by(name)->bytes_each;
      while (!each.zero() &&
             SaturatingAdd(process_->requested(), each) <= scenario_.usable) {
        const absl::Status status =
            process_->Allocate(name, process_->CountLive(name), each, 0);
        if (absl::IsResourceExhausted(status)) break;
        QUIRE_RETURN_IF_ERROR(status);
        NoteUse();
      }
    }
    if (!pools.empty()) {
      now_.idle = 1 - static_cast<double>(process_->requested().value()) /
                          static_cast<double>(scenario_.usable.value());
    }
    return absl::OkStatus();
  }

  // Balloons give up at least `size`, or all they may. False: nothing.
  absl::StatusOr<bool> DeflatePools(Bytes size) {
    Bytes freed;
    for (const std::string& name : Pools()) {
      const ScenarioStep& reserve = *process_->made_by(name);
      while (freed < size &&
             process_->CountLive(name) > LeastTensors(reserve)) {
        QUIRE_RETURN_IF_ERROR(process_->FreeNewest(name));
        freed = SaturatingAdd(freed, reserve.bytes_each);
      }
    }
    return !freed.zero();
  }

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

  absl::Status RunParts(const ScenarioStep& step) {
    std::vector<Play> plays;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const ScenarioPart& part = step.parts[i];
      // What was dropped while the step was made ready has failed already.
      if (PassOver(part.workload)) continue;
      plays.push_back({part.workload, PhaseOf(part.workload, part.phase), i});
    }
    return PlayRows(std::move(plays), step.chunk);
  }

  // No rows where the workload has no such phase.
  const WorkloadPhase* PhaseOf(const std::string& workload,
                               const std::string& phase) const {
    static const WorkloadPhase& empty = *new WorkloadPhase();
    const auto& phases = workloads_.at(workload).phases;
    const auto found = phases.find(phase);
    return found == phases.end() ? &empty : &found->second;
  }

  // Side by side, `chunk` rows of each in turn (0: all at once), until all have
  // ended.
  absl::Status PlayRows(std::vector<Play> plays, uint64_t chunk) {
    const uint64_t start = nanoseconds();
    while (!plays.empty()) {
      for (Play& play : plays) {
        const std::vector<AllocationEvent>& rows = play.phase->events;
        const size_t left = rows.size() - play.done;
        const size_t end =
            play.done + (chunk == 0 ? left : std::min<size_t>(chunk, left));
        for (; play.done < end && process_->Has(play.model); ++play.done) {
          if (play.done == play.phase->first_result) NoteFirst(play, start);
          QUIRE_RETURN_IF_ERROR(PlayRow(play, rows[play.done]));
        }
      }
      std::erase_if(plays, [&](const Play& play) {
        if (!process_->Has(play.model)) return true;
        if (play.done < play.phase->events.size()) return false;
        if (play.done == play.phase->first_result) NoteFirst(play, start);
        return true;
      });
    }
    return absl::OkStatus();
  }

  // The first result of a play that began at `start`.
  void NoteFirst(const Play& play, uint64_t start) {
    const auto pending = pending_.find(play.model);
    if (pending == pending_.end()) return;
    SwitchCost cost = std::exchange(pending->second, SwitchCost());
    pending_.erase(pending);
    cost.nanoseconds += nanoseconds() - start;
    now_.first_tokens.push_back(cost);
  }

  absl::Status PlayRow(const Play& play, const AllocationEvent& row) {
    if (row.action == AllocationAction::kFree) {
      return process_->Free(play.model, row.allocation, play.stream);
    }
    if (row.action != AllocationAction::kAllocate) return absl::OkStatus();
    if (play.is_load) {
      now_.cost.loaded = SaturatingAdd(now_.cost.loaded, row.size);
    }
    return Allocate(play.model, row.allocation, row.size, play.stream);
  }

  absl::Status Allocate(const std::string& name, uint64_t id, Bytes size,
                        size_t stream) {
    const absl::Status status = WithRoom(
        size, [&] { return process_->Allocate(name, id, size, stream); });
    if (absl::IsResourceExhausted(status)) return NoteFailure(name, size);
    QUIRE_RETURN_IF_ERROR(status);
    NoteUse();
    return absl::OkStatus();
  }

  // Drops the model whose request it was.
  absl::Status NoteFailure(const std::string& name, Bytes size) {
    now_.failures.push_back(
        {name, size,
         SaturatingAdd(process_->requested(), size) > scenario_.usable});
    Forget(name);
    return process_->Drop(name);
  }

  void NoteUse() {
    now_.peak_requested = std::max(now_.peak_requested, process_->requested());
    now_.peak_reserved = std::max(now_.peak_reserved, process_->reserved());
  }

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
  QUIRE_ASSIGN_OR_RETURN(ScenarioResult result,
                         Day(scenario, workloads, policy, options).Run());
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
