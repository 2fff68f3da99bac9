// Checks that run after every mutation in builds with QUIRE_INTERNAL_CHECKS,
// and cost nothing in others. For the layers of Quire itself: public only
// because paging/ checks its invariants in the same builds.

#ifndef QUIRE_ALLOC_INTERNAL_CHECKS_H_
#define QUIRE_ALLOC_INTERNAL_CHECKS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"

namespace quire {

#ifdef QUIRE_INTERNAL_CHECKS
inline constexpr bool kInternalChecks = true;
#else
inline constexpr bool kInternalChecks = false;
#endif

// Checking builds walk everything after every mutation while that is cheap, and
// after one in so many beyond.
inline constexpr uint64_t kMutationsPerCheck = 64;

// Ends a checking build at the first broken invariant: whatever came after
// would hide where it broke.
inline void RequireInvariant(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "broken invariant: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace quire

#endif  // QUIRE_ALLOC_INTERNAL_CHECKS_H_
