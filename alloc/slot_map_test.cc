#include "alloc/slot_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
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

// One after the other, beside the one before: all of a group before the next.
TEST(SlotMapTest, NeighboursComeFirst) {
  for (const uint32_t slots : {1u, 16u, 40u, 64u, 200u, 8192u}) {
    SlotMap map;
    SlotOrder order(9);
    map.Reset(slots);
    std::set<uint32_t> taken;
    std::set<uint32_t> groups;
    uint32_t slot = map.Take(&order);
    for (uint32_t i = 1;; ++i) {
      ASSERT_LT(slot, slots);
      ASSERT_TRUE(taken.insert(slot).second) << slot;
      groups.insert(slot / SlotMap::kGroup);
      ASSERT_LE(groups.size(), i / SlotMap::kGroup + (slots % 16 ? 2 : 1));
      ASSERT_EQ(map.free_count(), slots - i);
      if (i == slots) break;
      slot = map.TakeNear(slot, &order);
    }
    EXPECT_EQ(map.CalculateFree(), 0u);
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
