// The public face of KvCache: every call is refused in a forked child, runs
// with the hooks of the memory held back, and is followed by a check in builds
// that check.

#include "quire/paging/kv_cache.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "paging/process_check.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(
    DeviceMemory* memory, const KvLayout& layout,
    const KvCacheOptions& options) {
  if (options.max_sequences == 0)
    return absl::InvalidArgumentError("KV cache: max_sequences is 0");
  if (options.page_ahead.thread && options.page_ahead.max_steps == 0)
    return absl::InvalidArgumentError(
        "KV cache: a thread that maps pages 0 steps ahead");
  if (!options.swap_space.zero() && options.swap_space < memory->page_size())
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: a swap space of ", FormatBytes(options.swap_space),
        " holds no page of ", FormatBytes(memory->page_size())));
  QUIRE_RETURN_IF_ERROR(CheckTokenLimit(options.limit));
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
  if (!options.swap_space.zero())
    QUIRE_RETURN_IF_ERROR(cache->impl_->StartSwap());
  cache->memory_ = memory;
  memory->AddReclaimer(cache.get());
  if (options.page_ahead.thread)
    QUIRE_RETURN_IF_ERROR(cache->impl_->StartAhead());
  return cache;
}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvCache::~KvCache() {
  // Create failed before the memory knew of the cache.
  if (memory_ == nullptr) return;
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
bool KvCache::KeepsAllTokens() const { return impl_->KeepsAllTokens(); }
// Hooks of the memory run when the locks of the cache are released, so that
// they may call it. A step that is short of pages asks them for more; an
// admission is refused instead, since its caller can wait.
absl::StatusOr<SequenceId> KvCache::Admit(uint64_t tokens,
                                          std::optional<KvTokenLimit> limit) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
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
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::StatusOr<PromptAdmission> admission =
      impl_->AdmitPrompt(tokens, options);
  impl_->CheckAfterMutation();
  return admission;
}
absl::StatusOr<PromptAdmission> KvCache::AdmitPromptInSteps(
    std::span<const int32_t> tokens, uint64_t step_tokens,
    const SequenceOptions& options) {
  return AdmitPrompt(tokens, {.stream = impl_->options().stream,
                              .priority = options.priority,
                              .retain_until = options.retain_until,
                              .step_tokens = step_tokens,
                              .limit = options.limit});
}
absl::Status KvCache::Publish(SequenceId sequence,
                              std::span<const int32_t> tokens) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  absl::Status status = impl_->Publish(sequence, tokens);
  impl_->CheckAfterMutation();
  return status;
}
absl::StatusOr<SequenceId> KvCache::Fork(SequenceId parent) {
  const StreamId stream = impl_->options().stream;
  if (stream == StreamId())
    return absl::FailedPreconditionError(
        "KV cache: the options name no stream on which a fork could be copied");
  return Fork(parent, stream);
}
absl::StatusOr<SequenceId> KvCache::Fork(SequenceId parent, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::StatusOr<SequenceId> sequence = impl_->Fork(parent, stream);
  impl_->CheckAfterMutation();
  return sequence;
}
SequenceSwap* KvCache::swap() {
  return impl_->options().swap_space.zero() ? nullptr : this;
}
absl::Status KvCache::SwapOut(SequenceId sequence, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->SwapOut(sequence, fence);
  impl_->CheckAfterMutation();
  return status;
}
absl::Status KvCache::SwapIn(SequenceId sequence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->SwapIn(sequence);
  impl_->CheckAfterMutation();
  return status;
}
void KvCache::ExpectPrompt(std::span<const int32_t> tokens, uint64_t turn) {
  if (!memory_->in_forked_child()) impl_->ExpectPrompt(tokens, turn);
}

void KvCache::AdvanceTurn(uint64_t turn) {
  if (!memory_->in_forked_child()) impl_->AdvanceTurn(turn);
}

void KvCache::AdvanceClock(uint64_t now) {
  if (!memory_->in_forked_child()) impl_->AdvanceClock(now);
}
absl::Status KvCache::Step(std::span<const SequenceStep> steps) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  absl::Status status =
      WithOutOfMemoryHooks(memory_, [&] { return impl_->Step(steps); });
  impl_->CheckAfterMutation();
  return status;
}
absl::Status KvCache::Shrink(SequenceId sequence, uint64_t length,
                             const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->Shrink(sequence, length, fence);
  impl_->CheckAfterMutation();
  return status;
}
absl::Status KvCache::Release(SequenceId sequence, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  const HookDeferral deferral(memory_);
  absl::Status status = impl_->Release(sequence, fence);
  impl_->CheckAfterMutation();
  return status;
}
absl::StatusOr<KvLayerView> KvCache::View(SequenceId sequence,
                                          uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->View(sequence, layer);
}
absl::StatusOr<uint64_t> KvCache::Length(SequenceId sequence) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->Length(sequence);
}
uint64_t KvCache::AdmissibleTokens() const {
  return memory_->in_forked_child() ? 0 : impl_->AdmissibleTokens();
}
bool KvCache::HasRoomFor(std::span<const SequenceGrowth> growths) const {
  return !memory_->in_forked_child() && impl_->HasRoomFor(growths);
}
bool KvCache::PrepareRoom(std::span<const int32_t> prompt,
                          const SequenceGrowth& growth) {
  // The admission says what is wrong.
  if (memory_->in_forked_child()) return true;
  const HookDeferral deferral(memory_);
  const bool prepared = impl_->PrepareRoom(prompt, growth);
  impl_->CheckAfterMutation();
  return prepared;
}
absl::Status KvCache::PrepareNextSteps() {
  return impl_->options().page_ahead.max_steps == 0 ? absl::OkStatus()
                                                    : PrepareAhead().status();
}
CacheUse KvCache::Use() const {
  return memory_->in_forked_child() ? CacheUse() : impl_->Use();
}
absl::StatusOr<Bytes> KvCache::FreedByRelease(SequenceId sequence) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->FreedByRelease(sequence);
}
void KvCache::EndBatch(const Fence& fence) {
  if (!memory_->in_forked_child()) impl_->EndBatch(fence);
}
absl::StatusOr<KvKeptTokens> KvCache::Kept(SequenceId sequence,
                                           uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->Kept(sequence, layer);
}
absl::StatusOr<KvTokenLimit> KvCache::LimitOf(SequenceId sequence) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->LimitOf(sequence);
}
absl::StatusOr<PageCount> KvCache::PrepareAhead(std::optional<uint32_t> steps) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
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
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  return impl_->CheckInvariants();
}
PageCount KvCache::Reclaim(PageCount wanted) { return impl_->Reclaim(wanted); }
// Reclaim gives what cools as well: there is nothing more to give.
PageCount KvCache::ReclaimFrom(OwnerId owner, PageCount wanted, bool cooling) {
  return cooling ? PageCount(0) : impl_->ReclaimFrom(owner, wanted);
}
PageCount KvCache::Reclaimable() const { return impl_->Reclaimable(); }
void KvCache::AfterWake(OwnerId owner) { impl_->AfterWake(owner); }
std::string KvCache::ReclaimerName() const { return "parked KV regions"; }

}  // namespace quire
