// Puts physical pages under the slots of ranges and takes them away again.
//
// One attempt of everything, as a transaction, and the accounts of it: what to
// do when pages are short (ask, wait, give up) is DeviceMemory's business.
//
// Each call to the driver covers a whole contiguous run. Where the driver
// refuses an unmap, or loses track of a run (kDataLoss), the slots and pages
// concerned are quarantined: they are counted, and never used again.
//
// Invariants:
//   taken pages = live + cooling + quarantined slots
//   in use      = live + cooling + cached + quarantined
// Not thread-safe.

#ifndef QUIRE_ALLOC_BACKING_STORE_H_
#define QUIRE_ALLOC_BACKING_STORE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "alloc/managed_range.h"
#include "alloc/page_pool.h"
#include "alloc/retirement_queue.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/fence.h"

namespace quire {

// One Commit over all of its attempts.
struct CommitAttempt {
  enum class Shortage {
    kNone,
    kLimit,     // the pool's limit
    kDevice,    // the driver had no page
    kMappings,  // the driver had no room for a mapping
  };
  Shortage shortage = Shortage::kNone;
  // Slots to back at the last attempt, and pages missing for them.
  uint64_t wanted = 0;
  uint64_t missing = 0;
  // Pages created by all attempts.
  uint64_t created = 0;
  // Pages that became live, where the attempt succeeded.
  uint64_t became_live = 0;
};

class BackingStore {
 public:
  // As for PagePool; all counts are pages.
  BackingStore(Driver* driver, DeviceId device, Bytes page_size, uint64_t limit,
               uint64_t cache_limit);

  // Makes the slots [first, first + count) live, or changes no slot. Where the
  // error is kResourceExhausted, attempt->shortage says of what.
  absl::Status TryCommit(ManagedRange* range, uint64_t first, uint64_t count,
                         CommitAttempt* attempt);
  // After the last attempt has failed: takes back what attempts created.
  void AbandonCommit(const CommitAttempt& attempt);

  // The live slots among [first, first + count) cool, or are unmapped where the
  // fence is complete. *released: how many were live. An error means that slots
  // were quarantined.
  absl::Status Decommit(ManagedRange* range, uint64_t first, uint64_t count,
                        const Fence& fence, uint64_t* released);
  // Accounts the range and its live slots to another owner. Returns how many
  // are live.
  uint64_t SetOwner(ManagedRange* range, OwnerId owner);
  // Unmaps what has cooled, looking at no more than `at_most` batches. Retired
  // ranges that have nothing left are appended to `drained`.
  void Harvest(size_t at_most, std::vector<ManagedRange*>* drained);
  // For teardown: waits for what cools and unmaps it.
  void WaitForAll();
  // For teardown: unmaps every slot of `range` as well as the driver allows.
  void Clear(ManagedRange* range);

  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  // True where a wait can bring pages back.
  bool CanCool() const { return queue_.CanComplete(); }

  uint64_t live() const { return live_; }
  uint64_t cooling() const { return cooling_; }
  // Handles that were not released, and slots that were not unmapped.
  uint64_t quarantined() const {
    return quarantined_slots_ + pool_.quarantined();
  }
  // Live, cooling and quarantined slots.
  uint64_t mapped() const { return live_ + cooling_ + quarantined_slots_; }
  uint64_t peak_live() const { return peak_live_; }
  uint64_t commits() const { return commits_; }
  uint64_t commits_from_cache() const { return commits_from_cache_; }
  // Grow whenever slots stop being live, and whenever they stop being mapped:
  // what a thread that waits for pages looks at.
  uint64_t decommitted() const { return decommitted_; }
  uint64_t unmapped() const { return unmapped_; }
  // Indexed by owner.
  const std::vector<uint64_t>& live_by_owner() const { return live_by_owner_; }
  // OK, or the first refusal that led to quarantine.
  absl::Status health() const;

  // Checks the accounts against the slots of `ranges`, which must be all.
  absl::Status CheckInvariants(
      const std::vector<const ManagedRange*>& ranges) const;

 private:
  // Maps every unbacked run of [first, first + count), in order, from `pages`.
  // On failure nothing is mapped, and what is not quarantined is in the pool.
  absl::Status MapUnbacked(ManagedRange* range, uint64_t first, uint64_t count,
                           const std::vector<PageHandle>& pages);
  enum class UnmapReason { kFreed, kRolledBack };
  // Unmaps a run of slots that no account counts any more. Where the driver is
  // out of mappings for it (to unmap may split one), the slots cool until the
  // next try, which is no error; where it refuses, they are quarantined.
  absl::Status UnmapRun(ManagedRange* range, uint64_t first, uint64_t count,
                        UnmapReason reason);
  // Unmaps runs that have left the retirement queue.
  void UnmapCooled(const std::vector<SlotRun>& runs);
  // Returns the error that says so.
  absl::Status Quarantine(ManagedRange* range, uint64_t first, uint64_t count,
                          const absl::Status& cause);
  void CountLive(OwnerId owner, uint64_t pages);
  void UncountLive(OwnerId owner, uint64_t pages);

  Driver* const driver_;
  const Bytes page_size_;
  PagePool pool_;
  RetirementQueue queue_;

  uint64_t live_ = 0;
  uint64_t cooling_ = 0;
  uint64_t quarantined_slots_ = 0;
  uint64_t peak_live_ = 0;
  uint64_t commits_ = 0;
  uint64_t commits_from_cache_ = 0;
  uint64_t decommitted_ = 0;
  uint64_t unmapped_ = 0;
  std::vector<uint64_t> live_by_owner_;
  absl::Status mapping_error_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_BACKING_STORE_H_
