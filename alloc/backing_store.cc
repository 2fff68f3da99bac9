#include "alloc/backing_store.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status SlotIsAsleep(const ManagedRange& range, uint64_t slot) {
  return absl::FailedPreconditionError(
      absl::StrCat("page ", slot, " of the range at ", range.address().value(),
                   " is asleep: wake it first"));
}

}  // namespace

BackingStore::BackingStore(Driver* driver, const OwnerRegistry* owners,
                           const PressureThresholds& thresholds,
                           const PagePoolOptions& options, EventLog* events)
    : driver_(driver),
      page_size_(options.page_size),
      events_(events),
      pool_(driver, options),
      accounts_(owners, thresholds),
      saved_(owners) {}

// ---- Commit -----------------------------------------------------------------

absl::Status BackingStore::TryCommit(const CommitRequest& request,
                                     CommitAttempt* attempt) {
  ManagedRange* const range = request.range;
  attempt->Restart();
  uint64_t unbacked = 0;
  uint64_t cooling = 0;
  for (uint64_t i = request.first; i < request.first + request.count; ++i) {
    switch (range->slots[i].state) {
      case SlotState::kUnbacked:
        ++unbacked;
        break;
      case SlotState::kCooling:
        ++cooling;
        break;
      case SlotState::kLive:
        break;
      case SlotState::kAsleep:
        return SlotIsAsleep(*range, i);
      case SlotState::kQuarantined:
        return absl::DataLossError(absl::StrCat(
            "page ", i, " of the range at ", range->address().value(),
            " is quarantined: ", mapping_error_.message()));
    }
  }
  std::vector<PageRecord*> named;
  QUIRE_RETURN_IF_ERROR(FindPages(request, &named));
  attempt->slots = unbacked;
  attempt->wanted = named.empty() ? unbacked
                                  : static_cast<uint64_t>(std::count(
                                        named.begin(), named.end(), nullptr));
  attempt->growth = attempt->wanted + (cooling > 0 ? CountRevived(request) : 0);
  QUIRE_RETURN_IF_ERROR(CheckGrowth(range->owner(), attempt));
  const uint64_t live_before = accounts_.live();
  if (unbacked > 0) {
    std::vector<PageRecord*> pages;
    QUIRE_RETURN_IF_ERROR(TakePages(attempt, &pages));
    if (!named.empty()) {
      auto taken = pages.begin();
      for (PageRecord*& page : named) {
        if (page == nullptr) page = *taken++;
      }
      pages.swap(named);
    }
    const absl::Status mapped =
        MapUnbacked(range, request.first, request.count, pages);
    if (!mapped.ok()) {
      attempt->shortage = CommitAttempt::Shortage::kMappings;
      attempt->missing = unbacked;
      return mapped;
    }
  }
  // From here on nothing can fail.
  for (uint64_t i = request.first; cooling > 0; ++i) {
    PageSlot& slot = range->slots[i];
    if (!IsCooling(slot)) continue;
    queue_.Remove(&slot);
    SetState(&slot, SlotState::kLive);
    --range->lingering;
    --cooling;
  }
  attempt->became_live = accounts_.live() - live_before;
  accounts_.UpdatePeaks(range->owner());
  if (unbacked > 0) {
    ++commits_;
    if (attempt->created == 0) ++commits_from_cache_;
  }
  return absl::OkStatus();
}

absl::Status BackingStore::FindPages(const CommitRequest& request,
                                     std::vector<PageRecord*>* pages) const {
  const ManagedRange& range = *request.range;
  pages->reserve(request.pages.size());
  for (uint64_t i = 0; i < request.pages.size(); ++i) {
    if (!IsUnbacked(range.slots[request.first + i])) {
      return absl::FailedPreconditionError(absl::StrCat(
          "page ", request.first + i, " of the range at ",
          range.address().value(), " is backed already: it cannot be put over ",
          "a page of the caller's choice"));
    }
    PageRecord* page = nullptr;
    if (request.pages[i] != PageHandle()) {
      QUIRE_ASSIGN_OR_RETURN(page,
                             FindShareable(request.pages[i], range.owner()));
    }
    pages->push_back(page);
  }
  return absl::OkStatus();
}

