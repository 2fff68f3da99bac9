#include "alloc/relocation_planner.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace quire {

RelocationPlan PlanRelocation(
    const std::vector<RelocationSlab>& slabs,
    absl::FunctionRef<bool(uint64_t)> make_remainder) {
  RelocationPlan plan;
  std::vector<uint32_t> movable;
  std::vector<uint32_t> staying;
  uint64_t wanted = 0;
  // What stays anyway comes first.
  uint64_t room = 0;
  for (uint32_t i = 0; i < slabs.size(); ++i) {
    const RelocationSlab& slab = slabs[i];
    if (slab.movable) {
      movable.push_back(i);
      wanted += slab.held;
    } else if (slab.held < slab.slots) {
      staying.push_back(i);
      room += slab.slots - slab.held;
    }
  }
  wanted -= std::min(wanted, room);
  // Slabs that were made when memory was short have fewer slots than others.
  size_t kept = 0;
  while (kept < movable.size() && slabs[movable[kept]].slots <= wanted) {
    wanted -= slabs[movable[kept++]].slots;
  }
  if (wanted > 0 && kept < movable.size()) {
    if (make_remainder(wanted)) {
      plan.remainder = wanted;
    } else {
      ++kept;
    }
  }
  const auto first_source = movable.begin() + static_cast<std::ptrdiff_t>(kept);
  plan.targets.assign(movable.begin(), first_source);
  plan.targets.insert(plan.targets.end(), staying.begin(), staying.end());
  plan.sources.assign(movable.rbegin(),
                      std::make_reverse_iterator(first_source));
  return plan;
}

}  // namespace quire
