#include <algorithm>

#include "bench/model_switching/day.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

}  // namespace

SwitchingDay::Loaded* SwitchingDay::Find(const std::string& name) {
  const auto found =
      std::find_if(loaded_.begin(), loaded_.end(),
                   [&](const Loaded& loaded) { return loaded.name == name; });
  return found == loaded_.end() ? nullptr : &*found;
}

void SwitchingDay::Forget(const std::string& name) {
  std::erase_if(loaded_,
                [&](const Loaded& loaded) { return loaded.name == name; });
  pending_.erase(name);
}

absl::Status SwitchingDay::Switch(const ScenarioStep& step) {
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

bool SwitchingDay::PassOver(const std::string& name) {
  if (Find(name) != nullptr) return false;
  now_.passed_over = true;
  return true;
}

absl::Status SwitchingDay::MakeReady(const ScenarioStep& step) {
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

absl::Status SwitchingDay::Restart() {
  now_.is_switch = true;
  QUIRE_RETURN_IF_ERROR(StartProcess());
  const std::vector<Loaded> to_be_there = loaded_;
  for (const Loaded& loaded : to_be_there) {
    if (!loaded.asleep) QUIRE_RETURN_IF_ERROR(BringIn(loaded));
  }
  return absl::OkStatus();
}

absl::Status SwitchingDay::PutOthersAway(const ScenarioStep& step) {
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

absl::Status SwitchingDay::PutAway(const std::string& name, bool for_good) {
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

absl::Status SwitchingDay::BringIn(const Loaded& loaded) {
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

absl::Status SwitchingDay::Wake(const std::string& name) {
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

}  // namespace quire
