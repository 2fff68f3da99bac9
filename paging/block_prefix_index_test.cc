#include "paging/block_prefix_index.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;
using PlaceId = BlockPrefixIndex::PlaceId;
constexpr PlaceId kStart = BlockPrefixIndex::kStart;

// Puts a block of the table behind a place; the block's place.
PlaceId Put(BlockPrefixIndex* index, PlaceId before, const Tokens& tokens,
            BlockId block, uint32_t table = 0) {
  const PlaceId place = index->Hold(before, tokens);
  index->Insert(place, table, block);
  index->LetGo(place);
  return place;
}
// The block behind a place, if there is one.
std::optional<BlockId> Find(const BlockPrefixIndex& index, PlaceId before,
                            const Tokens& tokens, uint32_t table = 0) {
  const auto place = index.Find(before, tokens);
  if (!place || index.BlockAt(*place, table) == kNoBlock) return std::nullopt;
  return index.BlockAt(*place, table);
}

TEST(BlockPrefixIndexTest, ABlockIsFoundBehindItsPlaceOnly) {
  BlockPrefixIndex index;
  const PlaceId a = Put(&index, kStart, {1, 2}, 5);
  const PlaceId b = Put(&index, a, {3, 4}, 0);
  const PlaceId c = Put(&index, kStart, {3, 4}, 7);
  Put(&index, c, {3, 4}, 1);
  EXPECT_EQ(Find(index, kStart, {1, 2}), 5u);
  EXPECT_EQ(Find(index, a, {3, 4}), 0u);
  EXPECT_EQ(Find(index, kStart, {3, 4}), 7u);
  EXPECT_EQ(Find(index, c, {3, 4}), 1u);
  EXPECT_EQ(Find(index, b, {3, 4}), std::nullopt);
  EXPECT_EQ(Find(index, kStart, {1, 3}), std::nullopt);
  EXPECT_EQ(Find(index, kStart, {1}), std::nullopt);
  EXPECT_EQ(Find(index, kStart, {}), std::nullopt);
  EXPECT_EQ(index.Before(b), a);
  EXPECT_EQ(index.Before(a), kStart);
  EXPECT_EQ(index.blocks(), 4u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(BlockPrefixIndexTest, WhatIsRemovedIsFoundNoMore) {
  BlockPrefixIndex index;
  const PlaceId a = Put(&index, kStart, {1}, 0);
  Put(&index, a, {2}, 1);
  Put(&index, a, {3}, 2);
  EXPECT_FALSE(index.IsLeaf(0));
  EXPECT_TRUE(index.IsLeaf(1));
  index.Remove(1);
  EXPECT_FALSE(index.Contains(1));
  EXPECT_EQ(Find(index, a, {2}), std::nullopt);
  EXPECT_FALSE(index.IsLeaf(0));
  index.Remove(2);
  EXPECT_TRUE(index.IsLeaf(0));
  // The block may stand for other tokens afterwards.
  Put(&index, a, {9}, 1);
  EXPECT_EQ(Find(index, a, {9}), 1u);
  EXPECT_EQ(Find(index, a, {2}), std::nullopt);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

// The second table's layers drop what is behind a window.
TEST(BlockPrefixIndexTest, TablesHaveBlocksOfTheirOwnInAPlace) {
  BlockPrefixIndex index({true, false});
  const PlaceId a = Put(&index, kStart, {1}, 0, 0);
  Put(&index, kStart, {1}, 1, 1);
  const PlaceId b = Put(&index, a, {2}, 2, 0);
  Put(&index, a, {2}, 3, 1);
  EXPECT_EQ(Find(index, kStart, {1}, 0), 0u);
  EXPECT_EQ(Find(index, kStart, {1}, 1), 1u);
  EXPECT_FALSE(index.IsLeaf(0));
  EXPECT_TRUE(index.IsLeaf(1));
  index.Remove(1);
  index.Remove(2);
  EXPECT_TRUE(index.IsLeaf(0));
  index.Remove(0);
  // The last block of the other table is still found, by all tokens before it.
  EXPECT_EQ(index.Find(kStart, Tokens{1}), a);
  EXPECT_EQ(index.BlockAt(a, 0), kNoBlock);
  EXPECT_EQ(index.BlockAt(b, 1), 3u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
  index.Remove(3);
  EXPECT_EQ(index.places(), 0u);
}

TEST(BlockPrefixIndexTest, APlaceThatIsHeldStays) {
  BlockPrefixIndex index;
  const PlaceId a = index.Hold(kStart, Tokens{1});
  EXPECT_EQ(index.Hold(kStart, Tokens{1}), a);
  Put(&index, a, {2}, 0);
  index.LetGo(a);
  index.Remove(0);
  EXPECT_EQ(index.Find(kStart, Tokens{1}), a);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
  index.LetGo(a);
  EXPECT_EQ(index.Find(kStart, Tokens{1}), std::nullopt);
}

TEST(BlockPrefixIndexTest, EveryBlockOfALargeTreeIsFound) {
  constexpr BlockId kBlocks = 5000;
  BlockPrefixIndex index;
  // A tree with three places behind each, told apart by their last token.
  std::vector<PlaceId> places;
  const auto tokens = [](BlockId block) {
    return Tokens{7, -7, static_cast<int32_t>(block % 3)};
  };
  const auto before = [&](BlockId block) {
    return block < 3 ? kStart : places[block / 3 - 1];
  };
  for (BlockId block = 0; block < kBlocks; ++block)
    places.push_back(Put(&index, before(block), tokens(block), block));
  for (BlockId block = 0; block < kBlocks; ++block)
    ASSERT_EQ(Find(index, before(block), tokens(block)), block);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
  for (BlockId block = kBlocks; block > 0; --block) index.Remove(block - 1);
  EXPECT_EQ(index.blocks(), 0u);
  EXPECT_EQ(index.places(), 0u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

}  // namespace
}  // namespace quire
