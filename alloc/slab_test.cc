#include "alloc/slab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace quire {
namespace {

std::vector<uint32_t> TakeAll(Slab* slab) {
  std::vector<uint32_t> slots;
  while (slab->free_count() > 0) slots.push_back(slab->Take());
  return slots;
}

TEST(SlabTest, HandsOutEverySlotOnce) {
  Slab slab(Bytes(256), 100, 1);
  std::vector<uint32_t> slots = TakeAll(&slab);
  std::sort(slots.begin(), slots.end());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(slots[i], i);
  EXPECT_EQ(slab.live_count(), 100u);
}

TEST(SlabTest, OrderIsAFunctionOfTheSeed) {
  Slab a(Bytes(256), 64, 7);
  Slab b(Bytes(256), 64, 7);
  Slab c(Bytes(256), 64, 8);
  const std::vector<uint32_t> order = TakeAll(&a);
  EXPECT_EQ(order, TakeAll(&b));
  EXPECT_NE(order, TakeAll(&c));
}

// Meshing rests on it: each slot must be as likely as any other, at first and
// after slots went round.
TEST(SlabTest, EverySlotIsEquallyLikely) {
  constexpr int kSlots = 16;
  constexpr int kRounds = 16000;
  std::vector<int> first(kSlots);
  std::vector<int> later(kSlots);
  for (int round = 0; round < kRounds; ++round) {
    Slab slab(Bytes(256), kSlots, 1000 + round);
    const std::vector<uint32_t> slots = TakeAll(&slab);
    ++first[slots[0]];
    // All come back in order, which must not be the order they leave in.
    for (uint32_t i = 0; i < kSlots; ++i) {
      slab.Cool(i);
      slab.Free(i);
    }
    ++later[slab.Take()];
  }
  // 1000 expected, deviation 31: six of them on each side.
  for (int i = 0; i < kSlots; ++i) {
    EXPECT_NEAR(first[i], kRounds / kSlots, 190) << i;
    EXPECT_NEAR(later[i], kRounds / kSlots, 190) << i;
  }
}

TEST(SlabTest, OneSlotIsALargeAllocation) {
  Slab slab(MiB(6), 1, 3);
  EXPECT_EQ(slab.Take(), 0u);
  slab.Describe(0, MiB(5), StreamId(4), OwnerId(2));
  EXPECT_EQ(slab.slot(0).requested, MiB(5));
  EXPECT_EQ(slab.slot(0).stream, StreamId(4));
  EXPECT_EQ(slab.slot(0).owner, OwnerId(2));
  EXPECT_FALSE(slab.empty());
  slab.Cool(0);
  EXPECT_FALSE(slab.empty());
  slab.Free(0);
  EXPECT_TRUE(slab.empty());
}

TEST(SlabTest, AgreesWithAModelOfItsSlots) {
  constexpr uint32_t kSlots = 48;
  Slab slab(Bytes(512), kSlots, 5);
  std::vector<SlotUse> model(kSlots, SlotUse::kUnused);
  std::mt19937 random(11);
  const auto count = [&model](SlotUse use) {
    return static_cast<uint32_t>(std::count(model.begin(), model.end(), use));
  };
  for (int step = 0; step < 20000; ++step) {
    const uint32_t i = random() % kSlots;
    switch (model[i]) {
      case SlotUse::kUnused:
      case SlotUse::kFree: {
        const uint32_t taken = slab.Take();
        EXPECT_TRUE(model[taken] == SlotUse::kUnused ||
                    model[taken] == SlotUse::kFree);
        model[taken] = SlotUse::kLive;
        break;
      }
      case SlotUse::kLive:
        slab.Cool(i);
        model[i] = SlotUse::kCooling;
        break;
      case SlotUse::kCooling:
        if (random() % 2 == 0) {
          slab.Revive(i);
          model[i] = SlotUse::kLive;
        } else {
          slab.Free(i);
          model[i] = SlotUse::kFree;
        }
        break;
    }
    ASSERT_EQ(slab.CheckInvariants(), absl::OkStatus());
    ASSERT_EQ(slab.live_count(), count(SlotUse::kLive));
    ASSERT_EQ(slab.cooling_count(), count(SlotUse::kCooling));
    ASSERT_EQ(slab.free_count(),
              count(SlotUse::kUnused) + count(SlotUse::kFree));
    for (uint32_t k = 0; k < kSlots; ++k) {
      ASSERT_EQ(slab.slot(k).use, model[k]);
    }
  }
}

}  // namespace
}  // namespace quire
