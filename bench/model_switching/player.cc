#include "bench/model_switching/player.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

// One day. Holds one process at a time: a device and a policy on it.
class Day {
 public:
  Day(const Scenario& scenario,
      const std::map<std::string, Workload>& workloads,
      const PolicySpec& policy, SwitchStrategy strategy)
      : scenario_(scenario),
        workloads_(workloads),
        spec_(policy),
        strategy_(strategy) {}

  absl::StatusOr<ScenarioResult> Run(
      const std::function<void(uint64_t)>& progress) {
    QUIRE_RETURN_IF_ERROR(CheckNames());
    QUIRE_RETURN_IF_ERROR(StartProcess());
    for (const ScenarioStep& step : scenario_.steps) {
      QUIRE_RETURN_IF_ERROR(PlayStep(step));
      if (progress) progress(result_.steps.size());
    }
    return std::move(result_);
  }

 private:
  struct Held {
    DeviceAddress address;
    Bytes size;
    StreamId stream;
  };
  // A loaded workload, or a reserved pool.
  struct Model {
    const ScenarioStep* made_by = nullptr;
    std::map<uint64_t, Held> live;                // by order of allocation
    absl::flat_hash_map<uint64_t, uint64_t> ids;  // of the trace, to that order
  };
  // Rows being played for a model, on one stream.
  struct Play {
    std::string model;
    std::span<const AllocationEvent> rows;
    StreamId stream;
    bool is_load = false;
  };

  absl::Status CheckNames() const {
    for (const ScenarioStep& step : scenario_.steps) {
      if (step.kind == Kind::kReserve || step.kind == Kind::kRelease) continue;
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
    if (device_ != nullptr) {
      past_calls_ += device_->calls() - first_calls_;
      past_nanoseconds_ += device_->nanoseconds() - first_nanoseconds_;
    }
    policy_.reset();
    streams_.clear();
    models_.clear();
    requested_ = 0;
    QUIRE_ASSIGN_OR_RETURN(device_, SimulatedDevice::Create(scenario_.usable));
    QUIRE_ASSIGN_OR_RETURN(policy_, spec_.Create(device_.get()));
    size_t streams = 1;
    for (const ScenarioStep& step : scenario_.steps) {
      streams = std::max(streams, step.parts.size());
    }
    while (streams_.size() < streams) {
      QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                             device_->driver()->CreateStream(DeviceId(0)));
      streams_.push_back(stream);
    }
    first_calls_ = device_->calls();
    first_nanoseconds_ = device_->nanoseconds();
    return absl::OkStatus();
  }

  uint64_t calls() const {
    return past_calls_ + device_->calls() - first_calls_;
  }
  uint64_t nanoseconds() const {
    return past_nanoseconds_ + device_->nanoseconds() - first_nanoseconds_;
  }

  absl::Status PlayStep(const ScenarioStep& step) {
    now_ = StepResult();
    const uint64_t calls_before = calls();
    const uint64_t nanoseconds_before = nanoseconds();
    const bool is_switch =
        step.kind == Kind::kLoad || step.kind == Kind::kUnload;
    NoteUse();
    if (is_switch && strategy_ == SwitchStrategy::kRestart) {
      QUIRE_RETURN_IF_ERROR(Restart(step));
    } else {
      QUIRE_RETURN_IF_ERROR(Do(step));
    }
    now_.driver_calls = calls() - calls_before;
    now_.virtual_nanoseconds = nanoseconds() - nanoseconds_before;
    if (is_switch) {
      ++result_.switches;
      if (!now_.failure && !now_.passed_over) ++result_.switches_survived;
    }
    if (now_.failure && !result_.first_failed_step) {
      result_.first_failed_step = result_.steps.size();
    }
    result_.peak_requested =
        std::max(result_.peak_requested, now_.peak_requested);
    result_.peak_reserved = std::max(result_.peak_reserved, now_.peak_reserved);
    result_.steps.push_back(std::move(now_));
    return absl::OkStatus();
  }

