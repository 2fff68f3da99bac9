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

void KvCache::Impl::EndBatch(const Fence& fence) {
  MutexLock lock(&state_mutex_);
  ++batch_;
  batch_fence_ = fence;
}

absl::Status KvCache::Impl::CheckGoingBack(const KvSequence& sequence,
                                           uint64_t length) const {
  if (sequence.region->CanGoBackTo(length)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "KV cache: a sequence of ", sequence.length, " tokens cannot go back to ",
      length, ": tokens in its window were dropped"));
}

absl::Status KvCache::Impl::DropBehindWindows(KvSequence* sequence,
                                              uint64_t length, bool urgent) {
  KvRegion* const region = sequence->region.get();
  // A step that goes back computes its last token anew, or none.
  if (length < sequence->length)
    return CheckGoingBack(*sequence, SaturatingSubtract(length, 1));
  // What was admitted is yet to be computed.
  if (!sequence->stepped && length == sequence->length) return absl::OkStatus();
  uint64_t next = std::min(sequence->length + 1, length);
  // A prompt may continue what was published, at the end of a block.
  if (region->prefix() != PrefixEntryId())
    next = std::min(
        next, sequence->length - sequence->length % index_.block_tokens() + 1);
  if (next < region->drop_at() || sequence->batch == batch_)
    return absl::OkStatus();
  const bool ahead = options_.page_ahead.max_steps > 0;
  if (!urgent && HoldsForBranch(region))
    next = std::min(next, region->branch() + 1);
  // While others may be copying from the windows, the driver must be asked.
  // With page-ahead no step does that: a later one drops what is left.
  if (!urgent && ahead && region->has_readers()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(SetFence(region, batch_fence_));
  Modify(region, [&](KvRegion* r) { r->DropBehind(next); });
  if (region->prefix() != PrefixEntryId())
    index_.Limit(region->prefix(), region->WholeTokens());
  if (!LimitsParked()) return absl::OkStatus();
  if (ahead) {
    dropped_ = true;
  } else {
    // A refusal is the region's damage; the sequence does not see these pages.
    GiveBack(region, region->behind()).IgnoreError();
  }
  return absl::OkStatus();
}

bool KvCache::Impl::ReturnDropped() {
  {
    MutexLock lock(&state_mutex_);
    if (!dropped_) return false;
  }
  const uint64_t start = Now();
  const PageCount given = ReturnBehindWindows();
  CountCalls(start, given);
  return !given.zero();
}

PageCount KvCache::Impl::ReturnBehindWindows() {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  dropped_ = false;
  const PageCount most = PieceInTime();
  PageCount given;
  for (const KvSequence& sequence : sequences_) {
    if (!sequence.region) continue;
    KvRegion* const region = sequence.region.get();
    if (!region->SettleReaders()) dropped_ = true;
    if (!LimitsParked() || region->behind().zero()) continue;
    if (given < most && region->FenceIsComplete()) {
      const auto pages = GiveBack(
          region,
          std::min(region->behind(), PageCount(most.value() - given.value())));
      if (pages.ok()) given = Plus(given, *pages);
    }
    // A region that the driver refuses is damaged, and of no use here.
    if (!region->behind().zero() && !region->damaged()) dropped_ = true;
  }
  return given;
}

// The pages of the window lie in the store, too, before the region gives them
// up: nothing is copied, and nobody waits.
void KvCache::Impl::KeepLastWindows(KvRegion* region) {
  const PrefixEntryId prefix = region->prefix();
  if (prefix == PrefixEntryId() || index_.TokensOf(prefix) == 0) return;
  const uint64_t tokens = index_.TokensOf(prefix);
  bool gaps = false;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
    gaps |= !region->Gap(group).count.zero();
  if (!gaps) {
    // What was behind the windows is there, and stays.
    index_.Limit(prefix, UINT64_MAX);
    return;
  }
  if (region->damaged() || !region->CanGoBackTo(tokens)) return;
  std::vector<PackedTail> windows;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    if (region->Gap(group).count.zero()) continue;
    absl::StatusOr<PackedTail> window = TakeLastWindow(*region, group, tokens);
    if (!window.ok()) {
      for (const PackedTail& taken : windows) tails_.Free(taken.tail);
      return;
    }
    windows.push_back(*std::move(window));
  }
  // What cools under the region must not come back to it: it is the store's.
  if (region->fence() != Fence())
    region->AddCooling(region->fence(), /*shared=*/true);
  region->set_packed(std::move(windows));
  index_.KeepEnd(prefix);
  ++counted_.windows_kept;
}

absl::StatusOr<PackedTail> KvCache::Impl::TakeLastWindow(const KvRegion& region,
                                                         uint32_t group,
                                                         uint64_t tokens) {
  const KvLayout& layout = geometry_.layout();
  const uint64_t row = layout.RowBytes(group).value();
  const uint64_t page = geometry_.page_size().value();
  const uint64_t first =
      KeptTokens(region.kept_kind(layout.GroupKind(group)), tokens + 1).first;
  const PageCount sinks = region.Gap(group).first;
  const uint64_t chunk = tails_.chunk_size().value();
  const uint64_t begin = first * row / chunk * chunk;
  const uint64_t end = tokens * row;
  std::vector<PageHandle> pages;
  for (uint64_t slot = begin / page; slot * page < end; ++slot)
    pages.push_back(memory_->PageAt(
        region.range(), Plus(geometry_.FirstPage(group), PageCount(slot))));
  QUIRE_ASSIGN_OR_RETURN(
      TailStore::Tail tail,
      tails_.TakeOver(pages, begin % page, Bytes(end - begin), region.fence()));
  return PackedTail{group, sinks, Bytes(begin), std::move(tail)};
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
  const KvSequence& sequence = sequences_[*slot];
  const uint32_t kind = layout.GroupKind(layout.PlaceOf(layer).keys.group);
  return KeptTokens(sequence.region->kept_kind(kind), sequence.length);
}

absl::StatusOr<KvTokenLimit> KvCache::Impl::LimitOf(SequenceId id) const {
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "look at");
  return sequences_[*slot].region->limit();
}

Bytes KvCache::Impl::KeptBytes(const KvSequence& sequence) const {
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
