#include "model/engine/split_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status Torn(SequenceId sequence, const absl::Status& status,
                  const absl::Status& undone) {
  return absl::DataLossError(
      absl::StrCat("sequence ", sequence.value(),
                   " is swapped out on one device and not on "
                   "another, release it: ",
                   status.message(), "; then: ", undone.message()));
}

}  // namespace

SplitCache::SplitCache(const KvLayout& layout, std::vector<SplitLayer> layers,
                       std::vector<std::unique_ptr<SequenceCache>> parts)
    : layout_(layout), layers_(std::move(layers)), parts_(std::move(parts)) {}

uint64_t SplitCache::max_sequence_length() const {
  uint64_t shortest = UINT64_MAX;
  for (const auto& part : parts_)
    shortest = std::min(shortest, part->max_sequence_length());
  return shortest;
}

absl::StatusOr<std::vector<SequenceId>> SplitCache::Find(
    SequenceId sequence) const {
  MutexLock lock(&mutex_);
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end())
    return absl::NotFoundError(
        absl::StrCat("there is no sequence ", sequence.value()));
  return found->second;
}

absl::StatusOr<SequenceId> SplitCache::BeginInAll(
    absl::FunctionRef<absl::StatusOr<SequenceId>(size_t)> begin) {
  std::vector<SequenceId> ids;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const absl::StatusOr<SequenceId> id = begin(part);
    if (!id.ok()) {
      // No kernel has used them, so they are free at once; a release that fails
      // has lost pages, which the part reports where it is asked.
      for (size_t i = 0; i < ids.size(); ++i)
        parts_[i]->Release(ids[i], Fence()).IgnoreError();
      return id.status();
    }
    ids.push_back(*id);
  }
  MutexLock lock(&mutex_);
  const SequenceId id(next_id_++);
  sequences_[id] = std::move(ids);
  return id;
}

absl::StatusOr<SequenceId> SplitCache::Admit(
    uint64_t tokens, std::optional<KvTokenLimit> limit) {
  return BeginInAll(
      [&](size_t part) { return parts_[part]->Admit(tokens, limit); });
}

absl::StatusOr<SequenceId> SplitCache::Fork(SequenceId parent) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(parent));
  return BeginInAll([&](size_t part) { return parts_[part]->Fork(ids[part]); });
}

bool SplitCache::KeepsAllTokens() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->KeepsAllTokens(); });
}

// No part is asked for tokens that it has: they would have to be the same ones
// in all.
absl::StatusOr<PromptAdmission> SplitCache::AdmitPromptInSteps(
    std::span<const int32_t> tokens, uint64_t step_tokens,
    const SequenceOptions& options) {
  const SequenceGrowth growth = {.tokens = tokens.size(),
                                 .step_tokens = step_tokens,
                                 .limit = options.limit};
  const bool whole =
      (KeepsAllTokens() && !options.limit) || tokens.size() <= step_tokens;
  if (!whole && !HasRoomFor(std::span(&growth, 1)))
    return absl::ResourceExhaustedError(absl::StrCat(
        "a prompt of ", tokens.size(), " tokens, in steps of ", step_tokens,
        ", has no room on one of ", parts_.size(),
        " devices: release or preempt a sequence, or try again later"));
  QUIRE_ASSIGN_OR_RETURN(
      const SequenceId sequence,
      Admit(whole ? tokens.size() : step_tokens, options.limit));
  return PromptAdmission{sequence};
}

bool SplitCache::HasRoomFor(std::span<const SequenceGrowth> growths) const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const auto& part) {
    return part->HasRoomFor(growths);
  });
}

// No part is asked for tokens that it has (AdmitPromptInSteps).
bool SplitCache::PrepareRoom(std::span<const int32_t> /*prompt*/,
                             const SequenceGrowth& growth) {
  bool prepared = true;
  for (const auto& part : parts_) prepared &= part->PrepareRoom({}, growth);
  return prepared;
}

absl::Status SplitCache::PrepareNextSteps() {
  absl::Status first;
  for (const auto& part : parts_) first.Update(part->PrepareNextSteps());
  return first;
}

absl::Status SplitCache::Step(std::span<const SequenceStep> steps) {
  std::vector<std::vector<SequenceStep>> after(parts_.size());
  std::vector<std::vector<SequenceStep>> before(parts_.size());
  for (const SequenceStep& step : steps) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids,
                           Find(step.sequence));
    for (size_t i = 0; i < parts_.size(); ++i) {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t length, parts_[i]->Length(ids[i]));
      before[i].push_back({ids[i], length});
      after[i].push_back({ids[i], step.length});
    }
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const absl::Status status = parts_[i]->Step(after[i]);
    if (!status.ok()) {
      UndoStep(i, before);
      return status;
    }
  }
  return absl::OkStatus();
}

