#include "alloc/slot_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace quire {
namespace {

TEST(SlotMapTest, HandsEverySlotOutOnce) {
  for (const uint32_t slots : {1u, 2u, 63u, 64u, 65u, 200u, 8192u}) {
    SlotMap map;
    SlotOrder order(7);
    map.Reset(slots);
    std::set<uint32_t> taken;
    for (uint32_t i = 0; i < slots; ++i) {
      ASSERT_EQ(map.free_count(), slots - i);
      const uint32_t slot = map.Take(&order);
      ASSERT_LT(slot, slots);
      ASSERT_TRUE(taken.insert(slot).second) << slot;
    }
    EXPECT_EQ(map.free_count(), 0u);
    EXPECT_EQ(map.CalculateFree(), 0u);
  }
}

// Group after group, as a thread takes them for itself, while there are whole
// ones.
TEST(SlotMapTest, GroupsAreTakenWhole) {
  for (const uint32_t group : {1u, 2u, 16u, 64u}) {
    for (const uint32_t slots : {1u, 16u, 40u, 64u, 200u, 320u}) {
      SlotMap map;
      SlotOrder order(9);
      map.Reset(slots);
      std::set<uint32_t> groups;
      uint32_t left = slots;
      for (uint32_t i = 0; i < slots / group; ++i) {
        std::optional<uint32_t> slot = map.TakeOfFreeGroup(group, &order);
        ASSERT_TRUE(slot);
        const uint32_t begun = *slot / group;
        ASSERT_TRUE(groups.insert(begun).second);
        for (uint32_t taken = 1; slot; ++taken) {
          ASSERT_EQ(*slot / group, begun);
          ASSERT_LE(taken, group);
          ASSERT_FALSE(map.IsFree(*slot));
          ASSERT_EQ(map.free_count(), --left);
          slot = map.TakeBeside(*slot, group, &order);
        }
        ASSERT_EQ(left, slots - group * (i + 1));
      }
      EXPECT_FALSE(map.TakeOfFreeGroup(group, &order));
      EXPECT_EQ(map.CalculateFree(), left);
    }
  }
}

// Where others have a slot in every group but one, that one is found.
TEST(SlotMapTest, FreeGroupIsFound) {
  SlotOrder order(4);
  for (uint32_t free = 0; free < 16; ++free) {
    SlotMap map;
    map.Reset(256);
    for (uint32_t group = 0; group < 16; ++group) {
      if (group != free) map.TakeThis(16 * group + (7 * group + free) % 16);
    }
    const std::optional<uint32_t> slot = map.TakeOfFreeGroup(16, &order);
    ASSERT_TRUE(slot);
    EXPECT_EQ(*slot / 16, free);
    EXPECT_FALSE(map.TakeOfFreeGroup(16, &order));
    EXPECT_EQ(map.CalculateFree(), 240u);
  }
}

TEST(SlotMapTest, AgreesWithASet) {
  SlotMap map;
  SlotOrder order(3);
  map.Reset(150);
  std::set<uint32_t> taken;
  std::mt19937 random(5);
  for (int step = 0; step < 20000; ++step) {
    if (taken.size() < 150 && (taken.empty() || random() % 2 == 0)) {
      ASSERT_TRUE(taken.insert(map.Take(&order)).second);
    } else {
      auto one = taken.begin();
      std::advance(one, random() % taken.size());
      map.Put(*one);
      taken.erase(one);
    }
    ASSERT_EQ(map.free_count(), 150 - taken.size());
    const uint32_t asked = random() % 150;
    ASSERT_EQ(map.IsFree(asked), !taken.contains(asked));
  }
  ASSERT_EQ(map.CalculateFree(), map.free_count());
}

// With few live slots each, slabs rarely overlap: that is what the order is
// for.
TEST(SlotMapTest, TheFirstSlotsAreSpreadEvenly) {
  std::vector<int> first(64);
  SlotOrder order(11);
  for (int i = 0; i < 6400; ++i) {
    SlotMap map;
    map.Reset(64);
    ++first[map.Take(&order)];
  }
  // 100 expected, standard deviation 10.
  for (const int count : first) {
    EXPECT_GT(count, 50);
    EXPECT_LT(count, 150);
  }
}

TEST(SlotMapTest, TheOrderIsThatOfTheSeed) {
  const auto take = [](uint64_t seed) {
    SlotMap map;
    SlotOrder order(seed);
    map.Reset(100);
    std::vector<uint32_t> slots;
    for (int i = 0; i < 100; ++i) slots.push_back(map.Take(&order));
    return slots;
  };
  EXPECT_EQ(take(1), take(1));
  EXPECT_NE(take(1), take(2));
}

}  // namespace
}  // namespace quire
