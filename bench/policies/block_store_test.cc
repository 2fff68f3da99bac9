// Pieces that are cut and put together at random, against a walk over all.

#include "bench/policies/block_store.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr uint64_t kSegment = 1 << 10;

class FreeBlocksTest : public testing::TestWithParam<uint64_t> {
 protected:
  // What Spare must find, by a look at each free block.
  std::vector<PoolBlock*> SpareByWalk() const {
    std::vector<PoolBlock*> spare;
    for (const FreeBlocks::Entry& entry : free_) {
      const bool may_go =
          GetParam() == 0 ? entry.block->whole() : entry.size >= GetParam();
      if (may_go) spare.push_back(entry.block);
    }
    return spare;
  }
  uint64_t Random(uint64_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % below;
  }

  BlockStore blocks_;
  FreeBlocks free_{GetParam()};
  uint64_t state_ = 1;
};

TEST_P(FreeBlocksTest, FindsWhatMayGoBack) {
  constexpr uint64_t kSegments = 8;
  for (uint64_t i = 0; i < kSegments; ++i) {
    PoolBlock segment;
    segment.address = i * 2 * kSegment;
    segment.size = kSegment;
    segment.stream = i % 2;
    free_.Insert(blocks_.Add(segment));
  }
  EXPECT_EQ(free_.Spare().size(), kSegments);
  std::vector<DeviceAddress> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || Random(20) < 11) {
      const uint64_t size = 1 + Random(kSegment / 3);
      PoolBlock* const block = free_.BestFit(Random(2), size);
      if (block == nullptr) continue;
      free_.Erase(block);
      if (block->size > size) free_.Insert(blocks_.Split(block, size));
      blocks_.MarkLive(block);
      live.push_back(DeviceAddress(block->address));
    } else {
      const uint64_t which = Random(live.size());
      PoolBlock* const block = blocks_.TakeLive(live[which]);
      ASSERT_NE(block, nullptr);
      live[which] = live.back();
      live.pop_back();
      free_.Insert(blocks_.MergeFree(block, &free_));
    }
    ASSERT_EQ(free_.Spare(), SpareByWalk()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Granules, FreeBlocksTest, testing::Values(0, 64, 512));

}  // namespace
}  // namespace quire
