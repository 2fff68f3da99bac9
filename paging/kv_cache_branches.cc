// Where prompts part from what others began with, and layers have windows: a
// sequence that comes there leaves a prefix behind before its windows leave the
// place, since it is where the next prompt will part.
//
// With page-ahead that is done while the device computes. The step behind the
// place drops nothing that the prefix needs; the one after it does, done or
// not. So no step waits for it, and a window is held for the time of one step.
// Without page-ahead the step behind the place makes the prefix.

#include <cstdint>
#include <span>

#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

uint64_t KvCache::Impl::LongestWindow() const {
  uint64_t longest = 0;
  for (uint32_t kind = 0; kind < geometry_.layout().kinds().size(); ++kind)
    longest = std::max(longest, bare_.kept_kind(kind).window);
  return longest;
}

void KvCache::Impl::SetBranch(KvRegion* region, uint64_t tokens) {
  branches_ -= region->branch() > 0 ? 1 : 0;
  branches_ += tokens > 0 ? 1 : 0;
  region->set_branch(tokens);
}

// What was published is computed.
bool KvCache::Impl::IsAtBranch(const KvRegion& region) const {
  return region.branch() > 0 && region.prefix() != PrefixEntryId() &&
         index_.TokensOf(region.prefix()) >= region.branch();
}

bool KvCache::Impl::HoldsForBranch(KvRegion* region) {
  if (options_.page_ahead.max_steps == 0 || !IsAtBranch(*region)) return false;
  if (region->branch_held()) {
    SetBranch(region, 0);  // it was not made in time
    return false;
  }
  region->hold_branch();
  return true;
}

bool KvCache::Impl::DropAtOnce(std::span<const SequenceStep> steps) {
  if (options_.page_ahead.max_steps == 0) return false;
  MutexLock lock(&state_mutex_);
  const uint64_t before = CountPages().spare;
  for (const SequenceStep& step : steps) {
    KvSequence& sequence = sequences_[SlotOf(step.sequence)];
    if (sequence.region->branch_held()) SetBranch(sequence.region.get(), 0);
    // What is refused here stays, and the step as it was.
    DropBehindWindows(&sequence, step.length, /*urgent=*/true).IgnoreError();
  }
  return CountPages().spare > before;
}

void KvCache::Impl::KeepBranches(std::span<const SequenceStep> steps) {
  for (const SequenceStep& step : steps) {
    KvRegion* region = nullptr;
    {
      MutexLock lock(&state_mutex_);
      const auto slot = FindResident(step.sequence);
      if (!slot || !IsAtBranch(*sequences_[*slot].region)) continue;
      region = sequences_[*slot].region.get();
    }
    KeepBranch(region);
  }
}

bool KvCache::Impl::KeepBranchAhead() {
  MutexLock operation(&operation_mutex_);
  if (branches_ == 0) return false;
  KvRegion* region = nullptr;
  {
    MutexLock lock(&state_mutex_);
    for (const KvSequence& sequence : sequences_) {
      if (sequence.region && !sequence.swapped &&
          IsAtBranch(*sequence.region)) {
        region = sequence.region.get();
        break;
      }
    }
  }
  if (region == nullptr) return false;
  const PageCount pages = PagesOfBranch(*region, region->branch());
  const PageCount wanted = Plus(pages, options_.headroom);
  const PageCount at_once = GetSupply().at_once;
  if (at_once < wanted)
    ReclaimIdle(PageCount(wanted.value() - at_once.value()));
  if (GetSupply().at_once >= wanted) {
    mapping_ahead_.store(true, std::memory_order_relaxed);
    KeepBranch(region);
    mapping_ahead_.store(false, std::memory_order_relaxed);
    return true;
  }
  MutexLock lock(&state_mutex_);
  SetBranch(region, 0);
  return true;
}

PageCount KvCache::Impl::PagesOfBranch(const KvRegion& region,
                                       uint64_t tokens) const {
  PageCount pages;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    // Those that rows fill are shared, or, of layers with a window, behind it.
    const uint64_t there =
        region.KeepsAllTokens(group)
            ? FullPages(group, tokens)
            : region.BehindWindow(group, tokens + 1).value() -
                  region.BehindWindow(group, 0).value();
    pages = Plus(pages,
                 PageCount(geometry_.PagesOf(group, tokens).value() - there));
  }
  return pages;
}

void KvCache::Impl::KeepBranch(KvRegion* holder) {
  uint64_t tokens = 0;
  {
    MutexLock lock(&state_mutex_);
    tokens = holder->branch();
    SetBranch(holder, 0);
    if (!holder->CanGoBackTo(tokens)) return;
  }
  // Where memory or sequences are short, there is none: nobody counts on it.
  MakePrefix(holder, tokens).IgnoreError();
}

// A fork that ends at once.
absl::Status KvCache::Impl::MakePrefix(KvRegion* holder, uint64_t tokens) {
  QUIRE_ASSIGN_OR_RETURN(const TakenRegion taken, TakeEmptyRegion());
  {
    MutexLock lock(&state_mutex_);
    taken.region->SetLimit(options_.limit);
  }
  absl::Status status =
      ShareRows(holder, taken.region, {tokens, tokens, tokens + 1},
                options_.headroom, options_.stream);
  MutexLock lock(&state_mutex_);
  if (!status.ok()) {
    CloseSlot(taken.slot, taken.stamp);
    return status;
  }
  HoldLike(*holder, tokens, taken.region);
  EndSequence(taken.slot);
  ++counted_.branches_kept;
  return status;
}

}  // namespace quire
