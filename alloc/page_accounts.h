// Counts slots and the physical pages under them, each page once.
//
// Invariants: a page's counts are those of the slots that point to it; the sums
// here are over all pages in use; live pages are those of their owners, summed.
// Operations are O(levels of owners), CheckInvariants apart. Not thread-safe.

#ifndef QUIRE_ALLOC_PAGE_ACCOUNTS_H_
#define QUIRE_ALLOC_PAGE_ACCOUNTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "alloc/managed_range.h"
#include "alloc/owner_accounts.h"
#include "alloc/page_record.h"

namespace quire {

class PageAccounts {
 public:
  // `registry` outlives this object.
  explicit PageAccounts(const OwnerRegistry* registry,
                        const PressureThresholds& thresholds = {})
      : owners_(registry, thresholds) {}

  // A slot of `page` goes from one state to another; kUnbacked on either side
  // is a slot that does not map it yet, or any more.
  void Move(PageRecord* page, SlotState from, SlotState to);
  // What is live now, and of `owner`, was meant to be: a commit that is rolled
  // back leaves no peak behind.
  void UpdatePeaks(OwnerId owner);

  // Pages.
  uint64_t live() const { return live_; }
  uint64_t cooling() const { return cooling_; }
  uint64_t quarantined() const { return quarantined_; }
  uint64_t peak_live() const { return peak_live_; }
  // Live pages by owner, and their limits. Whoever moves pages from one owner
  // to another changes the records of the pages.
  const OwnerAccounts& owners() const { return owners_; }
  OwnerAccounts& owners() { return owners_; }
  // Slots in any state but kUnbacked.
  uint64_t mapped_slots() const { return mapped_slots_; }

  // Counts everything again. REQUIRES: `ranges` are all that have slots.
  absl::Status CheckInvariants(
      const std::vector<const ManagedRange*>& ranges) const;

 private:
  // Adds a page to the sums of its state, or takes it out again.
  void Enter(SlotState state, OwnerId owner);
  void Leave(SlotState state, OwnerId owner);

  uint64_t live_ = 0;
  uint64_t cooling_ = 0;
  uint64_t quarantined_ = 0;
  uint64_t peak_live_ = 0;
  uint64_t mapped_slots_ = 0;
  OwnerAccounts owners_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_ACCOUNTS_H_
