// Which slabs of a class a relocation pass empties, and where their slots go.
//
// From counts alone, so that the same decision can be carried out, or only
// told. What lies in slabs that cannot be emptied stays, and so do the fullest
// of the others, until the rest fits into the room that these have; what is
// then left over may go to a slab of just its size. O(slabs).

#ifndef QUIRE_ALLOC_RELOCATION_PLANNER_H_
#define QUIRE_ALLOC_RELOCATION_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"

namespace quire {

struct RelocationSlab {
  uint64_t held = 0;  // slots that are not free
  uint64_t slots = 0;
  bool movable = false;  // all that is held in it
};

struct RelocationPlan {
  // Slabs that take what is moved, by index: the last one is filled first.
  std::vector<uint32_t> targets;
  // Slots of a slab that is made for what is left, and filled before all
  // others. 0: none is.
  uint64_t remainder = 0;
  // Slabs that are emptied, the emptiest first.
  std::vector<uint32_t> sources;
};

// `make_remainder` makes a slab of so many slots; false where it does not,
// after which one slab more stays. Called once at most. REQUIRES: the slabs are
// in order, those with the most slots held first.
RelocationPlan PlanRelocation(const std::vector<RelocationSlab>& slabs,
                              absl::FunctionRef<bool(uint64_t)> make_remainder);

}  // namespace quire

#endif  // QUIRE_ALLOC_RELOCATION_PLANNER_H_