  // A new process with what is to be there after the step.
  absl::Status Restart(const ScenarioStep& step) {
    const std::string& name = step.parts.front().workload;
    std::vector<const ScenarioStep*> kept;
    for (const std::string& model : order_) {
      if (model != name) kept.push_back(models_.at(model).made_by);
    }
    order_.clear();
    QUIRE_RETURN_IF_ERROR(StartProcess());
    for (const ScenarioStep* const made_by : kept) {
      QUIRE_RETURN_IF_ERROR(Do(*made_by));
    }
    return step.kind == Kind::kLoad ? Do(step) : absl::OkStatus();
  }

  absl::Status Do(const ScenarioStep& step) {
    const std::string& name =
        step.parts.empty() ? scenario_.name : step.parts.front().workload;
    switch (step.kind) {
      case Kind::kLoad: {
        Begin(name, step);
        QUIRE_RETURN_IF_ERROR(
            PlayRows({{name, PhaseOf(name, "load"), streams_[0], true}}, 0));
        if (!models_.contains(name)) return absl::OkStatus();
        return PlayRows({{name, PhaseOf(name, "warmup"), streams_[0]}}, 0);
      }
      case Kind::kReserve:
        return Reserve(name, step);
      case Kind::kUnload:
        if (PassOver(name)) return absl::OkStatus();
        QUIRE_RETURN_IF_ERROR(
            PlayRows({{name, PhaseOf(name, "unload"), streams_[0]}}, 0));
        return Drop(name);
      case Kind::kRelease:
        return PassOver(name) ? absl::OkStatus() : Drop(name);
      case Kind::kRun:
      case Kind::kParallel:
        break;
    }
    std::vector<Play> plays;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const ScenarioPart& part = step.parts[i];
      if (PassOver(part.workload)) continue;
      plays.push_back(
          {part.workload, PhaseOf(part.workload, part.phase), streams_[i]});
    }
    return PlayRows(std::move(plays), step.chunk);
  }

  void Begin(const std::string& name, const ScenarioStep& step) {
    models_[name].made_by = &step;
    order_.push_back(name);
  }

  // Whether the model is not there, since it was dropped.
  bool PassOver(const std::string& name) {
    if (models_.contains(name)) return false;
    now_.passed_over = true;
    return true;
  }

  // No rows where the workload has no such phase.
  std::span<const AllocationEvent> PhaseOf(const std::string& workload,
                                           const std::string& phase) const {
    const auto& phases = workloads_.at(workload).phases;
    const auto found = phases.find(phase);
    if (found == phases.end()) return {};
    return found->second;
  }

  // Side by side, `chunk` rows of each in turn (0: all at once), until all have
  // ended.
  absl::Status PlayRows(std::vector<Play> plays, uint64_t chunk) {
    while (!plays.empty()) {
      for (Play& play : plays) {
        const size_t count = chunk == 0
                                 ? play.rows.size()
                                 : std::min<size_t>(chunk, play.rows.size());
        for (const AllocationEvent& row : play.rows.subspan(0, count)) {
          QUIRE_RETURN_IF_ERROR(PlayRow(play, row));
          if (!models_.contains(play.model)) break;
        }
        play.rows = models_.contains(play.model)
                        ? play.rows.subspan(count)
                        : std::span<const AllocationEvent>();
      }
      std::erase_if(plays, [](const Play& play) { return play.rows.empty(); });
    }
    return absl::OkStatus();
  }

  absl::Status PlayRow(const Play& play, const AllocationEvent& row) {
    if (row.action == AllocationAction::kAllocate) {
      if (play.is_load) now_.loaded = SaturatingAdd(now_.loaded, row.size);
      return Allocate(play.model, row.allocation, row.size, play.stream);
    }
    if (row.action != AllocationAction::kFree) return absl::OkStatus();
    Model& model = models_.at(play.model);
    const auto id = model.ids.find(row.allocation);
    if (id == model.ids.end()) return absl::OkStatus();
    const auto held = model.live.find(id->second);
    const Held freed = held->second;
    model.live.erase(held);
    model.ids.erase(id);
    return FreeHeld(freed, play.stream);
  }

  absl::Status Reserve(const std::string& name, const ScenarioStep& step) {
    Begin(name, step);
    for (uint64_t i = 0; i < step.count && models_.contains(name); ++i) {
      QUIRE_RETURN_IF_ERROR(Allocate(name, i, step.bytes_each, streams_[0]));
    }
    return absl::OkStatus();
  }

  absl::Status Allocate(const std::string& name, uint64_t id, Bytes size,
                        StreamId stream) {
    if (size.zero()) return absl::OkStatus();
    const absl::StatusOr<DeviceAddress> address =
        policy_->Allocate(size, stream);
    if (absl::IsResourceExhausted(address.status())) {
      NoteFailure(name, size);
      return Drop(name);
    }
    QUIRE_RETURN_IF_ERROR(address.status());
    Model& model = models_.at(name);
    // A phase that is played again begins with new ids: what an old one still
    // names stays until the model is unloaded.
    model.ids[id] = next_order_;
    model.live[next_order_++] = {*address, size, stream};
    requested_ += size.value();
    NoteUse();
    return absl::OkStatus();
  }

  void NoteFailure(const std::string& name, Bytes size) {
    // Until something was dropped, the step needs what the scenario says: where
    // that is more than there is, nothing would have helped.
    const Bytes needed =
        anything_dropped_
            ? Bytes(0)
            : scenario_.minimum_peak_of_steps[result_.steps.size()];
    const bool capacity =
        std::max(needed, SaturatingAdd(Bytes(requested_), size)) >
        scenario_.usable;
    anything_dropped_ = true;
    ++(capacity ? result_.capacity_failures : result_.fragmentation_failures);
    if (now_.failure) return;
    now_.failure =
        capacity ? ShortageKind::kCapacity : ShortageKind::kFragmentation;
    now_.failed_request = size;
    now_.dropped = name;
  }

  // Frees what is left of it, oldest first.
  absl::Status Drop(const std::string& name) {
    const Model model = std::move(models_.at(name));
    models_.erase(name);
    std::erase(order_, name);
    for (const auto& [order, held] : model.live) {
      QUIRE_RETURN_IF_ERROR(FreeHeld(held, held.stream));
    }
    return absl::OkStatus();
  }

  absl::Status FreeHeld(const Held& held, StreamId stream) {
    requested_ -= held.size.value();
    return policy_->Free(held.address, stream);
  }

  void NoteUse() {
    now_.peak_requested = std::max(now_.peak_requested, Bytes(requested_));
    now_.peak_reserved =
        std::max(now_.peak_reserved, policy_->GetUse().reserved);
  }

  const Scenario& scenario_;
  const std::map<std::string, Workload>& workloads_;
  const PolicySpec& spec_;
  const SwitchStrategy strategy_;

  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<AllocatorPolicy> policy_;  // destroyed before the device
  std::vector<StreamId> streams_;
  std::map<std::string, Model> models_;
  std::vector<std::string> order_;  // of models_, oldest first
  uint64_t requested_ = 0;
  uint64_t next_order_ = 0;
  bool anything_dropped_ = false;  // for lack of memory
  // Of processes that have ended, and of this one before the day went on in it.
  uint64_t past_calls_ = 0;
  uint64_t past_nanoseconds_ = 0;
  uint64_t first_calls_ = 0;
  uint64_t first_nanoseconds_ = 0;

  StepResult now_;
  ScenarioResult result_;
};

}  // namespace

const char* SwitchStrategyName(SwitchStrategy strategy) {
  switch (strategy) {
    case SwitchStrategy::kKeep:
      return "keep";
    case SwitchStrategy::kRestart:
      return "restart";
  }
  return "?";
}

Bytes ScenarioResult::loaded() const {
  Bytes sum;
  for (const StepResult& step : steps) sum = SaturatingAdd(sum, step.loaded);
  return sum;
}

uint64_t ScenarioResult::driver_calls() const {
  uint64_t sum = 0;
  for (const StepResult& step : steps) sum += step.driver_calls;
  return sum;
}

uint64_t ScenarioResult::virtual_nanoseconds() const {
  uint64_t sum = 0;
  for (const StepResult& step : steps) sum += step.virtual_nanoseconds;
  return sum;
}

absl::StatusOr<ScenarioResult> PlayScenario(
    const Scenario& scenario, const std::map<std::string, Workload>& workloads,
    const PolicySpec& policy, SwitchStrategy strategy,
    const std::function<void(uint64_t done)>& progress) {
  return Day(scenario, workloads, policy, strategy).Run(progress);
}

}  // namespace quire
