// How sequences share rows: pages that rows fill are mapped under both, and the
// rows behind the last of them are copied. Of layers that drop tokens, behind a
// window or a limit, all rows are copied that are left to a fork, and that the
// next token of a prompt sees: they are few, and each of the two drops its own.
//
// No page is written while it is shared. The one that shares starts to write
// behind its copied rows, and the one that is shared from behind all rows that
// it has; so only a sequence that goes back, by Shrink, may come to write on a
// shared page, and gets a page of its own first (Unshare).

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

uint64_t KvCache::Impl::FullPages(uint32_t group, uint64_t tokens) const {
  return geometry_.layout().RowBytes(group).value() * tokens /
         geometry_.page_size().value();
}

// Page sizes are powers of two, and so are these numbers: the largest is a
// multiple of all.
uint64_t KvCache::Impl::AlignedTokens() const {
  const uint64_t page = geometry_.page_size().value();
  uint64_t aligned = 1;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
    aligned = std::max(
        aligned,
        page / std::gcd(page, geometry_.layout().RowBytes(group).value()));
  return aligned;
}

Fence KvCache::Impl::FenceBehind(StreamId stream) const {
  auto fence = Fence::Record(memory_->driver(), memory_->device(),
                             std::span(&stream, 1));
  if (fence.ok()) return *std::move(fence);
  // Where the driver refuses to wait as well, the stream is not running.
  (void)memory_->driver()->SynchronizeStream(stream);
  return Fence();
}

// Which of the two was recorded first is not known, also where both are of one
// stream: a fence is one of the caller's, who may have recorded it before the
// copies were queued. So there is a third, behind all that their streams have.
absl::Status KvCache::Impl::SetFence(KvRegion* region, const Fence& fence) {
  if (region->SettleReaders()) {
    region->set_fence(fence);
    return absl::OkStatus();
  }
  const Fence readers = region->readers();
  std::vector<StreamId> streams(readers.streams().begin(),
                                readers.streams().end());
  for (const StreamId stream : fence.streams()) {
    if (std::ranges::find(streams, stream) == streams.end())
      streams.push_back(stream);
  }
  auto both = Fence::Record(memory_->driver(), memory_->device(), streams);
  if (!both.ok()) {
    QUIRE_RETURN_IF_ERROR(readers.Wait());
    both = fence;
  }
  region->set_fence(*both);
  return absl::OkStatus();
}

// ---- Prompts ----------------------------------------------------------------

absl::StatusOr<PromptAdmission> KvCache::Impl::AdmitPrompt(
    std::span<const int32_t> tokens, const PromptOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckLength(tokens.size()));
  const KvTokenLimit limit = options.limit.value_or(options_.limit);
  QUIRE_RETURN_IF_ERROR(CheckTokenLimit(limit));
  MutexLock operation(&operation_mutex_);
  const PrefixHit hit = limit == options_.limit
                            ? FindPrefix(tokens, options.stream)
                            : PrefixHit();
  auto admission = AdmitPromptOn(hit, tokens.size(), options);
  // While rows are taken from a region, it gives nothing up.
  if (absl::IsResourceExhausted(admission.status()) && hit.tokens > 0)
    admission = AdmitPromptOn(PrefixHit(), tokens.size(), options);
  return admission;
}

