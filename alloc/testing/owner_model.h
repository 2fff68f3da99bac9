// What owners use and claim, by the definitions in owner_accounts.h taken at
// their word: an independent truth for tests, slow and plain.

#ifndef QUIRE_ALLOC_TESTING_OWNER_MODEL_H_
#define QUIRE_ALLOC_TESTING_OWNER_MODEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "alloc/owner_accounts.h"

namespace quire {

struct OwnerModel {
  struct Owner {
    std::optional<size_t> parent;
    uint64_t own = 0;
    OwnerPageLimits limits;
  };
  std::vector<Owner> owners;  // by id

  uint64_t Live() const {
    uint64_t live = 0;
    for (const Owner& owner : owners) live += owner.own;
    return live;
  }
  uint64_t Live(size_t owner) const {
    uint64_t live = owners[owner].own;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i].parent == owner) live += Live(i);
    }
    return live;
  }
  uint64_t Claim(size_t owner) const {
    uint64_t claimed = owners[owner].own;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i].parent == owner) claimed += Claim(i);
    }
    return std::max(claimed, owners[owner].limits.reserved);
  }
  uint64_t Claims() const {
    uint64_t claims = 0;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (!owners[i].parent) claims += Claim(i);
    }
    return claims;
  }
  bool IsWithin(size_t owner, size_t ancestor) const {
    for (std::optional<size_t> i = owner; i; i = owners[*i].parent) {
      if (*i == ancestor) return true;
    }
    return false;
  }

  // Whether limits and minima let `owner` have `pages` more.
  bool Allows(size_t owner, uint64_t pages, uint64_t capacity) const {
    OwnerModel grown = *this;
    grown.owners[owner].own += pages;
    for (std::optional<size_t> i = owner; i; i = owners[*i].parent) {
      if (grown.Live(*i) > owners[*i].limits.hard) return pages == 0;
    }
    // Where nothing could be had without any minimum, none is to blame.
    return grown.Live() > capacity || grown.Claims() <= capacity ||
           grown.Claims() == Claims();
  }
  // Whether `pages` of one owner may become another's.
  bool AllowsMove(size_t from, size_t to, uint64_t pages,
                  uint64_t capacity) const {
    if (pages == 0) return true;
    OwnerModel left = *this;
    left.owners[from].own -= pages;
    OwnerModel moved = left;
    moved.owners[to].own += pages;
    for (std::optional<size_t> i = to; i; i = owners[*i].parent) {
      if (!IsWithin(from, *i) && moved.Live(*i) > owners[*i].limits.hard) {
        return false;
      }
    }
    return moved.Claims() <= std::max(capacity, Claims()) ||
           moved.Claims() == left.Claims();
  }
  // Sets the limits where the minimum can be kept. Whether it can.
  bool SetLimits(size_t owner, const OwnerPageLimits& limits,
                 uint64_t capacity) {
    const uint64_t before = Claims();
    const OwnerPageLimits old = owners[owner].limits;
    owners[owner].limits = limits;
    if (Claims() <= std::max(capacity, before)) return true;
    owners[owner].limits = old;
    return false;
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_OWNER_MODEL_H_
