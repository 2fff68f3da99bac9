#include "alloc/mesh_planner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>

#include "alloc/slot_map.h"

namespace quire {
namespace {

constexpr int kOrders = 24;
// Beyond so many slabs one order is enough work.
constexpr size_t kManySlabs = 512;

bool Overlap(const LiveMask& a, const LiveMask& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if ((a[i] & b[i]) != 0) return true;
  }
  return false;
}

uint32_t Count(const LiveMask& mask) {
  uint32_t live = 0;
  for (const uint64_t word : mask) {
    live += static_cast<uint32_t>(std::popcount(word));
  }
  return live;
}

class Grouping {
 public:
  explicit Grouping(const std::vector<LiveMask>& masks) : masks_(&masks) {}

  // Puts each slab into the fullest group that has room for it.
  void Fill(const std::vector<uint32_t>& order) {
    for (const uint32_t slab : order) {
      if (!Insert(slab, nullptr)) groups_.push_back(GroupOf({slab}));
    }
  }

  // Breaks up groups as long as that succeeds.
  void Repair() {
    for (size_t failures = 0; failures < groups_.size();) {
      // Those with few slots are the easiest to do without.
      std::sort(groups_.begin(), groups_.end(),
                [](const Group& a, const Group& b) { return a.live < b.live; });
      Group broken = groups_[failures];
      groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(failures));
      const std::vector<Group> before = groups_;
      bool placed = true;
      for (const uint32_t slab : broken.slabs) {
        placed = placed && (Insert(slab, nullptr) || InsertByMoving(slab));
      }
      if (placed) {
        failures = 0;
        continue;
      }
      groups_ = before;
      groups_.push_back(std::move(broken));
      ++failures;
    }
  }

  size_t size() const { return groups_.size(); }
  std::vector<std::vector<uint32_t>> Shared() const {
    std::vector<std::vector<uint32_t>> shared;
    for (const Group& group : groups_) {
      if (group.slabs.size() > 1) shared.push_back(group.slabs);
    }
    return shared;
  }

 private:
  struct Group {
    std::vector<uint32_t> slabs;
    LiveMask mask;
    uint32_t live = 0;
  };

  const LiveMask& mask(uint32_t slab) const { return (*masks_)[slab]; }
  Group GroupOf(std::vector<uint32_t> slabs) const {
    Group group;
    group.mask.resize(mask(slabs.front()).size());
    for (const uint32_t slab : slabs) {
      for (size_t i = 0; i < group.mask.size(); ++i) {
        group.mask[i] |= mask(slab)[i];
      }
    }
    group.live = Count(group.mask);
    group.slabs = std::move(slabs);
    return group;
  }
  bool Insert(uint32_t slab, const Group* except) {
    Group* best = nullptr;
    for (Group& group : groups_) {
      if (&group != except && (best == nullptr || group.live > best->live) &&
          !Overlap(group.mask, mask(slab))) {
        best = &group;
      }
    }
    if (best == nullptr) return false;
    Join(best, slab);
    return true;
  }
  void Join(Group* group, uint32_t slab) {
    for (size_t i = 0; i < group->mask.size(); ++i) {
      group->mask[i] |= mask(slab)[i];
    }
    group->live += Count(mask(slab));
    group->slabs.push_back(slab);
  }
  // Where one slab of a group stands in the way, and fits into another one.
  bool InsertByMoving(uint32_t slab) {
    for (Group& group : groups_) {
      size_t in_the_way = SIZE_MAX;
      bool several = false;
      for (size_t i = 0; i < group.slabs.size() && !several; ++i) {
        if (!Overlap(mask(group.slabs[i]), mask(slab))) continue;
        several = in_the_way != SIZE_MAX;
        in_the_way = i;
      }
      if (several || in_the_way == SIZE_MAX) continue;
      const uint32_t moved = group.slabs[in_the_way];
      if (!Insert(moved, &group)) continue;
      std::vector<uint32_t> left = group.slabs;
      left[in_the_way] = slab;
      group = GroupOf(std::move(left));
      return true;
    }
    return false;
  }

  const std::vector<LiveMask>* masks_;
  std::vector<Group> groups_;
};

// From slab `begin` to before `end`, those with the most live slots first.
std::vector<uint32_t> FullestFirst(const std::vector<LiveMask>& masks,
                                   size_t begin, size_t end) {
  std::vector<uint32_t> order(end - begin);
  std::iota(order.begin(), order.end(), static_cast<uint32_t>(begin));
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return Count(masks[a]) > Count(masks[b]);
  });
  return order;
}

}  // namespace

std::vector<std::vector<uint32_t>> PlanMesh(const std::vector<LiveMask>& masks,
                                            uint64_t seed) {
  const std::vector<uint32_t> order = FullestFirst(masks, 0, masks.size());
  Grouping best(masks);
  best.Fill(order);
  best.Repair();
  if (masks.size() > kManySlabs) return best.Shared();
  SlotOrder random(seed);
  for (int i = 1; i < kOrders; ++i) {
    // Neighbours in the order change places, so that it stays nearly sorted.
    std::vector<uint32_t> other = order;
    for (size_t at = 1; at < other.size(); ++at) {
      const size_t back = random.Next() % std::min<size_t>(at, 8);
      std::swap(other[at], other[at - back]);
    }
    Grouping grouping(masks);
    grouping.Fill(other);
    grouping.Repair();
    if (grouping.size() < best.size()) std::swap(grouping, best);
  }
  return best.Shared();
}

std::vector<std::vector<uint32_t>> PlanMeshQuickly(
    const std::vector<LiveMask>& masks) {
  std::vector<std::vector<uint32_t>> plan;
  for (size_t begin = 0; begin < masks.size(); begin += kQuickMeshSlabs) {
    const size_t end = std::min(masks.size(), begin + kQuickMeshSlabs);
    Grouping grouping(masks);
    grouping.Fill(FullestFirst(masks, begin, end));
    std::vector<std::vector<uint32_t>> shared = grouping.Shared();
    std::move(shared.begin(), shared.end(), std::back_inserter(plan));
  }
  return plan;
}

}  // namespace quire
