// What each owner uses, and what it may use.
//
// Owners form trees (OwnerRegistry). A page that is live counts for its owner
// and for every owner above it, once. Limits are of these sums:
//   hard      growth beyond it is refused
//   soft      growth beyond it is reported, and caches of the owner go first
//   reserved  as much as that is kept for the owner while it uses less
// All counts are pages.
//
// Reservations are kept by one sum. An owner *claims* what it and those below
// it use or claim, and no less than its reserved minimum:
//   claim(o) = max(reserved(o), own(o) + sum of claim(c) over children c)
// The claims of all owners at the top must fit in the memory there is: then
// everybody can have what is reserved for them, whatever the others do. Use
// that stays below a minimum raises no claim and cannot be refused for this
// reason.
//
// Limits may be lowered below what is used: growth stops until enough is given
// up. No difference here goes below zero.
//
// An owner is linked to its parent when it is first named to this object. One
// that was registered only later than that stays at the top.
//
// All operations are O(levels), apart from those that say otherwise. Not
// thread-safe.

#ifndef QUIRE_ALLOC_OWNER_ACCOUNTS_H_
#define QUIRE_ALLOC_OWNER_ACCOUNTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "alloc/pressure_gauge.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/units.h"

namespace quire {

inline constexpr uint64_t kNoPageLimit = UINT64_MAX;

struct OwnerPageLimits {
  uint64_t soft = kNoPageLimit;
  uint64_t hard = kNoPageLimit;
  uint64_t reserved = 0;
};

struct OwnerAccount {
  std::optional<OwnerId> parent;
  bool linked = false;
  OwnerPageLimits limits;
  uint64_t own = 0;   // of this owner itself
  uint64_t live = 0;  // with all below it
  uint64_t peak = 0;  // of `live`
  // own + the claims of those below it.
  uint64_t claimed = 0;
  PressureGauge gauge;
  // Whether `live` or a limit has changed since the gauge was read.
  bool touched = false;

  uint64_t claim() const {
    return claimed > limits.reserved ? claimed : limits.reserved;
  }
};

// Why an owner may not grow.
struct GrowthRefusal {
  // Whose hard limit it is; none where the rest is reserved for others.
  std::optional<OwnerId> limited_by;
  // Pages that would have to be given up first.
  uint64_t missing;
};

class OwnerAccounts {
 public:
  // `registry` outlives this object.
  explicit OwnerAccounts(const OwnerRegistry* registry,
                         const PressureThresholds& thresholds = {})
      : registry_(registry), thresholds_(thresholds) {}

  // Pages of `owner` become live, or stop being live.
  void Enter(OwnerId owner, uint64_t pages = 1);
  void Leave(OwnerId owner, uint64_t pages = 1);
  // Pages of one owner become another's, or nothing changes and the result says
  // why not. Where both are below one owner, that one does not grow.
  std::optional<GrowthRefusal> Move(OwnerId from, OwnerId to, uint64_t pages,
                                    uint64_t capacity);
  // Whether `owner` is `ancestor`, or below it. REQUIRES: it was named before.
  bool IsWithin(OwnerId owner, OwnerId ancestor) const;
  // What is live now counts for the peaks of `owner` and those above it.
  void UpdatePeaks(OwnerId owner);

  // Nothing where no limit and no reservation keeps `owner` from having `pages`
  // more. `capacity`: pages there can be, of all owners; whether there are any
  // is not looked at.
  std::optional<GrowthRefusal> CheckGrowth(OwnerId owner, uint64_t pages,
                                           uint64_t capacity);
  // The most pages that hard limits leave to `owner`: its own, and of those
  // above it.
  uint64_t HardRoom(OwnerId owner);
  // The most pages that limits, reservations and capacity leave to `owner`.
  uint64_t Allowance(OwnerId owner, uint64_t capacity);
  // What others have reserved and do not use, as far as `owner` cannot have it.
  uint64_t ReservedForOthers(OwnerId owner);

  // kFailedPrecondition where the claims would grow beyond `capacity`.
  absl::Status SetLimits(OwnerId owner, const OwnerPageLimits& limits,
                         uint64_t capacity);

  // Calls `function(owner, account, level before)` for each owner whose level
  // of pressure has changed. O(owners whose use has changed since).
  template <typename Function>
  void UpdatePressure(Function function) {
    for (const OwnerId owner : touched_) {
      OwnerAccount& account = accounts_[owner.value()];
      account.touched = false;
      const PressureLevel before = account.gauge.level();
      if (account.gauge.Update(account.live)) function(owner, account, before);
    }
    touched_.clear();
  }

  // Indexed by owner; those that were never named are not linked.
  const std::vector<OwnerAccount>& accounts() const { return accounts_; }
  const OwnerAccount& AccountOf(OwnerId owner) { return Get(owner); }
  uint64_t own(OwnerId owner) const {
    return owner.value() < accounts_.size() ? accounts_[owner.value()].own : 0;
  }

  // Counts everything again, from `own`, the live pages by owner. O(owners).
  absl::Status CheckInvariants(const std::vector<uint64_t>& own) const;

 private:
  OwnerAccount& Get(OwnerId owner);
  void Touch(OwnerId owner, OwnerAccount* account) {
    if (account->touched) return;
    account->touched = true;
    touched_.push_back(owner);
  }
  // Calls `function(id, account)` for the owner and those above it, from below.
  template <typename Function>
  void ForChain(OwnerId owner, Function function);
  // By how much the sum of claims grows when `owner` grows by `pages`.
  uint64_t ClaimGrowth(OwnerId owner, uint64_t pages);
  // Leaves out the limits of owners above `mover`, which do not grow.
  std::optional<GrowthRefusal> Check(OwnerId owner, uint64_t pages,
                                     uint64_t capacity,
                                     std::optional<OwnerId> mover);

  const OwnerRegistry* const registry_;
  const PressureThresholds thresholds_;
  std::vector<OwnerAccount> accounts_;
  uint64_t live_ = 0;
  // Over the owners at the top.
  uint64_t claims_ = 0;
  // Owners whose gauges must be read again.
  std::vector<OwnerId> touched_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_OWNER_ACCOUNTS_H_