absl::StatusOr<PromptAdmission> KvCache::Impl::AdmitPromptOn(
    const PrefixHit& hit, uint64_t length, const PromptOptions& options) {
  const bool share = hit.holder != nullptr && !hit.adoptable;
  const KvTokenLimit limit = options.limit.value_or(options_.limit);
  const uint64_t backed =
      KeepsAllTokens(limit)
          ? length
          : std::min(length, SaturatingAdd(hit.tokens, options.step_tokens));
  const absl::StatusOr<TakenRegion> taken = hit.adoptable
                                                ? TakeHolder(hit.holder)
                                            : share ? TakeEmptyRegion()
                                                    : TakeRegion(backed);
  absl::Status status = taken.status();
  PageCount headroom = options_.headroom;
  if (taken.ok()) {
    MutexLock lock(&state_mutex_);
    taken->region->SetLimit(limit);
    if (backed < length) taken->region->SetPrompt(length, options.step_tokens);
    headroom =
        Plus(headroom,
             taken->region->PagesToGrow({.computed = hit.tokens,
                                         .backed = backed,
                                         .tokens = length,
                                         .step_tokens = options.step_tokens}));
  }
  if (share && status.ok()) {
    status =
        ShareRows(hit.holder, taken->region,
                  {hit.tokens, backed, SaturatingAdd(hit.tokens, uint64_t{1})},
                  headroom, options.stream);
  } else if (status.ok()) {
    PageDemand demand{taken->region, backed};
    status = Back(std::span(&demand, 1), headroom).status();
    if (status.ok()) status = UnpackTails(taken->region, options.stream);
  }
  MutexLock lock(&state_mutex_);
  // The pin of a holder that was adopted is the sequence's.
  if (share || (hit.adoptable && !taken.ok()))
    index_.Unpin(hit.holder->prefix());
  if (!status.ok()) {
    if (taken.ok()) CloseSlot(taken->slot, taken->stamp);
    return status;
  }
  if (share) HoldLike(*hit.holder, hit.tokens, taken->region);
  if (taken->stamp != 0) ++counted_.adoptions;
  // Where it has computed a window more than it finds, it pays to keep one.
  if (!KeepsAllTokens() && limit == options_.limit &&
      options.stream != StreamId() && options.stream == options_.stream &&
      hit.known >= SaturatingAdd(hit.tokens, LongestWindow()))
    SetBranch(taken->region, hit.known);
  ++counted_.prompts;
  counted_.prompt_tokens += length;
  counted_.prefix_hits += hit.tokens > 0 ? 1 : 0;
  counted_.prefix_tokens += hit.tokens;
  KvSequence& sequence = sequences_[taken->slot];
  sequence.priority = options.priority;
  sequence.retain_until = options.retain_until;
  if (taken->region->prefix() != PrefixEntryId())
    index_.SetPriority(taken->region->prefix(), options.priority,
                       options.retain_until);
  return PromptAdmission{BeginSequence(taken->slot, backed), hit.tokens};
}

void KvCache::Impl::HoldLike(const KvRegion& holder, uint64_t tokens,
                             KvRegion* target) {
  if (holder.prefix() == PrefixEntryId()) return;
  const PrefixEntryId prefix = index_.AddLike(holder.prefix());
  index_.Truncate(prefix, tokens);
  index_.Limit(prefix, target->WholeTokens());
  SetPrefix(target, prefix);
}

absl::Status KvCache::Impl::Publish(SequenceId id,
                                    std::span<const int32_t> tokens) {
  if (options_.prefix_block_tokens == 0) return absl::OkStatus();
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  const auto slot = FindResident(id);
  if (!slot) return NotResident(id, "publish");
  const KvSequence& sequence = sequences_[*slot];
  if (tokens.size() > sequence.length)
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: sequence ", id.value(), " has ", sequence.length,
        " tokens, not ", tokens.size(), " that could be published"));
  KvRegion* const region = sequence.region.get();
  // Who shares it drops the same, so that no page that is shared is dropped.
  if (region->limit() != options_.limit) return absl::OkStatus();
  if (region->prefix() == PrefixEntryId()) {
    SetPrefix(region, index_.Add());
    index_.SetPriority(region->prefix(), sequence.priority,
                       sequence.retain_until);
  }
  index_.Limit(region->prefix(), region->WholeTokens());
  index_.Extend(region->prefix(), tokens);
  return absl::OkStatus();
}

void KvCache::Impl::AdvanceClock(uint64_t now) {
  MutexLock lock(&state_mutex_);
  index_.AdvanceClock(now);
}

void KvCache::Impl::ExpectPrompt(std::span<const int32_t> tokens,
                                 uint64_t turn) {
  MutexLock lock(&state_mutex_);
  const PrefixIndex::Found found = index_.Match(tokens);
  if (found.tokens > 0) index_.Expect(found.holder, found.tokens, turn);
}

void KvCache::Impl::AdvanceTurn(uint64_t turn) {
  MutexLock lock(&state_mutex_);
  index_.AdvanceTurn(turn);
}

// ---- Forks ------------------------------------------------------------------

absl::StatusOr<SequenceId> KvCache::Impl::Fork(SequenceId parent,
                                               StreamId stream) {
  MutexLock operation(&operation_mutex_);
  KvRegion* holder = nullptr;
  uint64_t length = 0;
  int32_t priority = 0;
  uint64_t retain_until = 0;
  bool stepped = false;
  {
    MutexLock lock(&state_mutex_);
    const auto slot = FindResident(parent);
    if (!slot) return NotResident(parent, "fork");
    const KvSequence& sequence = sequences_[*slot];
    holder = sequence.region.get();
    length = sequence.length;
    priority = sequence.priority;
    retain_until = sequence.retain_until;
    stepped = sequence.stepped;
  }
  QUIRE_ASSIGN_OR_RETURN(const TakenRegion taken, TakeEmptyRegion());
  {
    MutexLock lock(&state_mutex_);
    taken.region->SetLimit(holder->limit());
  }
  const absl::Status status = ShareRows(
      holder, taken.region, {length, length, 0}, PageCount(0), stream);
  MutexLock lock(&state_mutex_);
  if (!status.ok()) {
    CloseSlot(taken.slot, taken.stamp);
    return status;
  }
  HoldLike(*holder, length, taken.region);
  sequences_[taken.slot].priority = priority;
  sequences_[taken.slot].retain_until = retain_until;
  ++counted_.forks;
  const SequenceId child = BeginSequence(taken.slot, length);
  sequences_[taken.slot].stepped = stepped;
  return child;
}