absl::StatusOr<PageRecord*> BackingStore::FindShareable(PageHandle handle,
                                                        OwnerId owner) const {
  PageRecord* const page = pool_.Find(handle);
  if (page == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no page ", handle.value()));
  }
  if (page->live == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "page ", handle.value(), " is not live: it cannot be shared"));
  }
  if (page->moving != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("page ", handle.value(),
                     " is falling asleep or waking up: it cannot be shared"));
  }
  if (page->owner != owner) {
    return absl::FailedPreconditionError(absl::StrCat(
        "page ", handle.value(), " is of owner ", page->owner.value(),
        ": it cannot be shared with owner ", owner.value()));
  }
  return page;
}

uint64_t BackingStore::CountRevived(const CommitRequest& request) {
  uint64_t revived = 0;
  std::unordered_set<const PageRecord*> several;
  for (uint64_t i = request.first; i < request.first + request.count; ++i) {
    const PageSlot& slot = request.range->slots[i];
    if (!IsCooling(slot) || slot.page->live > 0) continue;
    if (slot.page->cooling == 1 || several.insert(slot.page).second) ++revived;
  }
  return revived;
}

absl::Status BackingStore::CheckGrowth(OwnerId owner, CommitAttempt* attempt) {
  const uint64_t pages = attempt->growth;
  const std::optional<GrowthRefusal> refusal =
      owners().CheckGrowth(owner, pages, capacity());
  if (!refusal) return absl::OkStatus();
  attempt->shortage = CommitAttempt::Shortage::kOwner;
  attempt->missing = refusal->missing;
  attempt->limited_by = refusal->limited_by;
  // Not even with all that the owner has.
  attempt->hopeless =
      refusal->limited_by &&
      pages > owners().AccountOf(*refusal->limited_by).limits.hard;
  return absl::ResourceExhaustedError(
      absl::StrCat(pages, " pages are ", refusal->missing, " more than owner ",
                   owner.value(), " may have"));
}

absl::Status BackingStore::TakePages(CommitAttempt* attempt,
                                     std::vector<PageRecord*>* pages) {
  // Pages beyond the limit are not to be had however many are created first.
  QUIRE_RETURN_IF_ERROR(TryPrepare(attempt));
  pages->reserve(attempt->wanted);
  return pool_.Take(attempt->wanted, pages, &attempt->created);
}

absl::Status BackingStore::TryPrepareFor(OwnerId owner,
                                         CommitAttempt* attempt) {
  attempt->Restart();
  attempt->growth = attempt->wanted;
  QUIRE_RETURN_IF_ERROR(CheckGrowth(owner, attempt));
  return TryPrepare(attempt);
}

absl::Status BackingStore::TryPrepare(CommitAttempt* attempt) {
  const uint64_t wanted = attempt->wanted;
  const bool at_limit = wanted > pool_.cached() + pool_.growable();
  const absl::Status prepared =
      at_limit ? absl::ResourceExhaustedError(absl::StrCat(
                     wanted, " pages wanted; ", pool_.in_use(), " of at most ",
                     pool_.limit(), " are in use, ", pool_.cached(),
                     " of them cached"))
               : pool_.Prepare(wanted, &attempt->created);
  if (prepared.ok()) return prepared;
  attempt->shortage = at_limit ? CommitAttempt::Shortage::kLimit
                               : CommitAttempt::Shortage::kDevice;
  attempt->hopeless = wanted > pool_.limit();
  // What a device that is full refuses to create is missing as well.
  attempt->missing =
      wanted - pool_.cached() - (at_limit ? pool_.growable() : 0);
  return prepared;
}

void BackingStore::AbandonCommit(const CommitAttempt& attempt) {
  pool_.Trim(pool_.cached() - std::min(pool_.cached(), attempt.created));
}

