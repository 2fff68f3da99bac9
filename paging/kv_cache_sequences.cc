// The sequences of a KvCache, from Admit to Release.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

KvCache::Impl::~Impl() {
  ahead_thread_.reset();
  MutexLock lock(&state_mutex_);
  // Waits for its copies.
  if (swap_space_ != nullptr)
    (void)memory_->driver()->DestroyStream(copy_stream_);
  if (tail_stream_ != StreamId())
    (void)memory_->driver()->DestroyStream(tail_stream_);
  // No kernel uses them; copies of the cache's own may.
  for (KvSequence& sequence : sequences_) {
    if (sequence.region)
      memory_->ReleaseRange(sequence.region->range(), sequence.region->fence());
  }
  for (KvRegion* region : parked_.OldestFirst())
    memory_->ReleaseRange(region->range(), region->fence());
}

// An id is a slot and how often the slot was released before: found without a
// hash table, and dead once it is released.
std::optional<size_t> KvCache::Impl::FindSlot(SequenceId id) const {
  const uint64_t slot = SlotOf(id);
  if (slot >= sequences_.size() || !sequences_[slot].region ||
      sequences_[slot].generation != id.value() >> 32)
    return std::nullopt;
  return slot;
}

absl::Status KvCache::Impl::NoSuchSequence(SequenceId id, const char* purpose) {
  return absl::NotFoundError(
      absl::StrCat("KV cache: no sequence ", id.value(), " to ", purpose));
}

SequenceId KvCache::Impl::IdOf(size_t slot) const {
  return SequenceId(uint64_t{sequences_[slot].generation} << 32 | (slot + 1));
}

absl::Status KvCache::Impl::CheckLength(uint64_t tokens) const {
  if (tokens <= geometry_.max_tokens()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache: a sequence of ", tokens,
                   " tokens exceeds the maximum of ", geometry_.max_tokens()));
}

absl::Status KvCache::Impl::CheckFreeSlot() const {
  if (HasFreeSlot()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "KV cache: all ", options_.max_sequences, " sequences are in use"));
}

