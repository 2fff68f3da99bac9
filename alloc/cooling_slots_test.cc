#include "alloc/cooling_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "alloc/span.h"

namespace quire {
namespace {

// What it is to hold: entries in a row.
using Model = std::deque<CoolingSlots::Entry>;

bool Same(const CoolingSlots::Entry& a, const CoolingSlots::Entry& b) {
  return a.block.span == b.block.span && a.block.slot == b.block.slot &&
         a.batch == b.batch;
}

void ExpectHolds(const CoolingSlots& slots, const Model& model) {
  EXPECT_EQ(slots.size(), model.size());
  EXPECT_EQ(slots.empty(), model.empty());
  auto expected = model.rbegin();
  slots.ForEach([&](const CoolingSlots::Entry& entry) {
    EXPECT_TRUE(expected != model.rend() && Same(entry, *expected));
    return ++expected != model.rend();
  });
}

TEST(CoolingSlotsTest, AgreesWithARowOfEntries) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Span> slabs(3);
    CoolingSlots slots;
    Model model;
    uint64_t batch = 0;
    for (int step = 0; step < 1000; ++step) {
      SCOPED_TRACE(step);
      switch (random() % 16) {
        case 0:
          batch += 1 + random() % 3;
          break;
        case 1: {
          const uint64_t before = batch - std::min(batch, random() % 4);
          std::vector<Block> taken;
          slots.TakeBefore(before, &taken);
          for (const Block& block : taken) {
            ASSERT_TRUE(!model.empty() && model.front().batch < before &&
                        Same({block, 0}, {model.front().block, 0}));
            model.pop_front();
          }
          ASSERT_TRUE(model.empty() || model.front().batch >= before);
          break;
        }
        case 2: {
          const Span* const slab = &slabs[random() % slabs.size()];
          std::vector<uint64_t> batches;
          std::erase_if(model, [&](const CoolingSlots::Entry& entry) {
            if (entry.block.span != slab) return false;
            batches.push_back(entry.batch);
            return true;
          });
          ASSERT_EQ(slots.Remove(slab), batches);
          break;
        }
        case 3:
        case 4:
        case 5:
        case 6: {
          const auto popped = slots.Pop();
          ASSERT_EQ(popped.has_value(), !model.empty());
          if (!popped) break;
          ASSERT_TRUE(Same(*popped, model.back()));
          model.pop_back();
          break;
        }
        default: {
          const auto slot = static_cast<uint32_t>(random() % kMostSlots);
          const CoolingSlots::Entry entry = {
              {&slabs[random() % slabs.size()], slot}, batch};
          slots.Push(entry);
          model.push_back(entry);
        }
      }
      ExpectHolds(slots, model);
    }
  }
}

TEST(CoolingSlotsTest, ForEachStopsWhenItIsTold) {
  Span slab;
  CoolingSlots slots;
  for (uint32_t i = 0; i < 4; ++i) slots.Push({{&slab, i}, i / 2});
  std::vector<uint32_t> seen;
  slots.ForEach([&](const CoolingSlots::Entry& entry) {
    seen.push_back(entry.block.slot);
    return entry.block.slot != 1;
  });
  EXPECT_EQ(seen, (std::vector<uint32_t>{3, 2, 1}));
}

}  // namespace
}  // namespace quire