// ---- Pages and rows ---------------------------------------------------------

absl::Status KvCache::Impl::ShareRows(KvRegion* holder, KvRegion* target,
                                      const SharedRows& rows,
                                      PageCount headroom, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(MapShared(holder, target, rows.tokens));
  std::vector<PageCount> behind;
  {
    MutexLock lock(&state_mutex_);
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
      behind.push_back(rows.seen_from == 0
                           ? holder->behind(group)
                           : target->BehindWindow(group, rows.seen_from));
  }
  QUIRE_RETURN_IF_ERROR(BackBehindGaps(target, behind, rows.length, headroom));
  return CopyRows(holder, target, rows.tokens, stream);
}

absl::Status KvCache::Impl::MapShared(KvRegion* holder, KvRegion* target,
                                      uint64_t tokens) {
  {
    // First, so that no page that is mapped now is to spare.
    MutexLock lock(&state_mutex_);
    Modify(target, [&](KvRegion* r) { r->set_used_tokens(tokens); });
  }
  std::vector<PageHandle> pages;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    if (!target->KeepsAllTokens(group)) continue;
    pages.clear();
    const PageCount first = geometry_.FirstPage(group);
    for (uint64_t slot = 0; slot < FullPages(group, tokens); ++slot)
      pages.push_back(
          memory_->PageAt(holder->range(), Plus(first, PageCount(slot))));
    if (pages.empty()) continue;
    const absl::Status status =
        memory_->CommitPages(target->range(), first, pages);
    MutexLock lock(&state_mutex_);
    if (absl::IsDataLoss(status)) target->set_damaged();
    QUIRE_RETURN_IF_ERROR(status);
    Modify(target, [&](KvRegion* r) {
      r->set_committed(group, PageCount(pages.size()));
    });
    shared_.Enter(holder, group, pages);
    shared_.Enter(target, group, pages);
    PublishReclaimable();
  }
  return absl::OkStatus();
}

void KvCache::Impl::AppendRows(const KvRegion& holder, const KvRegion& target,
                               uint32_t group, uint64_t from, uint64_t to,
                               std::vector<RowCopy>* copies) const {
  const uint64_t page = geometry_.page_size().value();
  const PackedTail* const tail = FindTail(holder, group);
  const uint64_t held =
      tail == nullptr ? to : std::min(tail->slot.value() * page, to);
  if (from < held)
    copies->push_back({AddressOf(target, group, from),
                       AddressOf(holder, group, from), Bytes(held - from)});
  if (tail == nullptr || to <= tail->begin.value()) return;
  const uint64_t begin = tail->begin.value();
  for (const TailStore::Place& place :
       tails_.PlacesOf(tail->tail, SaturatingSubtract(from, begin), to - begin))
    copies->push_back({AddressOf(target, group, begin + place.from),
                       place.address, place.size});
}

absl::Status KvCache::Impl::CopyRows(KvRegion* holder, KvRegion* target,
                                     uint64_t tokens, StreamId stream) {
  std::vector<RowCopy> copies;
  {
    MutexLock lock(&state_mutex_);
    const uint64_t page = geometry_.page_size().value();
    const auto add =
        [&](uint32_t group, uint64_t from, uint64_t to)
            ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
              to = std::min(
                  to, geometry_.layout().RowBytes(group).value() * tokens);
              if (from < to)
                AppendRows(*holder, *target, group, from, to, &copies);
            };
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      if (target->KeepsAllTokens(group)) {
        add(group, FullPages(group, tokens) * page, UINT64_MAX);
        continue;
      }
      for (const PageRun& run : target->NeededRuns(group))
        add(group, run.first.value() * page,
            Plus(run.first, run.count).value() * page);
    }
  }
  return QueueCopies(copies, holder, target, stream);
}

absl::Status KvCache::Impl::QueueCopies(std::span<const RowCopy> copies,
                                        KvRegion* holder, KvRegion* target,
                                        StreamId stream) {
  if (copies.empty()) return absl::OkStatus();
  std::vector<Fence> others;
  {
    // A region, and the store, keep one fence: what runs on other streams
    // cannot be added.
    MutexLock lock(&state_mutex_);
    others = holder->FencesOffStream(stream);
    const std::optional<Fence> packed = tails_.OffStream(stream);
    if (packed && !holder->packed().empty()) others.push_back(*packed);
  }
  for (const Fence& other : others) QUIRE_RETURN_IF_ERROR(other.Wait());
  absl::Status status;
  for (const RowCopy& copy : copies) {
    status =
        memory_->driver()->CopyOnDevice(copy.to, copy.from, copy.size, stream);
    if (!status.ok()) break;
  }
  const Fence fence = FenceBehind(stream);
  MutexLock lock(&state_mutex_);
  dropped_ = true;  // for ReturnDropped to see when the copies are complete
  holder->AddReader(fence);
  // What is under way when a copy is refused writes to the target.
  target->AddReader(fence);
  if (!holder->packed().empty()) tails_.AddReader(fence);
  return status;
}

