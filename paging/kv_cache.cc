#include "quire/paging/kv_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"

namespace quire {
KvCache::Impl::~Impl() {
  ahead_thread_.reset();
  MutexLock lock(&state_mutex_);
  for (Sequence& sequence : sequences_) {
    if (sequence.region)
      memory_->ReleaseRange(sequence.region->range(), Fence());
  }
  for (KvRegion* region : parked_.OldestFirst())
    memory_->ReleaseRange(region->range(), region->fence());
}

// ---- Sequences --------------------------------------------------------------

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
  QUIRE_RETURN_IF_ERROR(CheckLimit(limit));
  waiting_.fetch_add(1, std::memory_order_relaxed);
  MutexLock operation(&operation_mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  QUIRE_ASSIGN_OR_RETURN(const Taken taken, TakeRegion(tokens));
  {
    MutexLock lock(&state_mutex_);
    taken.region->SetLimit(limit);
  }
  Demand demand{taken.region, tokens};
  const auto mapped = Back(std::span(&demand, 1), options_.headroom);
  MutexLock lock(&state_mutex_);
  if (!mapped.ok()) {
    CloseSlot(taken.slot, taken.stamp);
    return mapped.status();
  }
  if (taken.stamp != 0) ++adoptions_;
  return BeginSequence(taken.slot, tokens);
}

SequenceId KvCache::Impl::BeginSequence(size_t slot, uint64_t tokens) {
  sequences_[slot].length = tokens;
  sequences_[slot].batch = batch_;
  tokens_ += tokens;
  return IdOf(slot);
}

absl::StatusOr<KvCache::Impl::Taken> KvCache::Impl::TakeRegion(
    uint64_t tokens) {
  // A prefix that would be given up page by page is given up at once, and its
  // pages need not be mapped again.
  const bool short_of_pages = geometry_.PagesOf(tokens) > GetSupply().at_once;
  {
    MutexLock lock(&state_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
    ParkedRegions::Entry parked = parked_.TakeBestFit(tokens);
    if (!parked.region && short_of_pages) parked = TakeVictim();
    if (parked.region) return OpenSlot(std::move(parked));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<KvRegion> region, ReserveRegion());
  MutexLock lock(&state_mutex_);
  return OpenSlot({std::move(region)});
}

absl::StatusOr<KvCache::Impl::Taken> KvCache::Impl::TakeEmptyRegion() {
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

absl::StatusOr<KvCache::Impl::Taken> KvCache::Impl::TakeHolder(
    const KvRegion* region) {
  MutexLock lock(&state_mutex_);
  QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
  return OpenSlot(parked_.Take(region));
}

absl::StatusOr<std::unique_ptr<KvRegion>> KvCache::Impl::ReserveRegion() {
  for (;;) {
    const auto range = memory_->ReserveRange(geometry_.pages(), options_.owner);
    if (range.ok()) return std::make_unique<KvRegion>(&geometry_, *range);
    MutexLock lock(&state_mutex_);
    ParkedRegions::Entry victim = TakeVictim();
    if (!victim.region) return range.status();
    Dispose(std::move(victim.region));
  }
}

KvCache::Impl::Taken KvCache::Impl::OpenSlot(ParkedRegions::Entry entry) {
  if (free_slots_.empty()) {
    free_slots_.push_back(sequences_.size());
    sequences_.emplace_back();
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  KvRegion* const region = entry.region.get();
  sequences_[slot].region = std::move(entry.region);
  Modify(region, [](KvRegion* r) { r->set_parked(false); });
  return {slot, entry.stamp, region};
}

// A stamp says that the sequence never was: the region goes back to where it
// stood, or, where it was reserved for the sequence, is released.
void KvCache::Impl::CloseSlot(size_t slot, std::optional<uint64_t> stamp) {
  Sequence& sequence = sequences_[slot];
  tokens_ -= sequence.length;
  sequence.length = 0;
  ++sequence.generation;
  free_slots_.push_back(slot);
  sequence.priority = 0;
  sequence.retain_until = UINT64_MAX;
  std::unique_ptr<KvRegion> region = std::move(sequence.region);
  Forget(region.get());
  Modify(region.get(), [](KvRegion* r) { r->set_parked(true); });
  const PrefixEntryId prefix = region->prefix();
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
  QUIRE_ASSIGN_OR_RETURN(const bool mapped, Back(demands_, PageCount(0)));
  MutexLock lock(&state_mutex_);
  FinishStep(steps, start, mapped);
  return absl::OkStatus();
}

absl::Status KvCache::Impl::Examine(std::span<const SequenceStep> steps) {
  demands_.clear();
  on_shared_pages_.clear();
  ++attempted_steps_;
  for (const SequenceStep& step : steps) {
    const auto slot = FindSlot(step.sequence);
    if (!slot) return NoSuchSequence(step.sequence, "step");
    if (step.length > geometry_.max_tokens())
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: a step of sequence ", step.sequence.value(),
                       " to ", step.length, " tokens exceeds the maximum of ",
                       geometry_.max_tokens()));
    Sequence& sequence = sequences_[*slot];
    if (step.length < sequence.length ||
        sequence.length + 1 >= sequence.region->drop_at())
      QUIRE_RETURN_IF_ERROR(DropBehindWindows(&sequence, step.length));
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

absl::Status KvCache::Impl::ExamineShared(const Sequence& sequence,
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
    Sequence& sequence = sequences_[SlotOf(step.sequence)];
    if (step.length > sequence.length)
      sequence.growth =
          std::min(step.length - sequence.length, kMostTokensOfADecodeStep);
    tokens_ = tokens_ - sequence.length + step.length;
    sequence.length = step.length;
    sequence.batch = batch_;
    sequence.region->UseQuietly(step.length);
  }
  ++steps_;
  if (!mapped) ++steps_without_mapping_;
  if (mapped || start.finds_mapping) ++steps_waited_;
  if (options_.page_ahead.max_steps > 0)
    PlanAhead(start.now,
              PageCount(SaturatingSubtract(CountPages().needed().value(),
                                           start.needed.value())));
}

absl::Status KvCache::Impl::Shrink(SequenceId id, uint64_t length,
                                   const Fence& fence) {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "shrink");
  Sequence& sequence = sequences_[*slot];
  if (length > sequence.length)
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: sequence ", id.value(), " has ",
                     sequence.length, " tokens and cannot shrink to ", length));
  KvRegion* const region = sequence.region.get();
  QUIRE_RETURN_IF_ERROR(CheckGoingBack(sequence, length));
  QUIRE_RETURN_IF_ERROR(region->SetFence(fence));
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
  KvRegion* const region = sequences_[*slot].region.get();
  QUIRE_RETURN_IF_ERROR(region->SetFence(fence));
  if (options_.eager_reclaim) {
    Forget(region);
    // A refusal is the region's damage: it is not parked.
    GiveBack(region, region->spare(), PagesOfPrefix(*region)).IgnoreError();
  }
  CloseSlot(*slot, std::nullopt);
  return absl::OkStatus();
}

