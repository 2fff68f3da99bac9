// BackingStore: pages that go to sleep, and wake up under the same slots.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "alloc/backing_store.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Runs of the slots for which `predicate` holds, in order of owner.
template <typename Predicate>
std::vector<SleepTransition::Run> RunsOf(std::vector<ManagedRange*> ranges,
                                         Predicate predicate) {
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const ManagedRange* a, const ManagedRange* b) {
                     return a->owner() < b->owner();
                   });
  std::vector<SleepTransition::Run> runs;
  for (ManagedRange* const range : ranges) {
    range->ForEachRun(
        0, range->slots.size(), predicate, [&](uint64_t first, uint64_t count) {
          runs.push_back({range->shared_from_this(), first, count});
        });
  }
  return runs;
}

absl::Status CheckNotMoving(const std::vector<ManagedRange*>& ranges) {
  for (const ManagedRange* const range : ranges) {
    if (!range->moving) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("owner ", range->owner().value(),
                     " is being put to sleep or woken up by another thread"));
  }
  return absl::OkStatus();
}

void SetMoving(const SleepTransition& transition, bool moving) {
  for (const SleepTransition::Run& run : transition.runs) {
    run.range->moving = moving;
  }
}

}  // namespace

// ---- Sleep ------------------------------------------------------------------

absl::StatusOr<SleepTransition> BackingStore::BeginSleep(
    const std::vector<ManagedRange*>& ranges) {
  QUIRE_RETURN_IF_ERROR(CheckNotMoving(ranges));
  SleepTransition transition;
  transition.runs = RunsOf(ranges, IsLive);
  for (SleepTransition::Run& run : transition.runs) {
    for (uint64_t i = run.first; i < run.first + run.count; ++i) {
      PageRecord* const page = run.range->slots[i].page;
      if (page->moving != nullptr) continue;
      transition.falling_asleep.push_back(
          std::make_unique<SavedPage>(page->owner));
      page->moving = transition.falling_asleep.back().get();
      transition.pages.push_back(
          {page, page->moving, run.range->SlotAddress(i, page_size_)});
      ++run.pages;
    }
  }
  SetMoving(transition, true);
  return transition;
}

absl::Status BackingStore::FinishSleep(SleepTransition* transition) {
  absl::Status unmapped = UnmapForSleep(*transition);
  if (!unmapped.ok()) {
    AbandonSleep(*transition);
    return unmapped;
  }
  // From here on nothing can fail.
  const uint64_t live_before = accounts_.live();
  for (const SleepTransition::Run& run : transition->runs) {
    for (uint64_t i = run.first; i < run.first + run.count; ++i) {
      PageSlot& slot = run.range->slots[i];
      SavedPage* const saved = slot.page->moving;
      // Its last live slot; it may still cool under others.
      if (slot.page->live == 1) slot.page->moving = nullptr;
      if (slot.page->slots() == 1) ++transition->freed;
      Empty(&slot, UnmapReason::kFreed);
      slot.state = SlotState::kAsleep;
      slot.saved = saved;
      ++saved->slots;
    }
    slots_given_up_ += run.count;
    unmapped_ += run.count;
  }
  pages_given_up_ += live_before - accounts_.live();
  for (auto& saved : transition->falling_asleep) saved_.Add(std::move(saved));
  SetMoving(*transition, false);
  return absl::OkStatus();
}

void BackingStore::AbandonSleep(const SleepTransition& transition) {
  for (const SleepTransition::Page& page : transition.pages) {
    page.page->moving = nullptr;
  }
  SetMoving(transition, false);
}

absl::Status BackingStore::UnmapForSleep(const SleepTransition& transition) {
  const auto quarantine = [this](const SleepTransition::Run& run,
                                 const absl::Status& cause) {
    return Quarantine(run.range.get(), run.first, run.count, cause);
  };
  absl::Status result;
  size_t unmapped = 0;
  for (; unmapped < transition.runs.size(); ++unmapped) {
    const SleepTransition::Run& run = transition.runs[unmapped];
    result = UnmapSlots(*run.range, run.first, run.count);
    if (absl::IsDataLoss(result)) result = quarantine(run, result);
    if (!result.ok()) break;
  }
  if (result.ok()) return result;
  // The pages have kept what was in them.
  for (size_t i = 0; i < unmapped; ++i) {
    const SleepTransition::Run& run = transition.runs[i];
    std::vector<PageRecord*> pages;
    for (uint64_t at = run.first; at < run.first + run.count; ++at) {
      pages.push_back(run.range->slots[at].page);
    }
    const absl::Status mapped = MapRun(*run.range, run.first, pages);
    if (!mapped.ok()) result = quarantine(run, mapped);
  }
  return result;
}

