#include "paging/block_geometry.h"

#include <gtest/gtest.h>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr Bytes kPage = KiB(4);

TEST(BlockGeometryTest, GroupsBeginAtPages) {
  // 2 layers per row: rows of 256, 256 and 128 bytes; 8 tokens a block.
  const auto geometry = BlockGeometry::Create(TestLayout(2), {}, 8, 3, kPage);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->block_tokens(), 8u);
  EXPECT_EQ(geometry->blocks(), 3u);
  // 3 blocks of 2 KiB take 2 pages, twice, and 3 of 1 KiB take one.
  EXPECT_EQ(geometry->pages(), PageCount(5));
  EXPECT_EQ(geometry->Offset(0), Bytes(0));
  EXPECT_EQ(geometry->Offset(1), KiB(8));
  EXPECT_EQ(geometry->Offset(2), KiB(16));
  EXPECT_EQ(geometry->BlockStride(0), KiB(2));
  EXPECT_EQ(geometry->BlockStride(2), KiB(1));
  EXPECT_EQ(geometry->BlockBytes(), KiB(5));
}

TEST(BlockGeometryTest, BlocksAreRoundedUp) {
  const auto geometry = BlockGeometry::Create(TestLayout(5), {}, 16, 1, kPage);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->BlocksFor(0), 0u);
  EXPECT_EQ(geometry->BlocksFor(1), 1u);
  EXPECT_EQ(geometry->BlocksFor(16), 1u);
  EXPECT_EQ(geometry->BlocksFor(17), 2u);
  EXPECT_EQ(geometry->BlocksFor(UINT64_MAX), (UINT64_MAX >> 4) + 1);
}

TEST(BlockGeometryTest, BlocksInIsTheMostThatFit) {
  for (const uint32_t layers_per_row : {1, 2, 5}) {
    const KvLayout layout = TestLayout(layers_per_row);
    for (const uint32_t block_tokens : {1, 8, 32, 64}) {
      for (uint64_t pages = 0; pages < 40; ++pages) {
        uint64_t most = 0;
        while (BlockGeometry::Create(layout, {}, block_tokens, most + 1, kPage)
                   ->pages() <= PageCount(pages))
          ++most;
        EXPECT_EQ(*BlockGeometry::BlocksIn(layout, {}, block_tokens,
                                           PageCount(pages), kPage),
                  most)
            << layers_per_row << " layers per row, blocks of " << block_tokens
            << ", " << pages << " pages";
      }
    }
  }
}

TEST(BlockGeometryTest, WhatDoesNotFitIsAnError) {
  const KvLayout layout = TestLayout(1);
  for (const uint32_t block_tokens : {0u, 3u, 48u}) {
    EXPECT_EQ(BlockGeometry::Create(layout, {}, block_tokens, 1, kPage)
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        BlockGeometry::BlocksIn(layout, {}, block_tokens, PageCount(1), kPage)
            .status()
            .code(),
        absl::StatusCode::kInvalidArgument);
  }
  for (const uint64_t blocks : {uint64_t{0}, uint64_t{1} << 32, UINT64_MAX}) {
    EXPECT_EQ(
        BlockGeometry::Create(layout, {}, 16, blocks, kPage).status().code(),
        absl::StatusCode::kInvalidArgument);
  }
  const KvLayout wide = *KvLayout::Create(
      {.layers = 1, .kv_heads = 1u << 30, .head_dim = 1u << 10}, 1);
  EXPECT_EQ(BlockGeometry::Create(wide, {}, 1u << 31, 1, kPage).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      BlockGeometry::Create(wide, {}, 1024, UINT32_MAX, kPage).status().code(),
      absl::StatusCode::kInvalidArgument);
  // The most blocks that a table can name.
  EXPECT_EQ(
      *BlockGeometry::BlocksIn(layout, {}, 1, PageCount(UINT64_MAX), kPage),
      uint64_t{UINT32_MAX});
}

}  // namespace
}  // namespace quire
