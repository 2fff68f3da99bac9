// What compaction would free: told, not done.
//
// The same choice of slabs as in Mesh and in PlanRelocation, from the same
// functions, with two differences. The mesh is planned the quick way, since
// whoever asks is short of memory and not of an optimum. And relocation is
// judged by counts alone, on slabs as that mesh would leave them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "alloc/mesh_planner.h"
#include "alloc/owner_heap.h"
#include "alloc/relocation_planner.h"

namespace quire {

OwnerHeap::MeshEstimate OwnerHeap::EstimateMesh(
    Bytes smallest_slot, const std::function<bool(Block)>& is_pinned,
    const std::function<bool(Block)>& is_movable) const {
  MeshEstimate estimate;
  estimate.left.resize(states_.size());
  const std::vector<std::vector<HostSlab>> slabs = FindSettledSlabs();
  for (int i = 0; i < classes_.count(); ++i) {
    std::vector<const HostSlab*> members;
    if (classes_.slot_size(i) >= smallest_slot) {
      members = FindMeshMembers(i, slabs[i], is_pinned);
    }
    // The first of each group is to have what the others hold.
    absl::flat_hash_map<const HostSlab*, const HostSlab*> host_of;
    for (const std::vector<uint32_t>& group :
         PlanMeshQuickly(MasksOf(members))) {
      for (const uint32_t index : group) {
        host_of[members[index]] = members[group.front()];
      }
      estimate.pages +=
          (group.size() - 1) * PagesOf(*members[group.front()]->span);
    }
    absl::flat_hash_map<const HostSlab*, size_t> place;
    for (const HostSlab& slab : slabs[i]) {
      const auto host = host_of.find(&slab);
      const HostSlab* const on = host == host_of.end() ? &slab : host->second;
      const auto [known, is_new] =
          place.try_emplace(on, estimate.left[i].size());
      if (is_new) {
        estimate.left[i].push_back(
            {0, slab.span->slot_count, PagesOf(*slab.span), true});
      }
      MeshedSlab& meshed = estimate.left[i][known->second];
      meshed.held += slab.span->out();
      meshed.movable = meshed.movable && IsMovable(slab, is_movable);
    }
  }
  return estimate;
}

uint64_t OwnerHeap::EstimateRelocation(const MeshEstimate& meshed,
                                       uint64_t* prepared) const {
  uint64_t emptied = 0;
  uint64_t taken = 0;
  // What is left of several classes meets in the same pages.
  std::optional<RunSet> free;
  uint64_t grown_at = UINT64_MAX / 2;  // where no page is
  for (int i = 0; i < classes_.count(); ++i) {
    std::vector<MeshedSlab> slabs = meshed.left[i];
    std::stable_sort(slabs.begin(), slabs.end(),
                     [](const MeshedSlab& a, const MeshedSlab& b) {
                       return a.held > b.held;
                     });
    std::vector<RelocationSlab> counts;
    for (const MeshedSlab& slab : slabs) {
      counts.push_back({slab.held, slab.slots, slab.movable});
    }
    const RelocationPlan plan =
        quire::PlanRelocation(counts, [&](uint64_t slots) {
          if (!RemainderPays(i, slots)) return false;
          if (!free) free.emplace(arena_.free_runs());
          const uint64_t bytes = slots * classes_.slot_size(i).value();
          std::optional<uint64_t> begin =
              free->FindFit(bytes, kDefaultAlignment);
          if (!begin) {
            const uint64_t pages = (bytes + page_bytes_ - 1) / page_bytes_;
            if (pages > *prepared) return false;
            *prepared -= pages;
            taken += pages;
            begin = grown_at;
            free->Insert({grown_at, pages * page_bytes_, 0});
            grown_at += (pages + 1) * page_bytes_;
          }
          free->Take(*begin, bytes);
          return true;
        });
    for (const uint32_t index : plan.sources) emptied += slabs[index].pages;
  }
  return emptied - std::min(emptied, taken);
}

}  // namespace quire
