#include "quire/paging/static_cache.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "paging/process_check.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<StaticCache>> StaticCache::Create(
    DeviceMemory* memory, const KvLayout& layout,
    const StaticCacheOptions& options) {
  KvCacheOptions slots;
  slots.max_sequence_length = options.max_sequence_length;
  slots.max_sequences = options.max_sequences;
  slots.owner = options.owner;
  slots.limit = options.limit;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache,
                         KvCache::Create(memory, layout, slots));
  return std::unique_ptr<StaticCache>(
      new StaticCache(memory, options.stream, std::move(cache)));
}

StaticCache::StaticCache(DeviceMemory* memory, StreamId stream,
                         std::unique_ptr<KvCache> slots)
    : memory_(memory), stream_(stream), slots_(std::move(slots)) {}

const KvLayout& StaticCache::layout() const { return slots_->layout(); }
uint64_t StaticCache::max_sequence_length() const {
  return slots_->max_sequence_length();
}

// A length that falls keeps its memory (see SequenceCache::Step): the sequence
// is admitted at full length, and everything after that is within it.
absl::StatusOr<SequenceId> StaticCache::Admit(
    uint64_t tokens, std::optional<KvTokenLimit> limit) {
  if (tokens > max_sequence_length())
    return absl::InvalidArgumentError(
        absl::StrCat("static KV cache: a sequence of ", tokens,
                     " tokens exceeds the maximum of ", max_sequence_length()));
  QUIRE_ASSIGN_OR_RETURN(const SequenceId sequence,
                         slots_->Admit(max_sequence_length(), limit));
  const SequenceStep step = {sequence, tokens};
  const absl::Status status = slots_->Step(std::span(&step, 1));
  if (status.ok()) return sequence;
  // The error that led here is what the caller should hear of.
  slots_->Release(sequence, Fence()).IgnoreError();
  return status;
}

absl::StatusOr<SequenceId> StaticCache::Fork(SequenceId parent) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  if (stream_ == StreamId())
    return absl::FailedPreconditionError(
        "static KV cache: the options name no stream on which a fork could be "
        "copied");
  MutexLock lock(&fork_mutex_);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t tokens, slots_->Length(parent));
  QUIRE_ASSIGN_OR_RETURN(const KvTokenLimit limit, slots_->LimitOf(parent));
  QUIRE_ASSIGN_OR_RETURN(const SequenceId child, Admit(tokens, limit));
  absl::Status status = CopyRows(parent, child, tokens);
  // Also what is under way when a copy is refused.
  status.Update(memory_->driver()->SynchronizeStream(stream_));
  if (status.ok()) return child;
  slots_->Release(child, Fence()).IgnoreError();
  return status;
}

// A group's rows are one array, which begins where its first layer's do.
absl::Status StaticCache::CopyRows(SequenceId from, SequenceId to,
                                   uint64_t tokens) {
  std::vector<bool> copied(layout().groups());
  for (uint32_t layer = 0; layer < layout().layers(); ++layer) {
    const KvLayout::LayerPlace& place = layout().PlaceOf(layer);
    QUIRE_ASSIGN_OR_RETURN(const KvLayerView source, slots_->View(from, layer));
    QUIRE_ASSIGN_OR_RETURN(const KvLayerView target, slots_->View(to, layer));
    const auto copy = [&](const KvLayout::SidePlace& side, DeviceAddress there,
                          DeviceAddress here) -> absl::Status {
      const Bytes size(layout().RowBytes(side.group).value() * tokens);
      if (copied[side.group] || size.zero()) return absl::OkStatus();
      copied[side.group] = true;
      const auto begin = [&](DeviceAddress first) {
        return DeviceAddress(first.value() - side.offset.value());
      };
      return memory_->driver()->CopyOnDevice(begin(there), begin(here), size,
                                             stream_);
    };
    QUIRE_RETURN_IF_ERROR(copy(place.keys, target.keys, source.keys));
    QUIRE_RETURN_IF_ERROR(copy(place.values, target.values, source.values));
  }
  return absl::OkStatus();
}

absl::Status StaticCache::Step(std::span<const SequenceStep> steps) {
  return slots_->Step(steps);
}

absl::Status StaticCache::Shrink(SequenceId sequence, uint64_t length,
                                 const Fence& /*fence*/) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t now, slots_->Length(sequence));
  if (length > now)
    return absl::InvalidArgumentError(
        absl::StrCat("static KV cache: sequence ", sequence.value(), " has ",
                     now, " tokens and cannot shrink to ", length));
  const SequenceStep step = {sequence, length};
  return slots_->Step(std::span(&step, 1));
}

absl::Status StaticCache::Release(SequenceId sequence, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  MutexLock lock(&fork_mutex_);
  return slots_->Release(sequence, fence);
}

absl::StatusOr<uint64_t> StaticCache::Length(SequenceId sequence) const {
  return slots_->Length(sequence);
}

uint64_t StaticCache::AdmissibleTokens() const {
  const uint64_t longest = max_sequence_length();
  return slots_->AdmissibleTokens() == longest ? longest : 0;
}

absl::StatusOr<KvLayerView> StaticCache::View(SequenceId sequence,
                                              uint32_t layer) const {
  return slots_->View(sequence, layer);
}

CacheUse StaticCache::Use() const { return slots_->Use(); }

absl::StatusOr<Bytes> StaticCache::FreedByRelease(SequenceId sequence) const {
  return slots_->FreedByRelease(sequence);
}

absl::Status StaticCache::CheckInvariants() const {
  return slots_->CheckInvariants();
}

}  // namespace quire
