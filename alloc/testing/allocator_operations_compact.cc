// Compaction among the operations, and the checks against the model.

#include <algorithm>
#include <cstring>
#include <utility>

#include "alloc/testing/allocator_operations.h"
#include "alloc/testing/contradiction.h"
#include "quire/alloc/allocation_sampler.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/status_macros.h"

namespace quire {

// ---- Compaction -------------------------------------------------------------

absl::Status AllocatorOperations::Compact() {
  // What a captured stream has queued is no quiet.
  if (!captures_.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const QuiescentSection section, Quiesce());
  const uint64_t how = Below(8);
  if (how < 3) {
    QUIRE_RETURN_IF_ERROR(Mesh(section));
  } else if (how < 7) {
    QUIRE_RETURN_IF_ERROR(Relocate(section));
  } else {
    ThresholdPolicy policy(
        {.pool_in_use = 0.1, .pinned = 0.1, .least_interval = 0.0});
    QUIRE_RETURN_IF_ERROR(allocator_->Compact(section, &policy).status());
  }
  return CheckContents();
}

absl::Status AllocatorOperations::Mesh(const QuiescentSection& section) {
  MeshOptions options;
  options.smallest_slot = Bytes(uint64_t{256} << Below(8));
  if (Below(4) == 0) options.owner = owner_ids_[Below(owner_ids_.size())];
  const uint64_t before = allocator_->GetStatistics().live_bytes;
  QUIRE_RETURN_IF_ERROR(allocator_->Mesh(section, options).status());
  if (allocator_->GetStatistics().live_bytes != before) {
    return Contradiction("a mesh changed what lives");
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::Relocate(const QuiescentSection& section) {
  RelocationLimits limits;
  const uint64_t how = Next();
  if (how % 4 == 0) limits.max_moves = Below(8);
  if (how / 4 % 4 == 0) limits.max_bytes = Bytes(Next() << 8);
  if (how / 16 % 4 == 0) {
    limits.owner = owner_ids_[Below(owner_ids_.size())];
  }
  QUIRE_ASSIGN_OR_RETURN(RelocationPass pass,
                         allocator_->BeginRelocation(section, limits));
  const std::vector<RelocationMove> moves(pass.moves().begin(),
                                          pass.moves().end());
  uint64_t bytes = 0;
  for (const RelocationMove& move : moves) {
    const auto position = model_.find(move.from.value());
    if (position == model_.end() || !position->second.movable ||
        position->second.asleep || position->second.pins > 0 ||
        position->second.pattern.size != move.size.value() ||
        position->second.owner != move.owner ||
        (limits.owner && move.owner != *limits.owner)) {
      return Contradiction("%#x is none to be moved", move.from.value());
    }
    position->second.moving = true;
    bytes += move.size.value();
  }
  if (moves.size() > limits.max_moves || bytes > limits.max_bytes.value()) {
    return Contradiction("%u moves of %u bytes are beyond the limits",
                         moves.size(), bytes);
  }
  QUIRE_RETURN_IF_ERROR(DuringPass(section, pass));
  const bool give_up = how / 64 == 0;
  std::vector<MoveAction> actions;
  for (size_t i = 0; i < moves.size(); ++i) {
    constexpr MoveAction kActions[] = {MoveAction::kCopy, MoveAction::kCopy,
                                       MoveAction::kIgnore,
                                       MoveAction::kDestroy};
    actions.push_back(kActions[Below(4)]);
    pass.SetAction(i, actions[i]);
  }
  QUIRE_RETURN_IF_ERROR(pass.Copy());
  for (size_t i = 0; i < moves.size(); ++i) {
    if (give_up) actions[i] = MoveAction::kIgnore;
    if (actions[i] == MoveAction::kCopy &&
        std::memcmp(moves[i].from.host_pointer<char>(),
                    moves[i].to.host_pointer<char>(),
                    moves[i].size.value()) != 0) {
      return Contradiction("%#x was not copied", moves[i].from.value());
    }
  }
  if (give_up) {
    const RelocationPass given_up = std::move(pass);
  } else {
    pass.End();
  }
  for (size_t i = 0; i < moves.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(FinishMove(moves[i], actions[i]));
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::DuringPass(const QuiescentSection& section,
                                             const RelocationPass& pass) {
  QUIRE_RETURN_IF_ERROR(Check());
  QUIRE_RETURN_IF_ERROR(
      ExpectCode(allocator_->BeginRelocation(section).status(),
                 absl::StatusCode::kFailedPrecondition, "a second pass"));
  QUIRE_RETURN_IF_ERROR(
      ExpectCode(allocator_->Sleep(section, SomeOwner()).status(),
                 absl::StatusCode::kFailedPrecondition, "sleep in a pass"));
  const uint64_t what = Next();
  if (!pass.moves().empty()) {
    const DeviceAddress from = pass.moves().front().from;
    QUIRE_RETURN_IF_ERROR(ExpectCode(allocator_->Free(from),
                                     absl::StatusCode::kFailedPrecondition,
                                     "free of what moves"));
    QUIRE_RETURN_IF_ERROR(ExpectCode(allocator_->Pin(from),
                                     absl::StatusCode::kFailedPrecondition,
                                     "pin of what moves"));
    if (what / 8 % 2 == 0) {
      Live& live = model_.find(from.value())->second;
      const StreamId stream = streams_.front();
      QUIRE_RETURN_IF_ERROR(allocator_->RecordStream(from, stream));
      if (std::find(live.streams.begin(), live.streams.end(), stream) ==
          live.streams.end()) {
        live.streams.push_back(stream);
      }
    }
  }
  if (what % 2 == 0) QUIRE_RETURN_IF_ERROR(FreeSome());
  if (what / 2 % 2 == 0) QUIRE_RETURN_IF_ERROR(Trim());
  if (what / 4 % 2 == 0) {
    for (const StreamId stream : streams_) {
      QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
    }
    QUIRE_RETURN_IF_ERROR(Mesh(section));
  }
  QUIRE_RETURN_IF_ERROR(Check());
  for (const StreamId stream : streams_) {
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
  }
  return CheckContents();
}

absl::Status AllocatorOperations::FinishMove(const RelocationMove& move,
                                             MoveAction action) {
  const auto position = model_.find(move.from.value());
  position->second.moving = false;
  if (action == MoveAction::kIgnore) return absl::OkStatus();
  Live live = std::move(position->second);
  model_.erase(position);
  if (allocator_->Find(move.from).has_value()) {
    return Contradiction("%#x moved and lives", move.from.value());
  }
  if (action == MoveAction::kDestroy) {
    ++frees_;
    return absl::OkStatus();
  }
  // The pattern depends on the address.
  live.pattern = {move.to, live.pattern.size, ++generation_};
  live.pattern.Write();
  if (!model_.emplace(move.to.value(), std::move(live)).second) {
    return Contradiction("two live at %#x", move.to.value());
  }
  return absl::OkStatus();
}

// ---- Checks -----------------------------------------------------------------

absl::Status AllocatorOperations::Check() {
  QUIRE_RETURN_IF_ERROR(hook_error_);
  QUIRE_RETURN_IF_ERROR(allocator_->CheckInvariants());
  QUIRE_RETURN_IF_ERROR(memory_->CheckInvariants());
  if (other_ != nullptr) QUIRE_RETURN_IF_ERROR(other_->CheckInvariants());
  if (corrupt_ > 0) return Contradiction("memory changed while it was live");
  return CheckStatistics();
}

absl::Status AllocatorOperations::CheckStatistics() {
  uint64_t requested = 0;
  for (const auto& [address, live] : model_) requested += live.pattern.size;
  const AllocatorStatistics statistics = allocator_->GetStatistics();
  const AllocatorStatistics others =
      other_ == nullptr ? AllocatorStatistics() : other_->GetStatistics();
  const uint64_t with_pages = statistics.mapped_bytes -
                              statistics.asleep_bytes + others.mapped_bytes -
                              others.asleep_bytes;
  const uint64_t neighbour =
      neighbour_ == nullptr ? 0
                            : memory_->CommittedPages(neighbour_, PageCount(0),
                                                      neighbour_->pages())
                                      .value() *
                                  page_.value();
  if (statistics.requested_bytes != requested ||
      statistics.live_bytes < requested ||
      statistics.live_allocations != model_.size() ||
      statistics.total_allocations != allocations_ ||
      statistics.total_frees != frees_ ||
      statistics.mapped_bytes !=
          statistics.live_bytes + statistics.cached_bytes +
              statistics.cooling_bytes + statistics.slack_bytes ||
      memory_->GetStatistics().live.value() != with_pages + neighbour) {
    return Contradiction(
        "%u bytes requested in %u allocations, after %u and %u frees; the "
        "statistics say %u, %u, %u, %u, of %u mapped, while %u live",
        requested, model_.size(), allocations_, frees_,
        statistics.requested_bytes, statistics.live_allocations,
        statistics.total_allocations, statistics.total_frees,
        statistics.mapped_bytes, memory_->GetStatistics().live.value());
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::CheckLiveAllocations() {
  const auto found = allocator_->CalculateLiveAllocations();
  if (allocator_->sampler() != nullptr) {
    for (const auto& sample : allocator_->sampler()->Live()) {
      const auto sampled = model_.find(sample.address.value());
      if (sampled == model_.end() ||
          sampled->second.pattern.size != sample.size.value()) {
        return Contradiction("%#x is sampled and does not live",
                             sample.address.value());
      }
    }
  }
  const bool same =
      std::equal(found.begin(), found.end(), model_.begin(), model_.end(),
                 [this](const AllocationInfo& info, const auto& entry) {
                   const Live& live = entry.second;
                   return info.address.value() == entry.first &&
                          info.requested.value() == live.pattern.size &&
                          info.owner == live.owner &&
                          allocator_->OwnerOf(info.address) == live.owner &&
                          info.stream == live.allocated_for;
                 });
  return same ? absl::OkStatus()
              : Contradiction("what lives is not what is listed as live");
}

absl::Status AllocatorOperations::CheckContents() {
  for (const auto& [address, live] : model_) {
    if (!live.asleep && !live.pattern.Holds()) {
      return Contradiction("%u bytes at %#x changed", live.pattern.size,
                           address);
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