// ---- Wake -------------------------------------------------------------------

absl::Status BackingStore::TryBeginWake(
    const std::vector<ManagedRange*>& ranges, CommitAttempt* attempt,
    SleepTransition* transition) {
  QUIRE_RETURN_IF_ERROR(CheckNotMoving(ranges));
  attempt->Restart();
  attempt->slots = 0;
  *transition = SleepTransition();
  transition->runs = RunsOf(ranges, IsAsleep);
  absl::flat_hash_set<const SavedPage*> found;
  for (SleepTransition::Run& run : transition->runs) {
    attempt->slots += run.count;
    for (uint64_t i = run.first; i < run.first + run.count; ++i) {
      SavedPage* const saved = run.range->slots[i].saved;
      if (!found.insert(saved).second) continue;
      transition->pages.push_back(
          {nullptr, saved, run.range->SlotAddress(i, page_size_)});
      ++run.pages;
    }
  }
  if (transition->pages.empty()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckOwnersOf(transition->pages, attempt));
  attempt->wanted = transition->pages.size();
  attempt->growth = attempt->wanted;
  std::vector<PageRecord*> taken;
  QUIRE_RETURN_IF_ERROR(TakePages(attempt, &taken));
  // Pages that were made one after the other lie side by side in some drivers,
  // and take fewer mappings in that order.
  std::sort(taken.begin(), taken.end(),
            [](const PageRecord* a, const PageRecord* b) {
              return a->handle < b->handle;
            });
  for (size_t i = 0; i < taken.size(); ++i) {
    transition->pages[i].page = taken[i];
    transition->pages[i].saved->page = taken[i];
  }
  for (size_t i = 0; i < transition->runs.size(); ++i) {
    const absl::Status mapped = MapAwake(transition->runs[i]);
    if (mapped.ok()) continue;
    attempt->shortage = CommitAttempt::Shortage::kMappings;
    attempt->missing = attempt->slots;
    // What the driver lost goes with the rest: it is not to be unmapped.
    transition->runs.resize(i);
    const absl::Status undone = AbandonWake(transition);
    return undone.ok() ? mapped : undone;
  }
  SetMoving(*transition, true);
  return absl::OkStatus();
}

absl::Status BackingStore::CheckOwnersOf(
    const std::vector<SleepTransition::Page>& pages, CommitAttempt* attempt) {
  // Owners below one limit grow together, so each is counted before the next is
  // looked at.
  absl::Status status;
  size_t begin = 0;
  size_t checked = 0;
  for (; begin < pages.size(); begin = checked) {
    const OwnerId owner = pages[begin].saved->owner;
    while (checked < pages.size() && pages[checked].saved->owner == owner) {
      ++checked;
    }
    attempt->growth = checked - begin;
    status = CheckGrowth(owner, attempt);
    if (!status.ok()) break;
    owners().Enter(owner, attempt->growth);
  }
  for (size_t i = 0; i < begin; ++i) owners().Leave(pages[i].saved->owner);
  if (status.ok()) return status;
  // What is refused is all that would wake up below the limit.
  attempt->growth = static_cast<uint64_t>(
      std::count_if(pages.begin(), pages.end(), [&](const auto& page) {
        return !attempt->limited_by ||
               owners().IsWithin(page.saved->owner, *attempt->limited_by);
      }));
  return status;
}

