// Puts physical pages under the slots of ranges and takes them away again.
//
// One attempt of everything, as a transaction, and the accounts of it: what to
// do when pages are short (ask, wait, give up) is DeviceMemory's business.
//
// Each call to the driver covers a whole contiguous run. Where the driver
// refuses an unmap, or loses track of a run (kDataLoss), the slots and pages
// concerned are quarantined: they are counted, and never used again.
//
// A page may be under several slots; it returns to the pool with the last.
//
// A page may also sleep: its contents are elsewhere, its slots remember it, and
// the page itself is free. backing_store_sleep.cc has all of that.
//
// Invariants:
//   taken pages = live + cooling + quarantined pages
//   in use      = live + cooling + cached + quarantined
// Not thread-safe.

#ifndef QUIRE_ALLOC_BACKING_STORE_H_
#define QUIRE_ALLOC_BACKING_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/hook_dispatcher.h"
#include "alloc/managed_range.h"
#include "alloc/page_accounts.h"
#include "alloc/page_pool.h"
#include "alloc/retirement_queue.h"
#include "alloc/saved_pages.h"
#include "alloc/sleep_transition.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/fence.h"

namespace quire {

// What a commit is to do: the slots [first, first + count) of `range`.
struct CommitRequest {
  ManagedRange* range;
  uint64_t first;
  uint64_t count;
  // Empty: any page will do, and slots that are backed stay as they are. Else
  // one for each slot, none of which is backed: the handle of a live page of
  // the same owner, or PageHandle() where any will do.
  std::span<const PageHandle> pages;
};

// One Commit over all of its attempts.
struct CommitAttempt {
  enum class Shortage {
    kNone,
    kOwner,     // a limit of the owner, or what others have reserved
    kLimit,     // the pool's limit
    kDevice,    // the driver had no page
    kMappings,  // the driver had no room for a mapping
  };
  Shortage shortage = Shortage::kNone;
  // At the last attempt: slots to map, pages of the pool for them, pages that
  // would become live, and pages missing.
  uint64_t slots = 0;
  uint64_t wanted = 0;
  uint64_t growth = 0;
  uint64_t missing = 0;
  // For kOwner: whose hard limit it is, if anybody's.
  std::optional<OwnerId> limited_by;
  // More than a limit, whatever is given up.
  bool hopeless = false;
  // Pages created by all attempts.
  uint64_t created = 0;
  // Pages that became live, where the attempt succeeded.
  uint64_t became_live = 0;

  // Before the next attempt: what the last one was short of is forgotten.
  void Restart() {
    shortage = Shortage::kNone;
    missing = 0;
    limited_by.reset();
    hopeless = false;
  }
  // What there was not enough of, in pages.
  uint64_t requested() const {
    switch (shortage) {
      case Shortage::kOwner:
        return growth;
      case Shortage::kMappings:
        return slots;
      default:
        return wanted;
    }
  }
};

class BackingStore {
 public:
  // `owners` and `events` outlive this object.
  BackingStore(Driver* driver, const OwnerRegistry* owners,
               const PressureThresholds& thresholds,
               const PagePoolOptions& options, EventLog* events);

  // Makes the slots live, or changes none of them. Where the error is
  // kResourceExhausted, attempt->shortage says of what.
  absl::Status TryCommit(const CommitRequest& request, CommitAttempt* attempt);
  // Creates pages until attempt->wanted are cached, within the limits. Errors
  // as for TryCommit, pages created on the way stay cached.
  absl::Status TryPrepareFor(OwnerId owner, CommitAttempt* attempt);
  // After the last attempt has failed: takes back what attempts created.
  void AbandonCommit(const CommitAttempt& attempt);

