#include "bench/model_switching/day.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

}  // namespace

absl::StatusOr<ScenarioResult> SwitchingDay::Run() {
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

absl::Status SwitchingDay::CheckNames() const {
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

absl::Status SwitchingDay::StartProcess() {
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
      process_,
      SwitchingProcess::Start(scenario_.usable, spec_, streams, NeedOwners()));
  result_.owners = process_->has_owners();
  return absl::OkStatus();
}

bool SwitchingDay::NeedOwners() const {
  const auto any = [&](auto passes) {
    return std::any_of(scenario_.steps.begin(), scenario_.steps.end(), passes);
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

absl::Status SwitchingDay::PlayDay(uint64_t day) {
  for (const ScenarioStep& step : scenario_.steps) {
    QUIRE_RETURN_IF_ERROR(PlayStep(step));
    if (options_.progress) {
      options_.progress(day * scenario_.steps.size() + result_.steps.size());
    }
  }
  return absl::OkStatus();
}

absl::Status SwitchingDay::UnloadAll() {
  for (const Loaded& loaded : std::exchange(loaded_, {})) {
    QUIRE_RETURN_IF_ERROR(IsPool(*loaded.made_by)
                              ? DropPool(loaded.name)
                              : PutAway(loaded.name, /*for_good=*/true));
  }
  pending_.clear();
  return absl::OkStatus();
}

absl::Status SwitchingDay::PlayStep(const ScenarioStep& step) {
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

absl::Status SwitchingDay::DropAsTold() {
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

void SwitchingDay::AddToResult() {
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

void SwitchingDay::NotePending(const ScenarioStep& step) {
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

}  // namespace quire
