#include <algorithm>
#include <utility>

#include "bench/model_switching/day.h"

namespace quire {

absl::Status SwitchingDay::RunParts(const ScenarioStep& step) {
  std::vector<Play> plays;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const ScenarioPart& part = step.parts[i];
    // What was dropped while the step was made ready has failed already.
    if (PassOver(part.workload)) continue;
    plays.push_back({part.workload, PhaseOf(part.workload, part.phase), i});
  }
  return PlayRows(std::move(plays), step.chunk);
}

const WorkloadPhase* SwitchingDay::PhaseOf(const std::string& workload,
                                           const std::string& phase) const {
  static const WorkloadPhase& empty = *new WorkloadPhase();
  const auto& phases = workloads_.at(workload).phases;
  const auto found = phases.find(phase);
  return found == phases.end() ? &empty : &found->second;
}

absl::Status SwitchingDay::PlayRows(std::vector<Play> plays, uint64_t chunk) {
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

void SwitchingDay::NoteFirst(const Play& play, uint64_t start) {
  const auto pending = pending_.find(play.model);
  if (pending == pending_.end()) return;
  SwitchCost cost = std::exchange(pending->second, SwitchCost());
  pending_.erase(pending);
  cost.nanoseconds += nanoseconds() - start;
  now_.first_tokens.push_back(cost);
}

absl::Status SwitchingDay::PlayRow(const Play& play,
                                   const AllocationEvent& row) {
  if (row.action == AllocationAction::kFree) {
    return process_->Free(play.model, row.allocation, play.stream);
  }
  if (row.action != AllocationAction::kAllocate) return absl::OkStatus();
  if (play.is_load) {
    now_.cost.loaded = SaturatingAdd(now_.cost.loaded, row.size);
  }
  return Allocate(play.model, row.allocation, row.size, play.stream);
}

absl::Status SwitchingDay::Allocate(const std::string& name, uint64_t id,
                                    Bytes size, size_t stream) {
  const absl::Status status = WithRoom(
      size, [&] { return process_->Allocate(name, id, size, stream); });
  if (absl::IsResourceExhausted(status)) return NoteFailure(name, size);
  QUIRE_RETURN_IF_ERROR(status);
  NoteUse();
  return absl::OkStatus();
}

absl::Status SwitchingDay::NoteFailure(const std::string& name, Bytes size) {
  now_.failures.push_back(
      {name, size,
       SaturatingAdd(process_->requested(), size) > scenario_.usable});
  Forget(name);
  return process_->Drop(name);
}

void SwitchingDay::NoteUse() {
  now_.peak_requested = std::max(now_.peak_requested, process_->requested());
  now_.peak_reserved = std::max(now_.peak_reserved, process_->reserved());
}

}  // namespace quire
