// Counts slots and the physical pages under them, each page once.
//
// Invariants: a page's counts are those of the slots that point to it; the sums
// here are over all pages in use; live pages are those of their owners, summed.
// All operations are O(1), CheckInvariants apart. Not thread-safe.

#ifndef QUIRE_ALLOC_PAGE_ACCOUNTS_H_
#define QUIRE_ALLOC_PAGE_ACCOUNTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "alloc/managed_range.h"
#include "alloc/page_record.h"

namespace quire {

class PageAccounts {
 public:
  // A slot of `page` goes from one state to another; kUnbacked on either side
  // is a slot that does not map it yet, or any more.
  void Move(PageRecord* page, SlotState from, SlotState to);
  // Accounts the page to another owner, from now on.
  void SetOwner(PageRecord* page, OwnerId owner);
  // What is live now was meant to be: a commit that is rolled back leaves no
  // peak behind.
  void UpdatePeak();

  // Pages.
  uint64_t live() const { return live_; }
  uint64_t cooling() const { return cooling_; }
  uint64_t quarantined() const { return quarantined_; }
  uint64_t peak_live() const { return peak_live_; }
  // Indexed by owner.
  const std::vector<uint64_t>& live_by_owner() const { return live_by_owner_; }
  uint64_t live_of(OwnerId owner) const {
    return owner.value() < live_by_owner_.size() ? live_by_owner_[owner.value()]
                                                 : 0;
  }
  // Slots in any state but kUnbacked.
  uint64_t mapped_slots() const { return mapped_slots_; }

  // Counts everything again. REQUIRES: `ranges` are all that have slots.
  absl::Status CheckInvariants(
      const std::vector<const ManagedRange*>& ranges) const;

 private:
  // Adds the page to the sums of its state, or takes it out again.
  void Enter(const PageRecord& page);
  void Leave(const PageRecord& page);

  uint64_t live_ = 0;
  uint64_t cooling_ = 0;
  uint64_t quarantined_ = 0;
  uint64_t peak_live_ = 0;
  uint64_t mapped_slots_ = 0;
  std::vector<uint64_t> live_by_owner_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_ACCOUNTS_H_
