#include "alloc/backing_store.h"

#include <algorithm>
#include <span>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

bool IsUnbacked(const PageSlot& slot) {
  return slot.state == SlotState::kUnbacked;
}
bool IsLive(const PageSlot& slot) { return slot.state == SlotState::kLive; }

}  // namespace

BackingStore::BackingStore(Driver* driver, DeviceId device, Bytes page_size,
                           uint64_t limit, uint64_t cache_limit)
    : driver_(driver),
      page_size_(page_size),
      pool_(driver, device, page_size, limit, cache_limit) {}

// ---- Commit -----------------------------------------------------------------

absl::Status BackingStore::TryCommit(ManagedRange* range, uint64_t first,
                                     uint64_t count, CommitAttempt* attempt) {
  attempt->shortage = CommitAttempt::Shortage::kNone;
  uint64_t unbacked = 0;
  uint64_t cooling = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    switch (range->slots[i].state) {
      case SlotState::kUnbacked:
        ++unbacked;
        break;
      case SlotState::kCooling:
        ++cooling;
        break;
      case SlotState::kLive:
        break;
      case SlotState::kQuarantined:
        return absl::DataLossError(absl::StrCat(
            "page ", i, " of the range at ", range->address().value(),
            " is quarantined: ", mapping_error_.message()));
    }
  }
  attempt->wanted = unbacked;
  if (unbacked > 0) {
    std::vector<PageHandle> pages;
    pages.reserve(std::min(unbacked, pool_.limit()));
    const bool at_limit = unbacked > pool_.cached() + pool_.growable();
    // Pages beyond the limit are not to be had however many are created first.
    const absl::Status taken =
        at_limit ? absl::ResourceExhaustedError(absl::StrCat(
                       unbacked, " pages wanted; ", pool_.in_use(),
                       " of at most ", pool_.limit(), " are in use, ",
                       pool_.cached(), " of them cached"))
                 : pool_.Take(unbacked, &pages, &attempt->created);
    if (!taken.ok()) {
      attempt->shortage = at_limit ? CommitAttempt::Shortage::kLimit
                                   : CommitAttempt::Shortage::kDevice;
      // What a device that is full refuses to create is missing as well.
      attempt->missing =
          unbacked - pool_.cached() - (at_limit ? pool_.growable() : 0);
      return taken;
    }
    const absl::Status mapped = MapUnbacked(range, first, count, pages);
    if (!mapped.ok()) {
      attempt->shortage = CommitAttempt::Shortage::kMappings;
      attempt->missing = unbacked;
      return mapped;
    }
  }
  // From here on nothing can fail.
  for (uint64_t i = first; cooling > 0; ++i) {
    PageSlot& slot = range->slots[i];
    if (slot.state != SlotState::kCooling) continue;
    queue_.Revive(&slot);
    --cooling_;
    --range->lingering;
    --cooling;
    ++attempt->became_live;
  }
  attempt->became_live += unbacked;
  CountLive(range->owner(), attempt->became_live);
  if (unbacked > 0) {
    ++commits_;
    if (attempt->created == 0) ++commits_from_cache_;
  }
  return absl::OkStatus();
}

void BackingStore::AbandonCommit(const CommitAttempt& attempt) {
  pool_.Trim(pool_.cached() - std::min(pool_.cached(), attempt.created));
}

absl::Status BackingStore::MapUnbacked(ManagedRange* range, uint64_t first,
                                       uint64_t count,
                                       const std::vector<PageHandle>& pages) {
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
    const std::span<const PageHandle> run_pages(pages.data() + used, run.count);
    result = driver_->Map(range->SlotAddress(run.first, page_size_), run_pages);
    const bool lost = absl::IsDataLoss(result);
    if (!result.ok() && !lost) break;
    for (uint64_t i = 0; i < run.count; ++i) {
      range->slots[run.first + i].page = run_pages[i];
      range->slots[run.first + i].state = SlotState::kLive;
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
  for (uint64_t i = used; i < pages.size(); ++i) pool_.PutBack(pages[i]);
  return result;
}

// ---- Decommit ---------------------------------------------------------------

absl::Status BackingStore::Decommit(ManagedRange* range, uint64_t first,
                                    uint64_t count, const Fence& fence,
                                    uint64_t* released) {
  const absl::StatusOr<bool> asked = fence.IsComplete();
  // Where the driver cannot tell, the memory may still be in use.
  const bool complete = asked.ok() && *asked;
  absl::Status result;
  *released = 0;
  range->ForEachRun(first, count, IsLive, [&](uint64_t at, uint64_t n) {
    UncountLive(range->owner(), n);
    *released += n;
    if (complete) {
      const absl::Status unmapped = UnmapRun(range, at, n, UnmapReason::kFreed);
      if (result.ok()) result = unmapped;
    } else {
      queue_.Retire(range, at, n, fence);
      cooling_ += n;
      range->lingering += n;
    }
  });
  decommitted_ += *released;
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
    cooling_ -= run.count;
    run.range->lingering -= run.count;
    // A refusal is kept in mapping_error_; there is no caller to tell.
    (void)UnmapRun(run.range.get(), run.first, run.count, UnmapReason::kFreed);
  }
}

absl::Status BackingStore::UnmapRun(ManagedRange* range, uint64_t first,
                                    uint64_t count, UnmapReason reason) {
  const absl::Status status = driver_->Unmap(
      range->SlotAddress(first, page_size_), Bytes(count * page_size_.value()));
  if (absl::IsResourceExhausted(status)) {
    queue_.RetireForRetry(range, first, count);
    cooling_ += count;
    range->lingering += count;
    return absl::OkStatus();
  }
  if (!status.ok()) return Quarantine(range, first, count, status);
  for (uint64_t i = first; i < first + count; ++i) {
    // A commit that failed may be tried again at once: its pages stay.
    if (reason == UnmapReason::kRolledBack) {
      pool_.PutBack(range->slots[i].page);
    } else {
      pool_.Put(range->slots[i].page);
    }
    range->slots[i] = PageSlot();
  }
  if (reason == UnmapReason::kFreed) unmapped_ += count;
  return absl::OkStatus();
}

