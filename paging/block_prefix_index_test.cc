#include "paging/block_prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

TEST(BlockPrefixIndexTest, ABlockIsFoundBehindItsParentOnly) {
  BlockPrefixIndex index;
  index.Insert(kNoBlock, Tokens{1, 2}, 5);
  index.Insert(5, Tokens{3, 4}, 0);
  index.Insert(kNoBlock, Tokens{3, 4}, 7);
  index.Insert(7, Tokens{3, 4}, 1);
  EXPECT_EQ(index.Find(kNoBlock, Tokens{1, 2}), 5u);
  EXPECT_EQ(index.Find(5, Tokens{3, 4}), 0u);
  EXPECT_EQ(index.Find(kNoBlock, Tokens{3, 4}), 7u);
  EXPECT_EQ(index.Find(7, Tokens{3, 4}), 1u);
  EXPECT_EQ(index.Find(0, Tokens{3, 4}), std::nullopt);
  EXPECT_EQ(index.Find(kNoBlock, Tokens{1, 3}), std::nullopt);
  EXPECT_EQ(index.Find(kNoBlock, Tokens{1}), std::nullopt);
  EXPECT_EQ(index.Find(kNoBlock, Tokens{}), std::nullopt);
  EXPECT_EQ(index.Parent(0), 5u);
  EXPECT_EQ(index.Parent(5), kNoBlock);
  EXPECT_EQ(index.size(), 4u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(BlockPrefixIndexTest, WhatIsRemovedIsFoundNoMore) {
  BlockPrefixIndex index;
  index.Insert(kNoBlock, Tokens{1}, 0);
  index.Insert(0, Tokens{2}, 1);
  index.Insert(0, Tokens{3}, 2);
  EXPECT_FALSE(index.IsLeaf(0));
  EXPECT_TRUE(index.IsLeaf(1));
  index.Remove(1);
  EXPECT_FALSE(index.Contains(1));
  EXPECT_EQ(index.Find(0, Tokens{2}), std::nullopt);
  EXPECT_FALSE(index.IsLeaf(0));
  index.Remove(2);
  EXPECT_TRUE(index.IsLeaf(0));
  // The block may stand for other tokens afterwards.
  index.Insert(0, Tokens{9}, 1);
  EXPECT_EQ(index.Find(0, Tokens{9}), 1u);
  EXPECT_EQ(index.Find(0, Tokens{2}), std::nullopt);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(BlockPrefixIndexTest, EveryBlockOfALargeTreeIsFound) {
  constexpr BlockId kBlocks = 5000;
  BlockPrefixIndex index;
  // A tree with three children per block, told apart by their last token.
  const auto tokens = [](BlockId block) {
    return Tokens{7, -7, static_cast<int32_t>(block % 3)};
  };
  const auto parent = [](BlockId block) {
    return block < 3 ? kNoBlock : block / 3 - 1;
  };
  for (BlockId block = 0; block < kBlocks; ++block)
    index.Insert(parent(block), tokens(block), block);
  for (BlockId block = 0; block < kBlocks; ++block)
    ASSERT_EQ(index.Find(parent(block), tokens(block)), block);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
  for (BlockId block = kBlocks; block > 0; --block) index.Remove(block - 1);
  EXPECT_EQ(index.size(), 0u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

}  // namespace
}  // namespace quire