absl::Status KvCache::Impl::AwaitLateReaders(size_t sequence) {
  std::vector<Fence> late;
  {
    MutexLock lock(&state_mutex_);
    const KvRegion& region = *sequences_[sequence].region;
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      const std::vector<Fence> fences = shared_.LateReaders(
          region, group, FullPages(group, sequences_[sequence].length));
      late.insert(late.end(), fences.begin(), fences.end());
    }
  }
  for (const Fence& fence : late) QUIRE_RETURN_IF_ERROR(fence.Wait());
  return absl::OkStatus();
}

absl::Status KvCache::Impl::Unshare(size_t sequence) {
  struct Slot {
    uint32_t group;
    uint64_t slot;
    Bytes rows;  // that stay, at the page's start
  };
  std::vector<Slot> slots;
  KvRegion* region = nullptr;
  Fence fence;
  const uint64_t page = geometry_.page_size().value();
  QUIRE_RETURN_IF_ERROR(AwaitLateReaders(sequence));
  {
    MutexLock lock(&state_mutex_);
    region = sequences_[sequence].region.get();
    fence = region->fence();
    const uint64_t length = sequences_[sequence].length;
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      // After a Shrink a part ends with the page of its last row.
      const uint64_t first = FullPages(group, length);
      const uint64_t end = geometry_.layout().RowBytes(group).value() * length;
      if (shared_.AnyShared(*region, group, first)) {
        slots.push_back({group, first, Bytes(end - first * page)});
      } else {
        shared_.Strike(region, group, static_cast<size_t>(first));
      }
    }
  }
  if (slots.empty()) return absl::OkStatus();
  // Kernels that were queued before the Shrink read the page where it is.
  QUIRE_RETURN_IF_ERROR(fence.Wait());
  Driver* const driver = memory_->driver();
  const PageCount count(slots.size());
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const fresh,
                         memory_->ReserveRange(count, options_.owner));
  const absl::Cleanup release = [&] { memory_->ReleaseRange(fresh, Fence()); };
  QUIRE_RETURN_IF_ERROR(memory_->Commit(fresh, PageCount(0), count));
  {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           driver->CreateStream(memory_->device()));
    // Waits for what a refusal has left under way.
    const absl::Cleanup destroy = [&] { (void)driver->DestroyStream(stream); };
    for (size_t i = 0; i < slots.size(); ++i)
      QUIRE_RETURN_IF_ERROR(driver->CopyOnDevice(
          DeviceAddress(fresh->address().value() + i * page),
          AddressOf(*region, slots[i].group, slots[i].slot * page),
          slots[i].rows, stream));
    QUIRE_RETURN_IF_ERROR(driver->SynchronizeStream(stream));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& [group, slot, rows] = slots[i];
    const absl::Status status = memory_->Remap(
        region->range(), Plus(geometry_.FirstPage(group), PageCount(slot)),
        memory_->PageAt(fresh, PageCount(i)));
    MutexLock lock(&state_mutex_);
    if (absl::IsDataLoss(status)) LosePage(sequence, group, slot);
    QUIRE_RETURN_IF_ERROR(status);
    shared_.Strike(region, group, static_cast<size_t>(slot));
    PublishReclaimable();
    ++counted_.pages_unshared;
  }
  return absl::OkStatus();
}

// The sequence ends before the first row that is gone.
void KvCache::Impl::LosePage(size_t slot, uint32_t group, uint64_t page) {
  KvSequence& sequence = sequences_[slot];
  KvRegion* const region = sequence.region.get();
  const uint64_t left =
      std::min(sequence.length, page * geometry_.page_size().value() /
                                    geometry_.layout().RowBytes(group).value());
  tokens_ -= sequence.length - left;
  sequence.length = left;
  region->set_damaged();
  if (region->prefix() != PrefixEntryId())
    index_.Truncate(region->prefix(), left);
  Modify(region, [&](KvRegion* r) { r->set_used_tokens(left); });
  // What the driver refuses here is lost as well.
  Decommit(region, {group, PageCount(page),
                    PageCount(region->committed(group).value() - page)})
      .IgnoreError();
}

}  // namespace quire