absl::Status BackingStore::Quarantine(ManagedRange* range, uint64_t first,
                                      uint64_t count,
                                      const absl::Status& cause) {
  for (uint64_t i = first; i < first + count; ++i) {
    range->slots[i].state = SlotState::kQuarantined;
  }
  quarantined_slots_ += count;
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
  range->ForEachRun(0, range->slots.size(), IsLive,
                    [&](uint64_t first, uint64_t count) {
                      UncountLive(range->owner(), count);
                      (void)UnmapRun(range, first, count, UnmapReason::kFreed);
                    });
  // What is left was refused. That may have been passing, and of a run that was
  // lost some slots may never have been mapped; the handle is given up anyway.
  for (uint64_t i = 0; i < range->slots.size(); ++i) {
    PageSlot& slot = range->slots[i];
    if (IsUnbacked(slot)) continue;
    (void)driver_->Unmap(range->SlotAddress(i, page_size_), page_size_);
    pool_.Put(slot.page);
    slot = PageSlot();
  }
}

// ---- Accounts ---------------------------------------------------------------

uint64_t BackingStore::SetOwner(ManagedRange* range, OwnerId owner) {
  const auto live = static_cast<uint64_t>(
      std::count_if(range->slots.begin(), range->slots.end(), IsLive));
  if (live > 0) {
    UncountLive(range->owner(), live);
    CountLive(owner, live);
  }
  range->set_owner(owner);
  return live;
}

void BackingStore::CountLive(OwnerId owner, uint64_t pages) {
  if (owner.value() >= live_by_owner_.size()) {
    live_by_owner_.resize(size_t{owner.value()} + 1, 0);
  }
  live_by_owner_[owner.value()] += pages;
  live_ += pages;
  peak_live_ = std::max(peak_live_, live_);
}

void BackingStore::UncountLive(OwnerId owner, uint64_t pages) {
  live_by_owner_[owner.value()] -= pages;
  live_ -= pages;
}

absl::Status BackingStore::health() const {
  return mapping_error_.ok() ? pool_.release_error() : mapping_error_;
}

absl::Status BackingStore::CheckInvariants(
    const std::vector<const ManagedRange*>& ranges) const {
  const auto fail = [](auto... parts) {
    return absl::InternalError(absl::StrCat(parts...));
  };
  uint64_t live = 0;
  uint64_t cooling = 0;
  uint64_t quarantined = 0;
  std::vector<uint64_t> by_owner(live_by_owner_.size(), 0);
  std::unordered_set<PageHandle> seen;
  for (const ManagedRange* range : ranges) {
    uint64_t lingering = 0;
    for (uint64_t i = 0; i < range->slots.size(); ++i) {
      const PageSlot& slot = range->slots[i];
      const uint64_t address = range->SlotAddress(i, page_size_).value();
      if ((slot.page == PageHandle()) != IsUnbacked(slot)) {
        return fail("slot ", address, " has page ", slot.page.value(),
                    " in state ", static_cast<int>(slot.state));
      }
      if ((slot.batch != nullptr) != (slot.state == SlotState::kCooling)) {
        return fail("slot ", address, " in state ",
                    static_cast<int>(slot.state),
                    " does not agree with the retirement queue");
      }
      if (IsUnbacked(slot)) continue;
      if (!seen.insert(slot.page).second) {
        return fail("page ", slot.page.value(), " is under two slots, one ",
                    address);
      }
      if (IsLive(slot)) {
        ++live;
        if (range->owner().value() >= by_owner.size()) {
          return fail("owner ", range->owner().value(), " has no account");
        }
        ++by_owner[range->owner().value()];
      } else {
        ++lingering;
        ++(slot.state == SlotState::kCooling ? cooling : quarantined);
      }
    }
    if (lingering != range->lingering) {
      return fail("range ", range->address().value(), " counts ",
                  range->lingering, " lingering slots and has ", lingering);
    }
  }
  for (const auto* pages :
       {&pool_.cached_pages(), &pool_.quarantined_pages()}) {
    for (const PageHandle page : *pages) {
      if (!seen.insert(page).second) {
        return fail("page ", page.value(), " is in the pool and in use");
      }
    }
  }
  if (live != live_ || cooling != cooling_ ||
      quarantined != quarantined_slots_ ||
      cooling != queue_.CalculateCooling()) {
    return fail("slots counted as live, cooling, quarantined: ", live_, ", ",
                cooling_, ", ", quarantined_slots_, "; found: ", live, ", ",
                cooling, ", ", quarantined,
                "; in the queue: ", queue_.CalculateCooling());
  }
  if (by_owner != live_by_owner_) {
    return fail("the live pages of owners do not add up to their ranges");
  }
  const uint64_t accounted =
      live + cooling + quarantined + pool_.cached() + pool_.quarantined();
  if (pool_.in_use() != accounted || pool_.in_use() > pool_.limit() ||
      pool_.in_use() != pool_.created() - pool_.released()) {
    return fail(
        "in use = live + cooling + cached + quarantined does not hold: ",
        pool_.in_use(), " = ", live, " + ", cooling, " + ", pool_.cached(),
        " + ", quarantined + pool_.quarantined(), "; limit ", pool_.limit(),
        ", created ", pool_.created(), ", released ", pool_.released());
  }
  return absl::OkStatus();
}

}  // namespace quire