absl::Status BackingStore::MapUnbacked(ManagedRange* range, uint64_t first,
                                       uint64_t count,
                                       const std::vector<PageRecord*>& pages) {
  struct Run {
    uint64_t first;
    uint64_t count;
  };
  std::vector<Run> runs;
  range->ForEachRun(first, count, IsUnbacked, [&](uint64_t at, uint64_t n) {
    runs.push_back({at, n});
  });

  absl::Status result;
  size_t mapped_runs = 0;
  uint64_t used = 0;
  for (const Run& run : runs) {
    const std::span<PageRecord* const> run_pages(pages.data() + used,
                                                 run.count);
    result = MapRun(*range, run.first, run_pages);
    const bool lost = absl::IsDataLoss(result);
    if (!result.ok() && !lost) break;
    for (uint64_t i = 0; i < run.count; ++i) {
      Fill(&range->slots[run.first + i], run_pages[i], range->owner());
    }
    used += run.count;
    if (lost) {
      result = Quarantine(range, run.first, run.count, result);
      break;
    }
    ++mapped_runs;
  }
  if (result.ok()) return result;

  for (size_t i = mapped_runs; i > 0; --i) {
    const absl::Status undone = UnmapRun(
        range, runs[i - 1].first, runs[i - 1].count, UnmapReason::kRolledBack);
    // What was lost weighs more than why the commit failed.
    if (!undone.ok() && !absl::IsDataLoss(result)) result = undone;
  }
  for (uint64_t i = used; i < pages.size(); ++i) {
    if (pages[i]->slots() == 0) pool_.PutBack(pages[i]);
  }
  return result;
}

absl::Status BackingStore::MapRun(const ManagedRange& range, uint64_t first,
                                  std::span<PageRecord* const> pages) {
  run_.clear();
  for (const PageRecord* page : pages) run_.push_back(page->handle);
  const DeviceAddress address = range.SlotAddress(first, page_size_);
  QUIRE_RETURN_IF_ERROR(driver_->Map(address, run_));
  events_->Add(PagesMapped{{address, PageCount(pages.size()), range.owner()}});
  return absl::OkStatus();
}

absl::Status BackingStore::UnmapSlots(const ManagedRange& range, uint64_t first,
                                      uint64_t count) {
  const DeviceAddress address = range.SlotAddress(first, page_size_);
  QUIRE_RETURN_IF_ERROR(
      driver_->Unmap(address, Bytes(count * page_size_.value())));
  events_->Add(PagesUnmapped{{address, PageCount(count), range.owner()}});
  return absl::OkStatus();
}

// ---- Remap ------------------------------------------------------------------

absl::Status BackingStore::Remap(ManagedRange* range, uint64_t first,
                                 std::span<const PageHandle> pages,
                                 uint64_t* released) {
  *released = 0;
  std::vector<PageRecord*> after;
  std::vector<PageRecord*> before;
  for (uint64_t i = 0; i < pages.size(); ++i) {
    const PageSlot& slot = range->slots[first + i];
    if (IsAsleep(slot)) return SlotIsAsleep(*range, first + i);
    if (!IsLive(slot)) {
      return absl::FailedPreconditionError(
          absl::StrCat("page ", first + i, " of the range at ",
                       range->address().value(), " is not live"));
    }
    before.push_back(slot.page);
    QUIRE_ASSIGN_OR_RETURN(PageRecord* const page,
                           FindShareable(pages[i], range->owner()));
    after.push_back(page);
  }
  if (after == before) return absl::OkStatus();

  const uint64_t count = pages.size();
  const absl::Status unmapped = UnmapSlots(*range, first, count);
  if (absl::IsDataLoss(unmapped)) {
    return Quarantine(range, first, count, unmapped);
  }
  QUIRE_RETURN_IF_ERROR(unmapped);
  const absl::Status mapped = MapRun(*range, first, after);
  if (!mapped.ok() && !absl::IsDataLoss(mapped)) {
    const absl::Status undone = MapRun(*range, first, before);
    return undone.ok() ? mapped : Quarantine(range, first, count, undone);
  }
  const uint64_t live_before = accounts_.live();
  Exchange(range, first, after);
  *released = live_before - accounts_.live();
  pages_given_up_ += *released;
  unmapped_ += *released;
  // Of a run that the driver lost, it has the new pages if it has any.
  return mapped.ok() ? mapped : Quarantine(range, first, count, mapped);
}

void BackingStore::Exchange(ManagedRange* range, uint64_t first,
                            std::span<PageRecord* const> pages) {
  // Every page gets its new slot before any loses its old one: pages may change
  // places, and none of them is free in between.
  for (PageRecord* const page : pages) {
    accounts_.Move(page, SlotState::kUnbacked, SlotState::kLive);
  }
  for (uint64_t i = 0; i < pages.size(); ++i) {
    PageSlot& slot = range->slots[first + i];
    Empty(&slot, UnmapReason::kFreed);
    slot.page = pages[i];
    slot.state = SlotState::kLive;
  }
}