absl::StatusOr<SequenceId> KvCache::Impl::Admit(uint64_t tokens,
                                                const KvTokenLimit& limit) {
  QUIRE_RETURN_IF_ERROR(CheckLength(tokens));
  QUIRE_RETURN_IF_ERROR(CheckTokenLimit(limit));
  waiting_.fetch_add(1, std::memory_order_relaxed);
  MutexLock operation(&operation_mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  QUIRE_ASSIGN_OR_RETURN(const TakenRegion taken, TakeRegion(tokens));
  {
    MutexLock lock(&state_mutex_);
    taken.region->SetLimit(limit);
  }
  PageDemand demand{taken.region, tokens};
  const auto mapped = Back(std::span(&demand, 1), options_.headroom);
  MutexLock lock(&state_mutex_);
  if (!mapped.ok()) {
    CloseSlot(taken.slot, taken.stamp);
    return mapped.status();
  }
  if (taken.stamp != 0) ++counted_.adoptions;
  return BeginSequence(taken.slot, tokens);
}

SequenceId KvCache::Impl::BeginSequence(size_t slot, uint64_t tokens) {
  sequences_[slot].length = tokens;
  sequences_[slot].batch = batch_;
  sequences_[slot].stepped = false;
  tokens_ += tokens;
  return IdOf(slot);
}

absl::StatusOr<TakenRegion> KvCache::Impl::TakeRegion(uint64_t tokens) {
  // A prefix that would be given up page by page is given up at once where all
  // of its pages are needed: they need not be mapped again.
  const PageCount pages = geometry_.PagesOf(tokens);
  const PageCount lacking(
      SaturatingSubtract(pages.value(), GetSupply().at_once.value()));
  {
    MutexLock lock(&state_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
    ParkedRegions::Entry parked = parked_.TakeBestFit(tokens);
    if (!parked.region && !lacking.zero()) {
      PageCount packed;
      PackTails(lacking, &packed);
      if (packed < lacking) parked = TakeVictim(PageCount(1), pages);
    }
    if (parked.region) return OpenSlot(std::move(parked));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<KvRegion> region, ReserveRegion());
  MutexLock lock(&state_mutex_);
  return OpenSlot({std::move(region)});
}

absl::StatusOr<TakenRegion> KvCache::Impl::TakeEmptyRegion() {
  {
    MutexLock lock(&state_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
    if (std::unique_ptr<KvRegion> region = parked_.TakeCold()) {
      memory_->Harvest();
      return OpenSlot({std::move(region)});
    }
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<KvRegion> region, ReserveRegion());
  MutexLock lock(&state_mutex_);
  return OpenSlot({std::move(region)});
}

absl::StatusOr<TakenRegion> KvCache::Impl::TakeHolder(const KvRegion* region) {
  MutexLock lock(&state_mutex_);
  QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
  return OpenSlot(parked_.Take(region));
}

absl::StatusOr<std::unique_ptr<KvRegion>> KvCache::Impl::ReserveRegion() {
  for (;;) {
    const auto range = memory_->ReserveRange(geometry_.pages(), options_.owner);
    if (range.ok()) return std::make_unique<KvRegion>(&geometry_, *range);
    MutexLock lock(&state_mutex_);
    ParkedRegions::Entry victim =
        TakeVictim(PageCount(0), PageCount(UINT64_MAX));
    if (!victim.region) return range.status();
    Dispose(std::move(victim.region));
  }
}

TakenRegion KvCache::Impl::OpenSlot(ParkedRegions::Entry entry) {
  if (free_slots_.empty()) {
    free_slots_.push_back(sequences_.size());
    sequences_.emplace_back();
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  KvRegion* const region = entry.region.get();
  sequences_[slot].region = std::move(entry.region);
  Modify(region, [](KvRegion* r) { r->set_parked(false); });
  if (LimitsParked() && !region->committed().zero()) {
    adopted_.push_back(IdOf(slot));
    trim_ = true;
  }
  return {slot, entry.stamp, region};
}

void KvCache::Impl::EndSequence(size_t slot) {
  KvRegion* const region = sequences_[slot].region.get();
  KeepLastWindows(region);
  // The pages of a whole sequence are given back by Trim, with page-ahead while
  // the device computes; behind a prefix there are but a few.
  if (LimitsParked() && region->prefix() != PrefixEntryId()) {
    Forget(region);
    // A refusal is the region's damage: it is not parked.
    GiveBack(region, region->spare(), PagesOfPrefix(*region)).IgnoreError();
  }
  CloseSlot(slot, std::nullopt);
  if (!LimitsParked()) return;
  trim_ = true;
  // Where no sequence is left, there is no step that could wait.
  if (options_.page_ahead.max_steps == 0 ||
      free_slots_.size() == sequences_.size())
    Trim(PageCount(UINT64_MAX), /*complete_only=*/false);
}

// A stamp says that the sequence never was: the region goes back to where it
// stood, or, where it was reserved for the sequence, is released.
void KvCache::Impl::CloseSlot(size_t slot, std::optional<uint64_t> stamp) {
  KvSequence& sequence = sequences_[slot];
  tokens_ -= sequence.length;
  sequence.length = 0;
  ++sequence.generation;
  free_slots_.push_back(slot);
  sequence.priority = 0;
  sequence.retain_until = UINT64_MAX;
  std::unique_ptr<KvRegion> region = std::move(sequence.region);
  SetBranch(region.get(), 0);
  Forget(region.get());
  Modify(region.get(), [](KvRegion* r) { r->set_parked(true); });
  const PrefixEntryId prefix = region->prefix();
  if (prefix != PrefixEntryId())
    index_.Truncate(prefix, index_.FoundTokensOf(prefix));
  const bool keep = prefix != PrefixEntryId() && index_.TokensOf(prefix) > 0;
  if (!keep) ForgetPrefix(region.get());
  if (region->damaged() || stamp == uint64_t{0}) {
    Dispose(std::move(region));
    return;
  }
  if (keep) {
    if (!stamp) index_.Touch(prefix);
    index_.Unpin(prefix);
  }
  if (stamp) {
    parked_.PutBack({std::move(region), *stamp});
  } else {
    parked_.Park(std::move(region));
  }
}

void KvCache::Impl::Dispose(std::unique_ptr<KvRegion> region) {
  DropPrefix(region.get());
  shared_.Strike(region.get());
  totals_.Subtract(*region);
  PublishReclaimable();
  memory_->ReleaseRange(region->range(), region->fence());
}

// A decode step where no sequence crosses into a new page is a few compares a
// sequence, and allocates nothing.
absl::Status KvCache::Impl::Step(std::span<const SequenceStep> steps) {
  StepStart start;
  if (options_.page_ahead.max_steps > 0) start.now = Now();
  start.finds_mapping = mapping_ahead_.load(std::memory_order_relaxed);
  waiting_.fetch_add(1, std::memory_order_relaxed);
  MutexLock operation(&operation_mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (branches_ > 0 && options_.page_ahead.max_steps == 0) KeepBranches(steps);
  {
    MutexLock lock(&state_mutex_);
    QUIRE_RETURN_IF_ERROR(Examine(steps));
    start.needed = CountPages().needed();
    if (demands_.empty() && on_shared_pages_.empty()) {
      FinishStep(steps, start, /*mapped=*/false);
      return absl::OkStatus();
    }
  }
  for (const size_t slot : on_shared_pages_)
    QUIRE_RETURN_IF_ERROR(Unshare(slot));
  absl::StatusOr<bool> mapped = Back(demands_, PageCount(0));
  if (absl::IsResourceExhausted(mapped.status()) && DropAtOnce(steps))
    mapped = Back(demands_, PageCount(0));
  QUIRE_RETURN_IF_ERROR(mapped.status());
  MutexLock lock(&state_mutex_);
  FinishStep(steps, start, *mapped);
  return absl::OkStatus();
}

absl::Status KvCache::Impl::Examine(std::span<const SequenceStep> steps) {
  demands_.clear();
  on_shared_pages_.clear();
  ++attempted_steps_;
  for (const SequenceStep& step : steps) {
    const auto slot = FindResident(step.sequence);
    if (!slot) return NotResident(step.sequence, "step");
    if (step.length > geometry_.max_tokens())
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: a step of sequence ", step.sequence.value(),
                       " to ", step.length, " tokens exceeds the maximum of ",
                       geometry_.max_tokens()));
    KvSequence& sequence = sequences_[*slot];
    if (step.length < sequence.length ||
        sequence.length + 1 >= sequence.region->drop_at())
      QUIRE_RETURN_IF_ERROR(
          DropBehindWindows(&sequence, step.length, /*urgent=*/false));
    if (sequence.step == attempted_steps_)
      return absl::InvalidArgumentError(absl::StrCat("KV cache: sequence ",
                                                     step.sequence.value(),
                                                     " is in one step twice"));
    sequence.step = attempted_steps_;
    QUIRE_RETURN_IF_ERROR(ExamineShared(sequence, step));
    if (step.length > sequence.region->quiet_tokens())
      demands_.push_back({sequence.region.get(), step.length});
  }
  return absl::OkStatus();
}

absl::Status KvCache::Impl::ExamineShared(const KvSequence& sequence,
                                          const SequenceStep& step) {
  const SharedSlots* const shared = sequence.region->shared();
  if (shared == nullptr || step.length <= sequence.length ||
      sequence.length >= shared->end_token)
    return absl::OkStatus();
  if (sequence.region->used_tokens() > sequence.length)
    return absl::FailedPreconditionError(absl::StrCat(
        "KV cache: sequence ", step.sequence.value(), " went back to ",
        sequence.length, " tokens and shares rows up to token ",
        shared->end_token, ": Shrink it before they are written again"));
  on_shared_pages_.push_back(SlotOf(step.sequence));
  return absl::OkStatus();
}

void KvCache::Impl::FinishStep(std::span<const SequenceStep> steps,
                               const StepStart& start, bool mapped) {
  for (const SequenceStep& step : steps) {
    KvSequence& sequence = sequences_[SlotOf(step.sequence)];
    if (step.length > sequence.length)
      sequence.growth = static_cast<uint32_t>(
          std::min(step.length - sequence.length, kMostTokensOfADecodeStep));
    tokens_ = tokens_ - sequence.length + step.length;
    sequence.length = step.length;
    sequence.batch = batch_;
    sequence.stepped = true;
    sequence.region->UseQuietly(step.length);
  }
  ++counted_.steps;
  if (!mapped) ++counted_.steps_without_mapping;
  if (mapped || start.finds_mapping) ++counted_.steps_waited;
  if (options_.page_ahead.max_steps > 0)
    PlanAhead(start.now,
              PageCount(SaturatingSubtract(CountPages().needed().value(),
                                           start.needed.value())));
}

absl::Status KvCache::Impl::Shrink(SequenceId id, uint64_t length,
                                   const Fence& fence) {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  const auto slot = FindResident(id);
  if (!slot) return NotResident(id, "shrink");
  KvSequence& sequence = sequences_[*slot];
  if (length > sequence.length)
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: sequence ", id.value(), " has ",
                     sequence.length, " tokens and cannot shrink to ", length));
  KvRegion* const region = sequence.region.get();
  QUIRE_RETURN_IF_ERROR(CheckGoingBack(sequence, length));
  QUIRE_RETURN_IF_ERROR(SetFence(region, fence));
  tokens_ -= sequence.length - length;
  sequence.length = length;
  if (region->prefix() != PrefixEntryId())
    index_.Truncate(region->prefix(), length);
  Modify(region, [&](KvRegion* r) { r->set_used_tokens(length); });
  return GiveBack(region, region->spare()).status();
}

absl::Status KvCache::Impl::Release(SequenceId id, const Fence& fence) {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "release");
  KvSequence& sequence = sequences_[*slot];
  KvRegion* const region = sequence.region.get();
  QUIRE_RETURN_IF_ERROR(SetFence(region, fence));
  if (sequence.swapped) EndSwap(&sequence, MappedPages(*region));
  EndSequence(*slot);
  return absl::OkStatus();
}

}  // namespace quire