// ---- Reading ----------------------------------------------------------------

absl::Status KvCache::Impl::CheckLayer(uint32_t layer) const {
  const uint32_t layers = geometry_.layout().layers();
  if (layer < layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache: no layer ", layer, " of ", layers));
}

absl::StatusOr<KvLayerView> KvCache::Impl::View(SequenceId id,
                                                uint32_t layer) const {
  const KvLayout& layout = geometry_.layout();
  QUIRE_RETURN_IF_ERROR(CheckLayer(layer));
  const KvLayout::LayerPlace& place = layout.PlaceOf(layer);
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "view");
  const uint64_t region = sequences_[*slot].region->range()->address().value();
  const auto at = [&](const KvLayout::SidePlace& side, Bytes offset) {
    return DeviceAddress(region + geometry_.Offset(side.group).value() +
                         offset.value());
  };
  KvLayerView view;
  view.keys = at(place.keys, place.keys.offset);
  view.values = at(place.values, place.values.offset);
  view.row_stride = place.keys.row_stride;
  view.value_stride = place.values.row_stride;
  view.key_scales = at(place.keys, place.keys.scales);
  view.value_scales = at(place.values, place.values.scales);
  return view;
}

absl::StatusOr<uint64_t> KvCache::Impl::Length(SequenceId id) const {
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "measure");
  return sequences_[*slot].length;
}