// ---- Decommit ---------------------------------------------------------------

absl::Status BackingStore::Decommit(ManagedRange* range, uint64_t first,
                                    uint64_t count, const Fence& fence,
                                    uint64_t* released) {
  const absl::StatusOr<bool> asked = fence.IsComplete();
  // Where the driver cannot tell, the memory may still be in use.
  const bool complete = asked.ok() && *asked;
  const uint64_t live_before = accounts_.live();
  absl::Status result;
  range->ForEachRun(first, count, IsLive, [&](uint64_t at, uint64_t n) {
    slots_given_up_ += n;
    if (complete) {
      const absl::Status unmapped = UnmapRun(range, at, n, UnmapReason::kFreed);
      if (result.ok()) result = unmapped;
      return;
    }
    for (uint64_t i = at; i < at + n; ++i) {
      SetState(&range->slots[i], SlotState::kCooling);
    }
    queue_.Retire(range, at, n, fence);
    range->lingering += n;
  });
  DropAsleep(range, first, count);
  *released = live_before - accounts_.live();
  pages_given_up_ += *released;
  return result;
}

void BackingStore::Harvest(size_t at_most,
                           std::vector<ManagedRange*>* drained) {
  const std::vector<SlotRun> runs = queue_.TakeCompleted(at_most);
  UnmapCooled(runs);
  for (const SlotRun& run : runs) {
    ManagedRange* const range = run.range.get();
    if (range->retired && range->lingering == 0 &&
        std::find(drained->begin(), drained->end(), range) == drained->end()) {
      drained->push_back(range);
    }
  }
}

void BackingStore::WaitForAll() { UnmapCooled(queue_.WaitAndTakeAll()); }

void BackingStore::UnmapCooled(const std::vector<SlotRun>& runs) {
  for (const SlotRun& run : runs) {
    run.range->lingering -= run.count;
    // A refusal is kept in mapping_error_; there is no caller to tell.
    (void)UnmapRun(run.range.get(), run.first, run.count, UnmapReason::kFreed);
  }
}

absl::Status BackingStore::UnmapRun(ManagedRange* range, uint64_t first,
                                    uint64_t count, UnmapReason reason) {
  absl::Status status = UnmapSlots(*range, first, count);
  if (!status.ok() && !absl::IsResourceExhausted(status) &&
      !absl::IsDataLoss(status) && reason == UnmapReason::kFreed) {
    status = UnmapSlots(*range, first, count);
  }
  if (absl::IsResourceExhausted(status)) {
    for (uint64_t i = first; i < first + count; ++i) {
      SetState(&range->slots[i], SlotState::kCooling);
    }
    queue_.RetireForRetry(range, first, count);
    range->lingering += count;
    return absl::OkStatus();
  }
  if (!status.ok()) return Quarantine(range, first, count, status);
  for (uint64_t i = first; i < first + count; ++i) {
    Empty(&range->slots[i], reason);
  }
  if (reason == UnmapReason::kFreed) unmapped_ += count;
  return absl::OkStatus();
}

absl::Status BackingStore::Quarantine(ManagedRange* range, uint64_t first,
                                      uint64_t count,
                                      const absl::Status& cause) {
  for (uint64_t i = first; i < first + count; ++i) {
    SetState(&range->slots[i], SlotState::kQuarantined);
  }
  range->lingering += count;
  const absl::Status error = absl::DataLossError(absl::StrCat(
      count, " pages at device address ",
      range->SlotAddress(first, page_size_).value(),
      " are quarantined, the driver refused to map or unmap them: ",
      cause.message()));
  if (mapping_error_.ok()) mapping_error_ = error;
  return error;
}

void BackingStore::Clear(ManagedRange* range) {
  DropAsleep(range, 0, range->slots.size());
  range->ForEachRun(0, range->slots.size(), IsLive,
                    [&](uint64_t first, uint64_t count) {
                      (void)UnmapRun(range, first, count, UnmapReason::kFreed);
                    });
  // What is left was refused. That may have been passing, and of a run that was
  // lost some slots may never have been mapped; the handle is given up anyway.
  for (uint64_t i = 0; i < range->slots.size(); ++i) {
    PageSlot& slot = range->slots[i];
    if (IsUnbacked(slot)) continue;
    (void)UnmapSlots(*range, i, 1);
    Empty(&slot, UnmapReason::kFreed);
  }
}