  // The live slots among [first, first + count) cool, or are unmapped where the
  // fence is complete; what sleeps there is forgotten. *released: pages that
  // are live no more. An error means that slots were quarantined.
  absl::Status Decommit(ManagedRange* range, uint64_t first, uint64_t count,
                        const Fence& fence, uint64_t* released);
  // Puts other live pages of the same owner under the live slots from `first`
  // on, or changes nothing; see DeviceMemory::Remap. *released as above.
  absl::Status Remap(ManagedRange* range, uint64_t first,
                     std::span<const PageHandle> pages, uint64_t* released);
  // Accounts the range and its pages to another owner. *pages: how many of them
  // are live. Errors, which change nothing: kFailedPrecondition where another
  // range has one of them as well, or one of them sleeps; kResourceExhausted
  // where limits are against it.
  absl::Status SetOwner(ManagedRange* range, OwnerId owner, uint64_t* pages);
  absl::Status SetOwnerLimits(OwnerId owner, const OwnerPageLimits& limits) {
    return accounts_.owners().SetLimits(owner, limits, capacity());
  }
  // Unmaps what has cooled, looking at no more than `at_most` batches. Retired
  // ranges that have nothing left are appended to `drained`.
  void Harvest(size_t at_most, std::vector<ManagedRange*>* drained);
  // For teardown: waits for what cools and unmaps it.
  void WaitForAll();
  // For teardown: unmaps every slot of `range` as well as the driver allows.
  void Clear(ManagedRange* range);

  // Sleep. All live pages of `ranges`, which have all that share one, become
  // part of a transition; the caller saves their contents, and then finishes or
  // abandons it. Finishing unmaps them and makes them free, or changes nothing:
  // the error is kDataLoss where slots were quarantined on the way. The saved
  // pages must know where their contents are before that.
  absl::StatusOr<SleepTransition> BeginSleep(
      const std::vector<ManagedRange*>& ranges);
  absl::Status FinishSleep(SleepTransition* transition);
  void AbandonSleep(const SleepTransition& transition);
  // Wake. Puts pages under all sleeping slots of `ranges`, or changes nothing,
  // with the errors of TryCommit; the caller restores their contents, and then
  // finishes or abandons it. `restored` are to be destroyed by the caller, best
  // without a lock. Abandoning puts the slots to sleep again; the error is
  // kDataLoss where slots were quarantined on the way.
  absl::Status TryBeginWake(const std::vector<ManagedRange*>& ranges,
                            CommitAttempt* attempt,
                            SleepTransition* transition);
  void FinishWake(const SleepTransition& transition,
                  std::vector<std::unique_ptr<SavedPage>>* restored);
  absl::Status AbandonWake(SleepTransition* transition);
  const SavedPages& saved() const { return saved_; }

  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  std::map<StreamId, uint64_t> CalculateCoolingByStream() const {
    return queue_.CalculateCoolingByStream();
  }
  // True where a wait can bring pages back.
  bool CanCool() const { return queue_.CanComplete(); }

  // Pages and slots by state.
  const PageAccounts& accounts() const { return accounts_; }
  OwnerAccounts& owners() { return accounts_.owners(); }
  // Pages that can be live at most.
  uint64_t capacity() const {
    return SaturatingSubtract(pool_.limit(), quarantined());
  }
  // Pages of which nothing can be had any more: handles that were not released,
  // and pages under no slots but such that were not unmapped.
  uint64_t quarantined() const {
    return accounts_.quarantined() + pool_.quarantined();
  }
  uint64_t commits() const { return commits_; }
  uint64_t commits_from_cache() const { return commits_from_cache_; }
  // Grow whenever pages stop being live, whenever slots do, and whenever slots
  // stop being mapped: what a thread that waits for pages looks at.
  uint64_t pages_given_up() const { return pages_given_up_; }
  uint64_t slots_given_up() const { return slots_given_up_; }
  uint64_t unmapped() const { return unmapped_; }
  // OK, or the first refusal that led to quarantine.
  absl::Status health() const;

  // Checks the accounts against the slots of `ranges`, which must be all.
  absl::Status CheckInvariants(
      const std::vector<const ManagedRange*>& ranges) const;