uint64_t KvCache::Impl::AdmissibleTokens() const {
  {
    MutexLock lock(&state_mutex_);
    if (!HasFreeSlot()) return 0;
  }
  const auto pages =
      CheckedSubtract(GetSupply().in_all.value(), options_.headroom.value());
  if (!pages) return 0;
  // The longest length whose pages suffice: they grow with the length.
  uint64_t fits = 0;
  uint64_t too_long = geometry_.max_tokens() + 1;
  while (too_long - fits > 1) {
    const uint64_t middle = fits + (too_long - fits) / 2;
    (geometry_.PagesOf(middle).value() <= *pages ? fits : too_long) = middle;
  }
  return fits;
}

CacheUse KvCache::Impl::Use() const {
  Totals totals;
  {
    MutexLock lock(&state_mutex_);
    totals = CountPages();
  }
  const auto bytes = [&](uint64_t pages) {
    return Bytes(pages * geometry_.page_size().value());
  };
  CacheUse use;
  use.held = bytes(totals.admitted + totals.parked);
  use.needed = bytes(totals.needed().value());
  use.capacity = SaturatingAdd(use.needed, bytes(GetSupply().in_all.value()));
  return use;
}

absl::StatusOr<Bytes> KvCache::Impl::FreedByRelease(SequenceId id) const {
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "weigh");
  const KvRegion& region = *sequences_[*slot].region;
  return Bytes((region.committed().value() - region.spare().value() -
                shared_.NeededElsewhere(region)) *
               geometry_.page_size().value());
}

KvCacheStatistics KvCache::Impl::GetStatistics() const {
  MutexLock lock(&state_mutex_);
  const auto bytes = [&](uint64_t pages) {
    return Bytes(pages * geometry_.page_size().value());
  };
  KvCacheStatistics statistics;
  statistics.sequences =
      static_cast<uint32_t>(sequences_.size() - free_slots_.size());
  statistics.parked_regions = static_cast<uint32_t>(parked_.size());
  statistics.tokens = tokens_;
  for (const Sequence& sequence : sequences_) {
    if (sequence.region)
      statistics.used = SaturatingAdd(statistics.used, KeptBytes(sequence));
  }
  const Totals pages = CountPages();
  statistics.committed = bytes(pages.admitted);
  statistics.parked = bytes(pages.parked);
  statistics.cached_prefixes = bytes(pages.cached);
  statistics.reclaimable = bytes(pages.spare);
  statistics.shared =
      bytes(shared_.excess().admitted + shared_.excess().parked);
  statistics.reserved = bytes((statistics.sequences + parked_.size()) *
                              geometry_.pages().value());
  statistics.adoptions = adoptions_;
  statistics.steps = steps_;
  statistics.steps_without_mapping = steps_without_mapping_;
  statistics.steps_waited = steps_waited_;
  statistics.runs_mapped = runs_mapped_;
  statistics.runs_mapped_ahead = runs_mapped_ahead_;
  statistics.pages_mapped_ahead = pages_mapped_ahead_;
  statistics.steps_ahead = horizon_.steps();
  statistics.prompts = prompts_;
  statistics.prompt_tokens = prompt_tokens_;
  statistics.prefix_hits = prefix_hits_;
  statistics.prefix_tokens = prefix_tokens_;
  statistics.prefixes_evicted = prefixes_evicted_;
  statistics.forks = forks_;
  statistics.pages_unshared = pages_unshared_;
  return statistics;
}