// ---- Accounts ---------------------------------------------------------------

void BackingStore::Fill(PageSlot* slot, PageRecord* page, OwnerId owner) {
  if (page->slots() == 0) page->owner = owner;
  slot->page = page;
  SetState(slot, SlotState::kLive);
}

void BackingStore::Empty(PageSlot* slot, UnmapReason reason) {
  PageRecord* const page = slot->page;
  SetState(slot, SlotState::kUnbacked);
  *slot = PageSlot();
  if (page->slots() > 0) return;
  // A commit that failed may be tried again at once: its pages stay.
  if (reason == UnmapReason::kRolledBack) {
    pool_.PutBack(page);
  } else {
    pool_.Put(page);
  }
}

absl::Status BackingStore::SetOwner(ManagedRange* range, OwnerId owner,
                                    uint64_t* pages) {
  *pages = 0;
  const auto moves = [](const PageSlot& slot) {
    return IsLive(slot) || IsCooling(slot);
  };
  const uint64_t asleep =
      range->RunEnd(0, range->slots.size(),
                    [](const PageSlot& slot) { return !IsAsleep(slot); });
  if (asleep < range->slots.size()) return SlotIsAsleep(*range, asleep);
  // Slots of this range, for the pages that have several.
  std::unordered_map<const PageRecord*, uint64_t> several;
  for (const PageSlot& slot : range->slots) {
    if (!moves(slot)) continue;
    if (slot.page->slots() > 1) {
      ++several[slot.page];
    } else if (slot.page->live > 0) {
      ++*pages;
    }
  }
  for (const auto& [page, slots] : several) {
    if (page->live > 0) ++*pages;
    if (uint64_t{page->live} + page->cooling == slots) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the range at ", range->address().value(), " shares page ",
        page->handle.value(), " with another range: both have one owner"));
  }
  if (owners().Move(range->owner(), owner, *pages, capacity())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "owner ", owner.value(), " may not have ", *pages, " more pages"));
  }
  for (const PageSlot& slot : range->slots) {
    if (moves(slot)) slot.page->owner = owner;
  }
  range->set_owner(owner);
  accounts_.UpdatePeaks(owner);
  return absl::OkStatus();
}

absl::Status BackingStore::health() const {
  return mapping_error_.ok() ? pool_.release_error() : mapping_error_;
}

absl::Status BackingStore::CheckInvariants(
    const std::vector<const ManagedRange*>& ranges) const {
  const auto fail = [](auto... parts) {
    return absl::InternalError(absl::StrCat(parts...));
  };
  uint64_t cooling = 0;
  for (const ManagedRange* range : ranges) {
    uint64_t lingering = 0;
    for (uint64_t i = 0; i < range->slots.size(); ++i) {
      const PageSlot& slot = range->slots[i];
      const uint64_t address = range->SlotAddress(i, page_size_).value();
      if ((slot.page == nullptr) != (IsUnbacked(slot) || IsAsleep(slot))) {
        return fail("slot ", address, " in state ",
                    static_cast<int>(slot.state), " has ",
                    slot.page == nullptr ? "no page" : "a page");
      }
      if ((slot.batch != nullptr) != IsCooling(slot)) {
        return fail("slot ", address, " in state ",
                    static_cast<int>(slot.state),
                    " does not agree with the retirement queue");
      }
      if (slot.page != nullptr && pool_.Find(slot.page->handle) != slot.page) {
        return fail("slot ", address, " has a page that does not exist");
      }
      if (IsCooling(slot)) ++cooling;
      if (!IsUnbacked(slot) && !IsLive(slot) && !IsAsleep(slot)) ++lingering;
    }
    if (lingering != range->lingering) {
      return fail("range ", range->address().value(), " counts ",
                  range->lingering, " lingering slots and has ", lingering);
    }
  }
  if (cooling != queue_.CalculateCooling()) {
    return fail(cooling, " slots cool, and the queue has ",
                queue_.CalculateCooling());
  }
  QUIRE_RETURN_IF_ERROR(accounts_.CheckInvariants(ranges));
  QUIRE_RETURN_IF_ERROR(CheckSavedPages(ranges));
  return pool_.CheckInvariants(accounts_.live() + accounts_.cooling() +
                               accounts_.quarantined());
}

}  // namespace quire
