// Which slabs can share one physical page: those whose live slots are disjoint.
//
// To find the fewest groups is as hard as colouring graphs, so this is a greedy
// pass with repairs. Slabs go, most slots first, into the fullest group that
// they do not overlap; then, over and over, the group with the fewest slots is
// broken up where each of its slabs fits into another group, at once or by
// moving one slab of that group on. A few random orders are tried, and the best
// result is taken.
//
// O(slabs * groups * words) for each order.
//
// Where the answer is not carried out but only told, one order without repairs
// will do, over some of the slabs at a time: O(slabs * words).

#ifndef QUIRE_ALLOC_MESH_PLANNER_H_
#define QUIRE_ALLOC_MESH_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

// Bit i of word i / 64: slot i is live.
using LiveMask = std::vector<uint64_t>;

// Groups of two slabs or more, by index into `masks`; slabs in none stay alone.
// The result is a function of the arguments. REQUIRES: all masks have the same
// length.
std::vector<std::vector<uint32_t>> PlanMesh(const std::vector<LiveMask>& masks,
                                            uint64_t seed);

// How many slabs PlanMeshQuickly looks at together.
inline constexpr size_t kQuickMeshSlabs = 256;
// Groups as above: fewer than there could be, in time that grows with the
// number of slabs alone. No more slabs share pages than in what PlanMesh finds,
// as long as there are at most kQuickMeshSlabs; beyond, whole pages that could
// be shared by slabs far apart in `masks` are not.
std::vector<std::vector<uint32_t>> PlanMeshQuickly(
    const std::vector<LiveMask>& masks);

}  // namespace quire

#endif  // QUIRE_ALLOC_MESH_PLANNER_H_
