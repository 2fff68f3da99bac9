#include "paging/block_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

// Takes a block and puts it into the index, behind another one or at the start.
BlockId TakeIndexed(BlockPool* pool, BlockPrefixIndex::PlaceId* place,
                    int32_t token) {
  const auto block = pool->Take();
  EXPECT_TRUE(block);
  BlockPrefixIndex& index = pool->index();
  const BlockPrefixIndex::PlaceId before = *place;
  *place = index.Hold(before, Tokens{token});
  index.Insert(*place, 0, *block);
  index.LetGo(*place);
  return *block;
}
BlockId TakeIndexed(BlockPool* pool, int32_t token) {
  BlockPrefixIndex::PlaceId start = BlockPrefixIndex::kStart;
  return TakeIndexed(pool, &start, token);
}

void Check(const BlockPool& pool) {
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
}

TEST(BlockPoolTest, EveryBlockIsTakenOnce) {
  BlockPool pool(5);
  std::set<BlockId> taken;
  for (int i = 0; i < 5; ++i) taken.insert(*pool.Take());
  EXPECT_EQ(taken, (std::set<BlockId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.Reference(3);
  pool.Unreference(3, Fence());
  EXPECT_EQ(pool.free(), 0u);
  pool.Unreference(3, Fence());
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.Take(), 3u);
  Check(pool);
}

// Books of all blocks would be some hundred GiB.
TEST(BlockPoolTest, APoolOfAnySizeKeepsBooksOfWhatWasUsed) {
  constexpr uint32_t kBlocks = UINT32_MAX - 1;
  BlockPool pool(kBlocks);
  const BlockId a = TakeIndexed(&pool, 1);
  const BlockId b = *pool.Take();
  EXPECT_EQ(pool.free(), kBlocks - 2);
  EXPECT_EQ(pool.references(kBlocks - 1), 0u);
  EXPECT_FALSE(pool.index().Contains(kBlocks - 1));
  pool.Unreference(b, Fence());
  EXPECT_EQ(pool.Take(), b);  // before one that was never used
  pool.Unreference(a, Fence());
  EXPECT_EQ(pool.kept(), 1u);
  EXPECT_NE(*pool.Take(), a);
  Check(pool);
}

TEST(BlockPoolTest, KeptBlocksGoLastAndLeastRecentlyUsedFirst) {
  BlockPool pool(4);
  const BlockId a = TakeIndexed(&pool, 1);
  const BlockId b = TakeIndexed(&pool, 2);
  const BlockId plain = *pool.Take();
  pool.Unreference(b, Fence());
  pool.Unreference(a, Fence());
  pool.Unreference(plain, Fence());
  EXPECT_EQ(pool.free(), 4u);
  EXPECT_EQ(pool.kept(), 2u);
  pool.Take();
  pool.Take();
  EXPECT_EQ(pool.evictions(), 0u);
  // B is used once more, so that A is older now.
  pool.Reference(b);
  pool.Unreference(b, Fence());
  EXPECT_EQ(pool.Take(), a);
  EXPECT_FALSE(pool.index().Contains(a));
  EXPECT_TRUE(pool.index().Contains(b));
  EXPECT_EQ(pool.Take(), b);
  EXPECT_EQ(pool.evictions(), 2u);
  Check(pool);
}

TEST(BlockPoolTest, AChainIsEvictedFromItsEndWhateverTheOrder) {
  BlockPool pool(3);
  BlockPrefixIndex::PlaceId place = BlockPrefixIndex::kStart;
  const BlockId a = TakeIndexed(&pool, &place, 1);
  const BlockId b = TakeIndexed(&pool, &place, 2);
  const BlockId c = TakeIndexed(&pool, &place, 3);
  for (const BlockId block : {a, b, c}) pool.Unreference(block, Fence());
  EXPECT_EQ(pool.Take(), c);
  EXPECT_EQ(pool.Take(), b);
  EXPECT_EQ(pool.Take(), a);
  Check(pool);
}

// What is behind a window serves without what lies before it.
TEST(BlockPoolTest, BlocksOfAWindowAreEvictedInTheOrderOfUse) {
  BlockPool pool(3, /*chains=*/{false});
  BlockPrefixIndex::PlaceId place = BlockPrefixIndex::kStart;
  const BlockId a = TakeIndexed(&pool, &place, 1);
  const BlockId b = TakeIndexed(&pool, &place, 2);
  const BlockId c = TakeIndexed(&pool, &place, 3);
  for (const BlockId block : {a, b, c}) pool.Unreference(block, Fence());
  EXPECT_EQ(pool.Take(), a);
  EXPECT_EQ(pool.Take(), b);
  Check(pool);
  EXPECT_EQ(pool.index().BlockAt(place, 0), c);
  EXPECT_EQ(pool.index().places(), 3u);
  EXPECT_EQ(pool.Take(), c);
  EXPECT_EQ(pool.index().places(), 0u);
  Check(pool);
}

class BlockPoolFenceTest : public ::testing::Test {
 protected:
  TestDevice device_{8};
  BlockPool pool_{2};
};

TEST_F(BlockPoolFenceTest, ABlockThatCoolsIsNotTaken) {
  BlockedStream stream(device_.driver());
  const BlockId a = *pool_.Take();
  const BlockId b = *pool_.Take();
  pool_.Unreference(a, stream.Record());
  EXPECT_EQ(pool_.free(), 1u);
  EXPECT_EQ(pool_.Take(), std::nullopt);
  pool_.Unreference(b, Fence());
  EXPECT_EQ(pool_.Take(), b);
  EXPECT_EQ(pool_.Take(), std::nullopt);
  Check(pool_);
  EXPECT_FALSE(*pool_.NextFence().IsComplete());
  stream.Unblock();
  EXPECT_TRUE(*pool_.NextFence().IsComplete());
  pool_.Harvest();
  EXPECT_EQ(pool_.Take(), a);
  Check(pool_);
}

TEST_F(BlockPoolFenceTest, OneLongStreamHoldsUpNobodyElse) {
  BlockedStream slow(device_.driver());
  BlockedStream fast(device_.driver());
  const BlockId a = *pool_.Take();
  const BlockId b = *pool_.Take();
  pool_.Unreference(a, slow.Record());
  pool_.Unreference(b, fast.Record());
  fast.Unblock();
  pool_.Harvest();
  EXPECT_EQ(pool_.Take(), b);
  EXPECT_EQ(pool_.Take(), std::nullopt);
  slow.Unblock();
}

// The fence of the last holder does not cover what the first one had queued.
TEST_F(BlockPoolFenceTest, TheFencesOfAllHoldersCount) {
  BlockedStream stream(device_.driver());
  const BlockId a = *pool_.Take();
  pool_.Take();
  pool_.Reference(a);
  pool_.Unreference(a, stream.Record());
  pool_.Unreference(a, Fence());
  EXPECT_EQ(pool_.free(), 1u);
  pool_.Harvest();
  EXPECT_EQ(pool_.Take(), std::nullopt);
  stream.Unblock();
  pool_.Harvest();
  EXPECT_EQ(pool_.Take(), a);
}

TEST_F(BlockPoolFenceTest, ACoolingBlockServesThoseWhoFindItAndStillCools) {
  BlockedStream stream(device_.driver());
  const BlockId a = TakeIndexed(&pool_, 1);
  pool_.Take();
  pool_.Unreference(a, stream.Record());
  const auto place = pool_.index().Find(BlockPrefixIndex::kStart, Tokens{1});
  ASSERT_TRUE(place);
  EXPECT_EQ(pool_.index().BlockAt(*place, 0), a);
  pool_.Reference(a);
  EXPECT_EQ(pool_.free(), 0u);
  Check(pool_);
  pool_.Unreference(a, Fence());
  EXPECT_EQ(pool_.Take(), std::nullopt);
  stream.Unblock();
  pool_.Harvest();
  EXPECT_EQ(pool_.kept(), 1u);
  EXPECT_EQ(pool_.Take(), a);
  Check(pool_);
}

}  // namespace
}  // namespace quire
