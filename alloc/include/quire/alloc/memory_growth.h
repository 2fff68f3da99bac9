// Memory that grows and does not come down again: a leak, fragmentation, or
// streams that are not done with what was freed on them.
//
// Judged from what is left at the quiet moments, not from the peaks: time is
// cut into equal windows, and the least of each counts. A program that works in
// cycles comes back to the same floor; one that leaks does not. What happens
// first is warming up and is not looked at.

#ifndef QUIRE_ALLOC_MEMORY_GROWTH_H_
#define QUIRE_ALLOC_MEMORY_GROWTH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "quire/alloc/units.h"

namespace quire {

enum class GrowthKind {
  kLeak,           // what is in use grows, and what is held grows with it
  kFragmentation,  // more and more is held for the same use
  kCooling,        // more and more was freed and may still be in use
};
const char* GrowthKindName(GrowthKind kind);  // "leak", ...
std::optional<GrowthKind> GrowthKindFromName(const std::string& name);

struct MemoryGrowth {
  GrowthKind kind = GrowthKind::kLeak;
  // From the first window that was looked at to the last: their times and
  // floors.
  uint64_t from_nanoseconds = 0;
  uint64_t to_nanoseconds = 0;
  Bytes held_from;
  Bytes held_to;
  Bytes used_from;
  Bytes used_to;
  Bytes cooling_from;
  Bytes cooling_to;
};

struct MemoryGrowthOptions {
  // Of which the first quarter is warming up. REQUIRES: at least 4.
  size_t windows = 8;
  // Less than this is no growth: a part of the first floor, and bytes.
  double least_part = 0.1;
  Bytes least = MiB(4);
};

// The columns are of equal length and say from which time on so many bytes were
// held (mapped or reserved) and, of these, used (asked for) and cooling (freed,
// while a stream may still be using it; may be empty: nothing is known to
// cool). Times do not fall. Nullopt where what is held does not grow, also
// where there is too little to tell. O(n).
std::optional<MemoryGrowth> FindMemoryGrowth(
    std::span<const uint64_t> nanoseconds, std::span<const uint64_t> held,
    std::span<const uint64_t> used, std::span<const uint64_t> cooling,
    const MemoryGrowthOptions& options = {});

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_GROWTH_H_
