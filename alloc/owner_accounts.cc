#include "alloc/owner_accounts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

namespace quire {

// Counts from outside are added with SaturatingAdd: those of existing pages,
// and claims, which SetLimits keeps within the capacity, are far below 64 bits.

OwnerAccount& OwnerAccounts::Get(OwnerId owner) {
  if (owner.value() >= accounts_.size()) {
    accounts_.resize(size_t{owner.value()} + 1);
  }
  if (!accounts_[owner.value()].linked) {
    const std::optional<OwnerId> parent = registry_->Parent(owner);
    accounts_[owner.value()].linked = true;
    accounts_[owner.value()].parent = parent;
    // Names of levels above have smaller ids, so this ends.
    if (parent) Get(*parent);
  }
  return accounts_[owner.value()];
}

template <typename Function>
void OwnerAccounts::ForChain(OwnerId owner, Function function) {
  for (std::optional<OwnerId> id = owner; id;) {
    OwnerAccount& account = Get(*id);
    function(*id, account);
    id = account.parent;
  }
}

void OwnerAccounts::Enter(OwnerId owner, uint64_t pages) {
  Get(owner).own += pages;
  live_ += pages;
  uint64_t growth = pages;
  ForChain(owner, [&](OwnerId id, OwnerAccount& account) {
    const uint64_t before = account.claim();
    account.live += pages;
    account.claimed += growth;
    growth = account.claim() - before;
    if (account.gauge.enabled()) Touch(id, &account);
  });
  claims_ += growth;
}

void OwnerAccounts::Leave(OwnerId owner, uint64_t pages) {
  Get(owner).own -= pages;
  live_ -= pages;
  uint64_t shrinkage = pages;
  ForChain(owner, [&](OwnerId id, OwnerAccount& account) {
    const uint64_t before = account.claim();
    account.live -= pages;
    account.claimed -= shrinkage;
    shrinkage = before - account.claim();
    if (account.gauge.enabled()) Touch(id, &account);
  });
  claims_ -= shrinkage;
}

std::optional<GrowthRefusal> OwnerAccounts::Move(OwnerId from, OwnerId to,
                                                 uint64_t pages,
                                                 uint64_t capacity) {
  const uint64_t claims_before = claims_;
  Leave(from, pages);
  const auto refusal =
      Check(to, pages, std::max(capacity, claims_before), from);
  Enter(refusal ? from : to, pages);
  return refusal;
}

bool OwnerAccounts::IsWithin(OwnerId owner, OwnerId ancestor) const {
  while (owner != ancestor) {
    const std::optional<OwnerId> parent = accounts_[owner.value()].parent;
    if (!parent) return false;
    owner = *parent;
  }
  return true;
}

void OwnerAccounts::UpdatePeaks(OwnerId owner) {
  ForChain(owner, [](OwnerId, OwnerAccount& account) {
    account.peak = std::max(account.peak, account.live);
  });
}

uint64_t OwnerAccounts::ClaimGrowth(OwnerId owner, uint64_t pages) {
  ForChain(owner, [&](OwnerId, const OwnerAccount& account) {
    pages = SaturatingSubtract(pages, account.claim() - account.claimed);
  });
  return pages;
}

std::optional<GrowthRefusal> OwnerAccounts::CheckGrowth(OwnerId owner,
                                                        uint64_t pages,
                                                        uint64_t capacity) {
  return Check(owner, pages, capacity, std::nullopt);
}

std::optional<GrowthRefusal> OwnerAccounts::Check(
    OwnerId owner, uint64_t pages, uint64_t capacity,
    std::optional<OwnerId> mover) {
  if (pages == 0) return std::nullopt;
  std::optional<GrowthRefusal> refusal;
  ForChain(owner, [&](OwnerId id, const OwnerAccount& account) {
    const uint64_t over = SaturatingSubtract(SaturatingAdd(account.live, pages),
                                             account.limits.hard);
    // Of several limits, the one with the most to give up: what is given up for
    // it counts for the others.
    if (over > 0 && (!refusal || over > refusal->missing) &&
        !(mover && IsWithin(*mover, id))) {
      refusal = GrowthRefusal{id, over};
    }
  });
  if (refusal) return refusal;
  // Where there is not even room for what is live, no reservation is to blame.
  if (SaturatingAdd(live_, pages) > capacity) return std::nullopt;
  const uint64_t growth = ClaimGrowth(owner, pages);
  const uint64_t over = SaturatingSubtract(claims_ + growth, capacity);
  if (growth == 0 || over == 0) return std::nullopt;
  return GrowthRefusal{std::nullopt, over};
}

uint64_t OwnerAccounts::HardRoom(OwnerId owner) {
  uint64_t room = kNoPageLimit;
  ForChain(owner, [&](OwnerId, const OwnerAccount& account) {
    if (account.limits.hard == kNoPageLimit) return;
    room =
        std::min(room, SaturatingSubtract(account.limits.hard, account.live));
  });
  return room;
}

uint64_t OwnerAccounts::Allowance(OwnerId owner, uint64_t capacity) {
  uint64_t reserved = 0;
  ForChain(owner, [&](OwnerId, const OwnerAccount& account) {
    reserved += account.claim() - account.claimed;
  });
  return std::min(HardRoom(owner),
                  reserved + SaturatingSubtract(capacity, claims_));
}

uint64_t OwnerAccounts::ReservedForOthers(OwnerId owner) {
  uint64_t reserved = claims_ - live_;
  ForChain(owner, [&](OwnerId, const OwnerAccount& account) {
    reserved = SaturatingSubtract(reserved, account.claim() - account.claimed);
  });
  return reserved;
}

absl::Status OwnerAccounts::SetLimits(OwnerId owner,
                                      const OwnerPageLimits& limits,
                                      uint64_t capacity) {
  OwnerAccount& changed = Get(owner);
  const OwnerPageLimits old = changed.limits;
  const uint64_t claims_before = claims_;
  const uint64_t most = std::max(capacity, claims_before);
  const auto refuse = [&](uint64_t missing) {
    return absl::FailedPreconditionError(absl::StrCat(
        limits.reserved, " pages cannot be reserved for ",
        Printable(registry_->Name(owner)), ": of ", capacity, " pages, ",
        claims_before, " are in use or reserved already, and ", missing,
        " are missing"));
  };
  if (limits.reserved > most) return refuse(limits.reserved - most);
  const auto set = [&](const OwnerPageLimits& to) {
    // From the claim before to the claim after, level by level.
    uint64_t before = changed.claim();
    changed.limits = to;
    uint64_t after = changed.claim();
    ForChain(owner, [&](OwnerId id, OwnerAccount& account) {
      if (id == owner) return;
      const uint64_t own_before = account.claim();
      account.claimed = account.claimed - before + after;
      before = own_before;
      after = account.claim();
    });
    claims_ = claims_ - before + after;
  };
  set(limits);
  if (claims_ <= most) {
    changed.gauge.SetLimits(limits.soft, limits.hard, thresholds_);
    Touch(owner, &changed);
    return absl::OkStatus();
  }
  const uint64_t missing = claims_ - most;
  set(old);
  return refuse(missing);
}

absl::Status OwnerAccounts::CheckInvariants(
    const std::vector<uint64_t>& own) const {
  std::vector<OwnerAccount> counted = accounts_;
  uint64_t claims = 0;
  for (OwnerAccount& account : counted) {
    account.live = account.own;
    account.claimed = account.own;
  }
  // Parents have smaller ids than those below them.
  for (size_t id = counted.size(); id > 0; --id) {
    const OwnerAccount& account = counted[id - 1];
    if (!account.parent) {
      claims += account.claim();
      continue;
    }
    counted[account.parent->value()].live += account.live;
    counted[account.parent->value()].claimed += account.claim();
  }
  for (size_t id = 0; id < std::max(own.size(), accounts_.size()); ++id) {
    const uint64_t expected = id < own.size() ? own[id] : 0;
    const uint64_t found = id < accounts_.size() ? accounts_[id].own : 0;
    if (found != expected) {
      return absl::InternalError(absl::StrCat(
          "owner ", id, " counts ", found, " live pages and has ", expected));
    }
    if (id < accounts_.size() &&
        (accounts_[id].live != counted[id].live ||
         accounts_[id].claimed != counted[id].claimed)) {
      return absl::InternalError(absl::StrCat(
          "owner ", id, " with those below it counts ", accounts_[id].live,
          " live and ", accounts_[id].claimed, " claimed pages; they have ",
          counted[id].live, " and ", counted[id].claimed));
    }
  }
  if (claims != claims_) {
    return absl::InternalError(absl::StrCat(
        claims_, " pages are claimed in all; the owners claim ", claims));
  }
  return absl::OkStatus();
}

}  // namespace quire
