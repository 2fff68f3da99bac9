// Tokens behind the windows of their layers, and behind the limit of a
// sequence.
//
// A kernel sees the windows of the tokens that it computes, and these are the
// ones that a step adds: once a step of the sequence begins, the next kernels
// see no window that ends before its first new token. The kernels of earlier
// steps do, so the pages go under the fence that EndBatch brought: in the step
// that finds them, or, with page-ahead, once that fence is complete and while
// the device computes.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status KvCache::Impl::CheckLimit(const KvTokenLimit& limit) {
  if (limit.max_tokens == 0 || limit.max_tokens > limit.sinks)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache: a limit of ", limit.max_tokens,
                   " tokens is not more than its ", limit.sinks, " sinks"));
}

void KvCache::Impl::EndBatch(const Fence& fence) {
  MutexLock lock(&state_mutex_);
  ++batch_;
  batch_fence_ = fence;
}

absl::Status KvCache::Impl::CheckGoingBack(const Sequence& sequence,
                                           uint64_t length) const {
  if (sequence.region->CanGoBackTo(length)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "KV cache: a sequence of ", sequence.length, " tokens cannot go back to ",
      length, ": tokens in its window were dropped"));
}

absl::Status KvCache::Impl::DropBehindWindows(Sequence* sequence,
                                              uint64_t length) {
  KvRegion* const region = sequence->region.get();
  // A step that goes back computes its last token anew, or none.
  if (length < sequence->length)
    return CheckGoingBack(*sequence, SaturatingSubtract(length, 1));
  // What was admitted is yet to be computed.
  if (!sequence->stepped && length == sequence->length) return absl::OkStatus();
  const uint64_t next = std::min(sequence->length + 1, length);
  if (next < region->drop_at() || sequence->batch == batch_)
    return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(region->SetFence(batch_fence_));
  Modify(region, [&](KvRegion* r) { r->DropBehind(next); });
  if (region->prefix() != PrefixEntryId())
    index_.Truncate(region->prefix(), region->WholeTokens());
  if (!options_.eager_reclaim) return absl::OkStatus();
  if (options_.page_ahead.max_steps > 0) {
    dropped_ = true;
  } else {
    // A refusal is the region's damage; the sequence does not see these pages.
    GiveBack(region, region->behind()).IgnoreError();
  }
  return absl::OkStatus();
}

void KvCache::Impl::ReturnDropped() {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  if (!dropped_) return;
  dropped_ = false;
  for (const Sequence& sequence : sequences_) {
    if (!sequence.region || sequence.region->behind().zero()) continue;
    if (sequence.region->FenceIsComplete()) {
      GiveBack(sequence.region.get(), sequence.region->behind()).IgnoreError();
    } else {
      dropped_ = true;
    }
  }
}

void KvCache::Impl::Forget(KvRegion* region) {
  for (const PageRun& run : region->BehindGaps())
    Decommit(region, run).IgnoreError();  // damage: it is not parked
  Modify(region, [](KvRegion* r) { r->Forget(); });
}

absl::StatusOr<KvKeptTokens> KvCache::Impl::Kept(SequenceId id,
                                                 uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(CheckLayer(layer));
  const KvLayout& layout = geometry_.layout();
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "look at");
  const Sequence& sequence = sequences_[*slot];
  const uint32_t kind = layout.GroupKind(layout.PlaceOf(layer).keys.group);
  return KeptTokens(sequence.region->kept_kind(kind), sequence.length);
}

Bytes KvCache::Impl::KeptBytes(const Sequence& sequence) const {
  const KvLayout& layout = geometry_.layout();
  if (sequence.region->drop_at() == UINT64_MAX)
    return Bytes(sequence.length * layout.TokenBytes().value());
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    const KvKeptTokens kept = KeptTokens(
        sequence.region->kept_kind(layout.GroupKind(group)), sequence.length);
    bytes += layout.RowBytes(group).value() *
             (kept.sinks + sequence.length - kept.first);
  }
  return Bytes(bytes);
}

}  // namespace quire