absl::Status BackingStore::MapAwake(const SleepTransition::Run& run) {
  std::vector<PageRecord*> pages;
  for (uint64_t i = run.first; i < run.first + run.count; ++i) {
    pages.push_back(run.range->slots[i].saved->page);
  }
  const absl::Status mapped = MapRun(*run.range, run.first, pages);
  const bool lost = absl::IsDataLoss(mapped);
  if (!mapped.ok() && !lost) return mapped;
  for (uint64_t i = 0; i < run.count; ++i) {
    PageSlot& slot = run.range->slots[run.first + i];
    SavedPage* const saved = std::exchange(slot.saved, nullptr);
    --saved->slots;
    pages[i]->moving = saved;
    slot.state = SlotState::kUnbacked;
    Fill(&slot, pages[i], run.range->owner());
  }
  if (!lost) return mapped;
  return Quarantine(run.range.get(), run.first, run.count, mapped);
}

void BackingStore::FinishWake(
    const SleepTransition& transition,
    std::vector<std::unique_ptr<SavedPage>>* restored) {
  for (const SleepTransition::Page& page : transition.pages) {
    page.page->moving = nullptr;
    page.saved->page = nullptr;
    accounts_.UpdatePeaks(page.page->owner);
    restored->push_back(saved_.Remove(page.saved));
  }
  SetMoving(transition, false);
}

absl::Status BackingStore::AbandonWake(SleepTransition* transition) {
  absl::Status result;
  for (const SleepTransition::Run& run : transition->runs) {
    const absl::Status unmapped = UnmapSlots(*run.range, run.first, run.count);
    if (!unmapped.ok()) {
      result = Quarantine(run.range.get(), run.first, run.count, unmapped);
      continue;
    }
    for (uint64_t i = run.first; i < run.first + run.count; ++i) {
      PageSlot& slot = run.range->slots[i];
      SavedPage* const saved = slot.page->moving;
      SetState(&slot, SlotState::kUnbacked);
      slot = PageSlot();
      slot.state = SlotState::kAsleep;
      slot.saved = saved;
      ++saved->slots;
    }
  }
  for (const SleepTransition::Page& page : transition->pages) {
    page.page->moving = nullptr;
    page.saved->page = nullptr;
    if (page.page->slots() == 0) pool_.PutBack(page.page);
    // All of its slots were quarantined.
    if (page.saved->slots == 0) saved_.Remove(page.saved);
  }
  SetMoving(*transition, false);
  return result;
}

// ---- The rest ---------------------------------------------------------------

void BackingStore::DropAsleep(ManagedRange* range, uint64_t first,
                              uint64_t count) {
  range->ForEachRun(first, count, IsAsleep, [&](uint64_t at, uint64_t n) {
    for (uint64_t i = at; i < at + n; ++i) {
      const SavedPage* const saved = range->slots[i].saved;
      if (--range->slots[i].saved->slots == 0) saved_.Remove(saved);
      range->slots[i] = PageSlot();
    }
  });
}

absl::Status BackingStore::CheckSavedPages(
    const std::vector<const ManagedRange*>& ranges) const {
  absl::flat_hash_map<const SavedPage*, uint64_t> slots;
  for (const ManagedRange* range : ranges) {
    for (uint64_t i = 0; i < range->slots.size(); ++i) {
      const PageSlot& slot = range->slots[i];
      if ((slot.saved != nullptr) != IsAsleep(slot)) {
        return absl::InternalError(absl::StrCat(
            "page ", i, " of the range at ", range->address().value(),
            " in state ", static_cast<int>(slot.state),
            slot.saved == nullptr ? " has no" : " has a", " saved page"));
      }
      if (slot.saved == nullptr) continue;
      ++slots[slot.saved];
      if (slot.saved->owner != range->owner()) {
        return absl::InternalError(absl::StrCat(
            "a page of owner ", slot.saved->owner.value(),
            " sleeps under the range at ", range->address().value(),
            " of owner ", range->owner().value()));
      }
    }
  }
  for (const auto& saved : saved_.pages()) {
    const auto found = slots.find(saved.get());
    const uint64_t count = found == slots.end() ? 0 : found->second;
    if (saved->slots != count) {
      return absl::InternalError(
          absl::StrCat("a sleeping page of owner ", saved->owner.value(),
                       " counts ", saved->slots, " slots and has ", count));
    }
    if (found != slots.end()) slots.erase(found);
  }
  if (!slots.empty()) {
    return absl::InternalError(absl::StrCat(
        slots.size(), " sleeping pages are in slots and not in the books"));
  }
  return saved_.CheckInvariants();
}

}  // namespace quire
