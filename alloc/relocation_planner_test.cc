#include "alloc/relocation_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace quire {
namespace {

constexpr auto kAlways = [](uint64_t) { return true; };
constexpr auto kNever = [](uint64_t) { return false; };

// Slabs of equal size, all of which may be emptied, most slots first.
std::vector<RelocationSlab> Movable(std::vector<uint64_t> held,
                                    uint64_t slots) {
  std::sort(held.rbegin(), held.rend());
  std::vector<RelocationSlab> slabs;
  for (const uint64_t count : held) slabs.push_back({count, slots, true});
  return slabs;
}

TEST(RelocationPlannerTest, NothingToDo) {
  const RelocationPlan none = PlanRelocation({}, kAlways);
  EXPECT_TRUE(none.targets.empty());
  EXPECT_TRUE(none.sources.empty());
  // One slab alone has nowhere to go but into a slab of its own size.
  const auto one = Movable({3}, 8);
  EXPECT_TRUE(PlanRelocation(one, kNever).sources.empty());
  EXPECT_EQ(PlanRelocation(one, kAlways).remainder, 3u);
  // Slabs that are full stay full.
  EXPECT_TRUE(PlanRelocation(Movable({8, 8}, 8), kAlways).sources.empty());
}

TEST(RelocationPlannerTest, RoomInSlabsThatStayComesFirst) {
  const RelocationPlan plan = PlanRelocation(
      {{8, 8, false}, {5, 8, false}, {3, 8, true}, {2, 8, false}}, kAlways);
  EXPECT_EQ(plan.targets, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(plan.sources, std::vector<uint32_t>{2});
  EXPECT_EQ(plan.remainder, 0u);
}

TEST(RelocationPlannerTest, TheEmptiestGoFirst) {
  const RelocationPlan plan = PlanRelocation(Movable({7, 5, 3, 1}, 8), kNever);
  EXPECT_EQ(plan.targets, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(plan.sources, (std::vector<uint32_t>{3, 2}));
}

// As many slabs stay as what is held needs, and no more; whatever the slabs,
// all that is moved finds a place.
TEST(RelocationPlannerTest, AsFewStayAsCanBe) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const uint64_t slots = 1 + random() % 64;
    std::vector<RelocationSlab> slabs;
    const bool some_stay = random() % 2 == 0;
    for (uint64_t i = random() % 20; i > 0; --i) {
      slabs.push_back(
          {1 + random() % slots, slots, !some_stay || random() % 3 > 0});
    }
    std::stable_sort(
        slabs.begin(), slabs.end(),
        [](const auto& a, const auto& b) { return a.held > b.held; });
    std::optional<uint64_t> asked;
    const bool makes_remainder = random() % 2 == 0;
    const RelocationPlan plan = PlanRelocation(slabs, [&](uint64_t count) {
      EXPECT_FALSE(asked.has_value());
      asked = count;
      return makes_remainder;
    });
    EXPECT_EQ(plan.remainder, makes_remainder ? asked.value_or(0) : 0u);
    uint64_t room = plan.remainder;
    uint64_t moved = 0;
    uint64_t held = 0;
    uint64_t kept = 0;
    uint64_t room_of_others = 0;
    std::set<uint32_t> seen;
    for (const uint32_t index : plan.targets) {
      EXPECT_TRUE(seen.insert(index).second);
      room += slabs[index].slots - slabs[index].held;
      if (slabs[index].movable) ++kept;
    }
    for (const uint32_t index : plan.sources) {
      EXPECT_TRUE(slabs[index].movable);
      EXPECT_TRUE(seen.insert(index).second);
      moved += slabs[index].held;
    }
    uint64_t movable = 0;
    for (const RelocationSlab& slab : slabs) {
      if (slab.movable) {
        held += slab.held;
        ++movable;
      } else {
        room_of_others += slab.slots - slab.held;
      }
    }
    EXPECT_LE(moved, room);
    const uint64_t rest = held - std::min(held, room_of_others);
    const uint64_t needed =
        makes_remainder ? rest / slots : (rest + slots - 1) / slots;
    EXPECT_EQ(kept, std::min(needed, movable)) << round;
  }
}

}  // namespace
}  // namespace quire
