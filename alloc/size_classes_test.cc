#include "alloc/size_classes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace quire {
namespace {

// The smallest slot that serves, found by looking at all of them.
std::optional<int> SmallestClass(const SizeClasses& classes, uint64_t size,
                                 uint64_t alignment) {
  std::optional<int> best;
  for (int i = 0; i < classes.count(); ++i) {
    const uint64_t slot = classes.slot_size(i).value();
    if (slot < size || slot % alignment != 0) continue;
    if (!best || slot < classes.slot_size(*best).value()) best = i;
  }
  return best;
}

class SizeClassesTest : public ::testing::TestWithParam<Bytes> {
 protected:
  const SizeClasses classes_{GetParam()};
};

TEST_P(SizeClassesTest, GrowAndEndAtHalfAPageOrOneMiB) {
  for (int i = 1; i < classes_.count(); ++i) {
    EXPECT_LT(classes_.slot_size(i - 1), classes_.slot_size(i));
  }
  EXPECT_EQ(classes_.slot_size(0), Bytes(256));
  EXPECT_EQ(classes_.largest().value(),
            std::min(GetParam().value() / 2, MiB(1).value()));
}

TEST_P(SizeClassesTest, WasteAtMostAnEighthForEverySize) {
  const uint64_t largest = classes_.largest().value();
  // Every size where that is a million or fewer; all residues otherwise.
  const uint64_t step = largest <= (1 << 20) ? 1 : 97;
  for (uint64_t size = 1; size <= largest; size += step) {
    const auto size_class = classes_.ClassFor(Bytes(size), Bytes(1));
    ASSERT_TRUE(size_class.has_value()) << size;
    const uint64_t slot = classes_.slot_size(*size_class).value();
    ASSERT_GE(slot, size);
    // Below 2 KiB the 256 bytes that CUDA aligns to are the larger part.
    ASSERT_LE(slot - size, std::max<uint64_t>(255, size / 8)) << size;
    if (size >= 2048) {
      ASSERT_LE((slot - size) * 8, slot) << size;
    }
  }
}

TEST_P(SizeClassesTest, AreTheSmallestThatServeAtEveryAlignment) {
  const uint64_t largest = classes_.largest().value();
  for (uint64_t alignment = 1; alignment <= 4 * GetParam().value();
       alignment *= 2) {
    for (uint64_t edge = 256; edge <= largest;
         edge += edge / 16 / 256 * 256 + 256) {
      for (const uint64_t size : {edge - 1, edge, edge + 1}) {
        EXPECT_EQ(classes_.ClassFor(Bytes(size), Bytes(alignment)),
                  SmallestClass(classes_, std::max(size, alignment), alignment))
            << size << " at " << alignment;
      }
    }
  }
}

TEST_P(SizeClassesTest, ZeroTakesASlotAndTheRestTakesPages) {
  EXPECT_EQ(classes_.ClassFor(Bytes(0), Bytes(1)), 0);
  const uint64_t largest = classes_.largest().value();
  for (const uint64_t size :
       {largest + 1, UINT64_MAX / 2, UINT64_MAX - 255, UINT64_MAX}) {
    EXPECT_EQ(classes_.ClassFor(Bytes(size), Bytes(256)), std::nullopt);
  }
  EXPECT_EQ(classes_.ClassFor(Bytes(1), Bytes(uint64_t{1} << 63)),
            std::nullopt);
}

TEST_P(SizeClassesTest, SlabsAreTheFewestPagesThatLeaveAnEighthOver) {
  const uint64_t page = GetParam().value();
  for (int i = 0; i < classes_.count(); ++i) {
    const uint64_t slot = classes_.slot_size(i).value();
    const uint64_t pages = classes_.slab_pages(i).value();
    const uint64_t slots = classes_.slots_per_slab(i);
    EXPECT_GE(slots, 2u);
    EXPECT_LE(pages, 4u);
    EXPECT_EQ(slots, pages * page / slot) << slot;
    EXPECT_LE((pages * page - slots * slot) * 8, pages * page) << slot;
    for (uint64_t fewer = 1; fewer < pages; ++fewer) {
      EXPECT_GT(fewer * page % slot * 8, fewer * page) << slot;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, SizeClassesTest,
                         ::testing::Values(KiB(4), KiB(64), MiB(2), MiB(32)));

}  // namespace
}  // namespace quire