 private:
  // The pages that `request` names, in the order of its slots, null where any
  // will do; nothing where it names none.
  absl::Status FindPages(const CommitRequest& request,
                         std::vector<PageRecord*>* pages) const;
  // A page that may be put under another slot of `owner`.
  absl::StatusOr<PageRecord*> FindShareable(PageHandle handle,
                                            OwnerId owner) const;
  // Pages that are not live and would be, with the cooling slots of `request`.
  static uint64_t CountRevived(const CommitRequest& request);
  // Creates pages until attempt->wanted are cached, within the pool's limit.
  absl::Status TryPrepare(CommitAttempt* attempt);
  // OK where the owner may have attempt->growth pages more.
  absl::Status CheckGrowth(OwnerId owner, CommitAttempt* attempt);
  // Takes attempt->wanted pages from the pool.
  absl::Status TakePages(CommitAttempt* attempt,
                         std::vector<PageRecord*>* pages);
  // Maps every unbacked run of [first, first + count), in order, to `pages`.
  // On failure nothing is mapped, and what is not quarantined is in the pool.
  absl::Status MapUnbacked(ManagedRange* range, uint64_t first, uint64_t count,
                           const std::vector<PageRecord*>& pages);
  // The driver calls, and the news of them.
  absl::Status MapRun(const ManagedRange& range, uint64_t first,
                      std::span<PageRecord* const> pages);
  absl::Status UnmapSlots(const ManagedRange& range, uint64_t first,
                          uint64_t count);
  // Unmaps all runs, which stay live in the books, or none of them.
  absl::Status UnmapForSleep(const SleepTransition& transition);
  // OK where the owners of saved pages may have them back all together.
  absl::Status CheckOwnersOf(const std::vector<SleepTransition::Page>& pages,
                             CommitAttempt* attempt);
  // Maps the pages that wake up under the slots of `run`.
  absl::Status MapAwake(const SleepTransition::Run& run);
  // Forgets what sleeps under [first, first + count).
  void DropAsleep(ManagedRange* range, uint64_t first, uint64_t count);
  absl::Status CheckSavedPages(
      const std::vector<const ManagedRange*>& ranges) const;
  enum class UnmapReason { kFreed, kRolledBack };
  // Unmaps a run of slots that are live, or kCooling without a batch. Where the
  // driver is out of mappings for it (to unmap may split one), the slots cool
  // until the next try, which is no error. Where it refuses, and a second time,
  // since a call that fails changes nothing, they are quarantined; of a commit
  // that is rolled back, at once.
  absl::Status UnmapRun(ManagedRange* range, uint64_t first, uint64_t count,
                        UnmapReason reason);
  // Unmaps runs that have left the retirement queue.
  void UnmapCooled(const std::vector<SlotRun>& runs);
  // Returns the error that says so.
  absl::Status Quarantine(ManagedRange* range, uint64_t first, uint64_t count,
                          const absl::Status& cause);

  void SetState(PageSlot* slot, SlotState state) {
    accounts_.Move(slot->page, slot->state, state);
    slot->state = state;
  }
  // Puts `page` under an unbacked slot, live.
  void Fill(PageSlot* slot, PageRecord* page, OwnerId owner);
  // The slot maps its page no more. Where it was the last, the page goes to the
  // pool.
  void Empty(PageSlot* slot, UnmapReason reason);
  // Replaces the pages of live slots by `pages`, in the books.
  void Exchange(ManagedRange* range, uint64_t first,
                std::span<PageRecord* const> pages);

  Driver* const driver_;
  const Bytes page_size_;
  EventLog* const events_;
  std::vector<PageHandle> run_;  // that is mapped: memory for each in turn
  PagePool pool_;
  PageAccounts accounts_;
  SavedPages saved_;
  RetirementQueue queue_;

  uint64_t commits_ = 0;
  uint64_t commits_from_cache_ = 0;
  uint64_t pages_given_up_ = 0;
  uint64_t slots_given_up_ = 0;
  uint64_t unmapped_ = 0;
  absl::Status mapping_error_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_BACKING_STORE_H_