absl::Status KvCache::Impl::CheckRegion(const KvRegion& region,
                                        Totals* counted) const {
  QUIRE_RETURN_IF_ERROR(region.CheckInvariants());
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    const PageCount live = memory_->CommittedPages(
        region.range(), geometry_.FirstPage(group),
        geometry_.PagesOf(group, geometry_.max_tokens()));
    if (live != region.live(group))
      return absl::InternalError(
          absl::StrCat("group ", group, " has ", live.value(),
                       " live pages, kept ", region.live(group).value()));
    const PageRun gap = region.Gap(group);
    if (!memory_->CommittedPages(region.range(), SlotInRange(gap), gap.count)
             .zero())
      return absl::InternalError(
          absl::StrCat("group ", group, " has pages in its gap"));
  }
  counted->Add(region);
  return absl::OkStatus();
}

absl::Status KvCache::Impl::CheckInvariants() const {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  Totals counted;
  uint64_t tokens = 0;
  size_t free = 0;
  for (size_t slot = 0; slot < sequences_.size(); ++slot) {
    const Sequence& sequence = sequences_[slot];
    if (!sequence.region) {
      ++free;
      continue;
    }
    const KvRegion& region = *sequence.region;
    QUIRE_RETURN_IF_ERROR(CheckRegion(region, &counted));
    if (region.parked() || sequence.length > region.used_tokens() ||
        region.MappingWork(region.used_tokens()) != PageCount(0))
      return absl::InternalError(
          absl::StrCat("sequence ", IdOf(slot).value(), " of ", sequence.length,
                       " tokens is not backed for ", region.used_tokens()));
    tokens += sequence.length;
  }
  for (const KvRegion* region : parked_.OldestFirst()) {
    QUIRE_RETURN_IF_ERROR(CheckRegion(*region, &counted));
    if (!region->parked() || region->used_tokens() != 0)
      return absl::InternalError("a parked region is in use");
  }
  if (free != free_slots_.size() || tokens != tokens_ || counted != totals_ ||
      CountPages().spare != reclaimable_.load(std::memory_order_relaxed))
    return absl::InternalError(absl::StrCat(
        "counted ", free, " free slots, ", tokens, " tokens and ",
        counted.admitted, " admitted, ", counted.parked, " parked, ",
        counted.spare, " spare pages; kept ", free_slots_.size(), ", ", tokens_,
        ", ", totals_.admitted, ", ", totals_.parked, ", ", totals_.spare));
  return CheckSharing();
}

void KvCache::Impl::CheckAfterMutation() const {
  if constexpr (kInternalChecks) RequireInvariant(CheckInvariants());
}

// ---- The public face --------------------------------------------------------

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(
    DeviceMemory* memory, const KvLayout& layout,
    const KvCacheOptions& options) {
  if (options.max_sequences == 0)
    return absl::InvalidArgumentError("KV cache: max_sequences is 0");
  if (options.page_ahead.thread && options.page_ahead.max_steps == 0)
    return absl::InvalidArgumentError(
        "KV cache: a thread that maps pages 0 steps ahead");
  QUIRE_RETURN_IF_ERROR(Impl::CheckLimit(options.limit));
  QUIRE_ASSIGN_OR_RETURN(
      const RegionGeometry geometry,
      RegionGeometry::Create(layout, options.max_sequence_length,
                             memory->page_size()));
  const Bytes region(geometry.pages().value() * memory->page_size().value());
  const Bytes addresses = memory->GetStatistics().address_space;
  if (region > addresses)
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: a sequence of max_sequence_length ",
        options.max_sequence_length, " takes ", FormatBytes(region),
        " of addresses, the device memory has ", FormatBytes(addresses)));
  std::unique_ptr<KvCache> cache(
      new KvCache(std::make_unique<Impl>(memory, geometry, options)));
  cache->memory_ = memory;
  memory->AddReclaimer(cache.get());
  if (options.page_ahead.thread)
    QUIRE_RETURN_IF_ERROR(cache->impl_->StartAhead());
  return cache;
}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvCache::~KvCache() {
  if (memory_->in_forked_child()) {
    // Its locks, its thread and its memory are the parent's.
    (void)impl_.release();
    return;
  }
  memory_->RemoveReclaimer(this);
}

