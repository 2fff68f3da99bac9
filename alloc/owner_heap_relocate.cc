#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "alloc/owner_heap.h"

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
  for (int size_class = 0; size_class < classes_.count(); ++size_class) {
    std::vector<Occupant> occupants = FindOccupants(size_class, is_movable);
    std::vector<Span*> targets = ChooseTargets(size_class, &occupants);
    // The emptiest first: they give a page for the fewest moves.
    for (auto source = occupants.rbegin(); source != occupants.rend();
         ++source) {
      const uint64_t source_bytes =
          source->blocks.size() * source->slab->slot_size;
      if (moves.size() + source->blocks.size() > limits.max_moves ||
          bytes + source_bytes > limits.max_bytes.value()) {
        break;
      }
      bytes += source_bytes;
      for (const Block& block : source->blocks) {
        while (targets.back()->free_slots.free_count() == 0) {
          targets.pop_back();
        }
        moves.push_back({block, Take(targets.back())});
      }
    }
    // Where the limits left nothing for a slab that was made for the rest.
    for (Span* const target : targets) {
      if (target->out() == 0) KeepOrPark(target);
    }
  }
  return moves;
}

std::vector<Span*> OwnerHeap::ChooseTargets(int size_class,
                                            std::vector<Occupant>* occupants) {
  std::vector<Span*> targets;
  uint64_t wanted = 0;
  for (const Occupant& occupant : *occupants) {
    if (occupant.movable) wanted += occupant.blocks.size();
  }
  // What stays anyway comes first.
  for (const Occupant& occupant : *occupants) {
    const uint64_t room = occupant.slab->free_slots.free_count();
    if (occupant.movable || room == 0) continue;
    targets.push_back(occupant.slab);
    wanted -= std::min(wanted, room);
  }
  std::erase_if(*occupants,
                [](const Occupant& occupant) { return !occupant.movable; });
  // Slabs that were made when memory was short have fewer slots than others.
  size_t kept = 0;
  while (kept < occupants->size() &&
         (*occupants)[kept].slab->slot_count <= wanted) {
    wanted -= (*occupants)[kept++].slab->slot_count;
  }
  if (wanted > 0 && kept < occupants->size()) {
    Span* const remainder = AddRemainder(size_class, wanted);
    if (remainder != nullptr) {
      targets.push_back(remainder);
    } else {
      ++kept;
    }
  }
  // The fullest stay. What is taken from the back is filled first.
  for (size_t i = kept; i-- > 0;) {
    targets.insert(targets.begin(), (*occupants)[i].slab);
  }
  occupants->erase(occupants->begin(),
                   occupants->begin() + static_cast<std::ptrdiff_t>(kept));
  return targets;
}

// Of whole pages, without cooling slots; those with the most slots come first,
// the lowest address among equals.
std::vector<OwnerHeap::Occupant> OwnerHeap::FindOccupants(
    int size_class, const std::function<bool(Block)>& is_movable) const {
  std::map<uint64_t, Occupant> by_address;
  for (Span* const span : spans_->spans()) {
    if (span == nullptr || span->heap != this || span->large() ||
        span->size_class != size_class) {
      continue;
    }
    Span* const host = HostOf(span);
    if (host->has_seams() || host->cooling > 0 || host->out() == 0) continue;
    Occupant& occupant = by_address[host->base];
    occupant.slab = host;
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      // A host counts the slots of its guests as taken, which these name.
      if (span->free_slots.IsFree(i)) continue;
      const Block block = {span, i};
      if (block.record().load().use() == SlotUse::kLive) {
        occupant.blocks.push_back(block);
      }
    }
  }
  std::vector<Occupant> occupants;
  for (auto& [address, occupant] : by_address) {
    // Slots that a thread has cached meanwhile are in nobody's list.
    occupant.movable =
        occupant.blocks.size() == occupant.slab->out() &&
        std::all_of(occupant.blocks.begin(), occupant.blocks.end(), is_movable);
    occupants.push_back(std::move(occupant));
  }
  std::stable_sort(occupants.begin(), occupants.end(),
                   [](const Occupant& a, const Occupant& b) {
                     return a.slab->out() > b.slab->out();
                   });
  return occupants;
}

Span* OwnerHeap::AddRemainder(int size_class, uint64_t slots) {
  const uint64_t slot_size = classes_.slot_size(size_class).value();
  if (slot_size % kSeamBytes != 0 ||
      slots * 4 > classes_.slots_per_slab(size_class) * kRemainderQuarters) {
    return nullptr;
  }
  // Without a page for it everything stays where it is.
  return AddSeamSlab(size_class, slots * slot_size).value_or(nullptr);
}

}  // namespace quire