void SplitCache::UndoStep(
    size_t parts, std::span<const std::vector<SequenceStep>> before) const {
  for (size_t i = 0; i < parts; ++i) {
    for (const SequenceStep& step : before[i])
      parts_[i]->Shrink(step.sequence, step.length, Fence()).IgnoreError();
  }
}

absl::Status SplitCache::Shrink(SequenceId sequence, uint64_t length,
                                const Fence& fence) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  absl::Status first;
  for (size_t i = 0; i < parts_.size(); ++i)
    first.Update(parts_[i]->Shrink(ids[i], length, fence));
  return first;
}

void SplitCache::EndBatch(const Fence& fence) {
  for (const auto& part : parts_) part->EndBatch(fence);
}

absl::Status SplitCache::Release(SequenceId sequence, const Fence& fence) {
  std::vector<SequenceId> ids;
  {
    MutexLock lock(&mutex_);
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end())
      return absl::NotFoundError(
          absl::StrCat("there is no sequence ", sequence.value()));
    ids = std::move(found->second);
    sequences_.erase(found);
  }
  absl::Status first;
  for (size_t i = 0; i < parts_.size(); ++i)
    first.Update(parts_[i]->Release(ids[i], fence));
  return first;
}

absl::StatusOr<uint64_t> SplitCache::Length(SequenceId sequence) const {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  return parts_.front()->Length(ids.front());
}

absl::Status SplitCache::CheckLimit(const KvTokenLimit& limit) const {
  for (const auto& part : parts_)
    QUIRE_RETURN_IF_ERROR(part->CheckLimit(limit));
  return absl::OkStatus();
}

void SplitCache::AdvanceClock(uint64_t now) {
  for (const auto& part : parts_) part->AdvanceClock(now);
}

uint64_t SplitCache::AdmissibleTokens() const {
  uint64_t tokens = UINT64_MAX;
  for (const auto& part : parts_)
    tokens = std::min(tokens, part->AdmissibleTokens());
  return tokens;
}

// The part that is fullest decides what runs.
CacheUse SplitCache::Use() const {
  CacheUse fullest = parts_.front()->Use();
  Bytes held = fullest.held;
  for (size_t i = 1; i < parts_.size(); ++i) {
    const CacheUse use = parts_[i]->Use();
    held = SaturatingAdd(held, use.held);
    if (use.fraction() > fullest.fraction()) fullest = use;
  }
  fullest.held = held;
  return fullest;
}

absl::StatusOr<Bytes> SplitCache::FreedByRelease(SequenceId sequence) const {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  Bytes total;
  for (size_t i = 0; i < parts_.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const Bytes freed,
                           parts_[i]->FreedByRelease(ids[i]));
    total = SaturatingAdd(total, freed);
  }
  return total;
}

absl::StatusOr<KvLayerView> SplitCache::View(SequenceId sequence,
                                             uint32_t layer) const {
  if (layer >= layers_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " of ", layers_.size()));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  const SplitLayer& at = layers_[layer];
  return parts_[at.part]->View(ids[at.part], at.layer);
}

absl::Status SplitCache::CheckInvariants() const {
  for (const auto& part : parts_)
    QUIRE_RETURN_IF_ERROR(part->CheckInvariants());
  return absl::OkStatus();
}

SequenceSwap* SplitCache::swap() {
  const bool all = std::all_of(parts_.begin(), parts_.end(),
                               [](auto& part) { return part->swap(); });
  return all ? this : nullptr;
}

absl::Status SplitCache::SwapOut(SequenceId sequence, const Fence& fence) {
  if (swap() == nullptr)
    return absl::FailedPreconditionError("a cache has no swap space");
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  for (size_t i = 0; i < parts_.size(); ++i) {
    const absl::Status status = parts_[i]->swap()->SwapOut(ids[i], fence);
    if (status.ok()) continue;
    absl::Status undone;
    for (size_t done = 0; done < i; ++done)
      undone.Update(parts_[done]->swap()->SwapIn(ids[done]));
    return undone.ok() ? status : Torn(sequence, status, undone);
  }
  return absl::OkStatus();
}

absl::Status SplitCache::SwapIn(SequenceId sequence) {
  if (swap() == nullptr)
    return absl::FailedPreconditionError("a cache has no swap space");
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SequenceId> ids, Find(sequence));
  for (size_t i = 0; i < parts_.size(); ++i) {
    const absl::Status status = parts_[i]->swap()->SwapIn(ids[i]);
    if (status.ok()) continue;
    absl::Status undone;
    // No kernel has used what came in.
    for (size_t done = 0; done < i; ++done)
      undone.Update(parts_[done]->swap()->SwapOut(ids[done], Fence()));
    return undone.ok() ? status : Torn(sequence, status, undone);
  }
  return absl::OkStatus();
}

}  // namespace quire
