#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "alloc/owner_heap.h"
#include "alloc/relocation_planner.h"

namespace quire {
namespace {

// What is left of a class moves to a slab of its own size where it fills no
// more than so many quarters of its pages.
constexpr uint64_t kRemainderQuarters = 3;

}  // namespace

std::vector<OwnerHeap::Move> OwnerHeap::PlanRelocation(
    const RelocationLimits& limits,
    const std::function<bool(Block)>& is_movable) {
  std::vector<Move> moves;
  uint64_t bytes = 0;
  const std::vector<std::vector<HostSlab>> slabs_by_class = FindSettledSlabs();
  for (int size_class = 0; size_class < classes_.count(); ++size_class) {
    std::vector<const HostSlab*> slabs;
    for (const HostSlab& slab : slabs_by_class[size_class]) {
      slabs.push_back(&slab);
    }
    // The lowest address among equals.
    std::stable_sort(slabs.begin(), slabs.end(),
                     [](const HostSlab* a, const HostSlab* b) {
                       return a->span->out() > b->span->out();
                     });
    std::vector<RelocationSlab> counts;
    for (const HostSlab* const slab : slabs) {
      counts.push_back({slab->span->out(), slab->span->slot_count,
                        IsMovable(*slab, is_movable)});
    }
    Span* remainder = nullptr;
    const RelocationPlan plan =
        quire::PlanRelocation(counts, [&](uint64_t slots) {
          remainder = AddRemainder(size_class, slots);
          return remainder != nullptr;
        });
    std::vector<Span*> targets;
    for (const uint32_t index : plan.targets) {
      targets.push_back(slabs[index]->span);
    }
    if (remainder != nullptr) targets.push_back(remainder);
    // The emptiest first: they give a page for the fewest moves.
    for (const uint32_t index : plan.sources) {
      const HostSlab& source = *slabs[index];
      const uint64_t source_bytes = source.span->out() * source.span->slot_size;
      if (moves.size() + source.span->out() > limits.max_moves ||
          bytes + source_bytes > limits.max_bytes.value()) {
        break;
      }
      bytes += source_bytes;
      uint64_t live = 0;
      (void)AllLive(
          source,
          [&](Block block) {
            while (targets.back()->free_slots.free_count() == 0) {
              targets.pop_back();
            }
            moves.push_back({block, Take(targets.back())});
            return true;
          },
          &live);
    }
    // Where the limits left nothing for a slab that was made for the rest.
    for (Span* const target : targets) {
      if (target->out() == 0) KeepOrDissolve(target);
    }
  }
  return moves;
}

bool OwnerHeap::IsMovable(const HostSlab& slab,
                          const std::function<bool(Block)>& is_movable) {
  uint64_t live = 0;
  return AllLive(slab, is_movable, &live) && live == slab.span->out();
}

bool OwnerHeap::RemainderPays(int size_class, uint64_t slots) const {
  return classes_.slot_size(size_class).value() % kPieceGrain == 0 &&
         slots * 4 <= classes_.slots_per_slab(size_class) * kRemainderQuarters;
}

Span* OwnerHeap::AddRemainder(int size_class, uint64_t slots) {
  if (!RemainderPays(size_class, slots)) return nullptr;
  // Without a page for it everything stays where it is.
  return AddDetourSlab(size_class,
                       slots * classes_.slot_size(size_class).value())
      .value_or(nullptr);
}

}  // namespace quire