const KvLayout& KvCache::layout() const { return impl_->geometry().layout(); }
uint64_t KvCache::max_sequence_length() const {
  return impl_->geometry().max_tokens();
}
// Hooks of the memory run when the locks of the cache are released, so that
// they may call it. A step that is short of pages asks them for more; an
// admission is refused instead, since its caller can wait.
absl::StatusOr<SequenceId> KvCache::Admit(uint64_t tokens,
                                          std::optional<KvTokenLimit> limit) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::StatusOr<SequenceId> sequence =
      impl_->Admit(tokens, limit.value_or(impl_->options().limit));
  impl_->CheckAfterMutation();
  return sequence;
}
absl::StatusOr<PromptAdmission> KvCache::AdmitPrompt(
    std::span<const int32_t> tokens) {
  return AdmitPrompt(tokens, {.stream = impl_->options().stream});
}
absl::StatusOr<PromptAdmission> KvCache::AdmitPrompt(
    std::span<const int32_t> tokens, const PromptOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::StatusOr<PromptAdmission> admission =
      impl_->AdmitPrompt(tokens, options);
  impl_->CheckAfterMutation();
  return admission;
}
absl::Status KvCache::Publish(SequenceId sequence,
                              std::span<const int32_t> tokens) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  absl::Status status = impl_->Publish(sequence, tokens);
  impl_->CheckAfterMutation();
  return status;
}
absl::StatusOr<SequenceId> KvCache::Fork(SequenceId parent, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::StatusOr<SequenceId> sequence = impl_->Fork(parent, stream);
  impl_->CheckAfterMutation();
  return sequence;
}
void KvCache::AdvanceClock(uint64_t now) {
  if (!memory_->in_forked_child()) impl_->AdvanceClock(now);
}
absl::Status KvCache::Step(std::span<const SequenceStep> steps) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  absl::Status status =
      WithOutOfMemoryHooks(memory_, [&] { return impl_->Step(steps); });
  impl_->CheckAfterMutation();
  return status;
}
absl::Status KvCache::Shrink(SequenceId sequence, uint64_t length,
                             const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->Shrink(sequence, length, fence);
  impl_->CheckAfterMutation();
  return status;
}
absl::Status KvCache::Release(SequenceId sequence, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->Release(sequence, fence);
  impl_->CheckAfterMutation();
  return status;
}
absl::StatusOr<KvLayerView> KvCache::View(SequenceId sequence,
                                          uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->View(sequence, layer);
}
absl::StatusOr<uint64_t> KvCache::Length(SequenceId sequence) const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Length(sequence);
}
uint64_t KvCache::AdmissibleTokens() const {
  return memory_->in_forked_child() ? 0 : impl_->AdmissibleTokens();
}
CacheUse KvCache::Use() const {
  return memory_->in_forked_child() ? CacheUse() : impl_->Use();
}
absl::StatusOr<Bytes> KvCache::FreedByRelease(SequenceId sequence) const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->FreedByRelease(sequence);
}
void KvCache::EndBatch(const Fence& fence) {
  if (!memory_->in_forked_child()) impl_->EndBatch(fence);
}
absl::StatusOr<KvKeptTokens> KvCache::Kept(SequenceId sequence,
                                           uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Kept(sequence, layer);
}
absl::StatusOr<PageCount> KvCache::PrepareAhead(std::optional<uint32_t> steps) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  const HookDeferral deferral(memory_);
  absl::StatusOr<PageCount> pages = impl_->PrepareAhead(steps);
  impl_->CheckAfterMutation();
  return pages;
}
KvCacheStatistics KvCache::GetStatistics() const {
  return memory_->in_forked_child() ? KvCacheStatistics()
                                    : impl_->GetStatistics();
}
absl::Status KvCache::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->CheckInvariants();
}
PageCount KvCache::Reclaim(PageCount wanted) { return impl_->Reclaim(wanted); }
// Reclaim gives what cools as well: there is nothing more to give.
PageCount KvCache::ReclaimFrom(OwnerId owner, PageCount wanted, bool cooling) {
  return cooling ? PageCount(0) : impl_->ReclaimFrom(owner, wanted);
}
PageCount KvCache::Reclaimable() const { return impl_->Reclaimable(); }
std::string KvCache::ReclaimerName() const { return "parked KV regions"; }

}  // namespace quire
