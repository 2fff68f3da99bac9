#include "paging/block_geometry.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "paging/block_prefix_index.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A table names a block by a number that is not kNoBlock.
constexpr uint64_t kMaxBlocks = kNoBlock;

}  // namespace

absl::StatusOr<BlockGeometry> BlockGeometry::CreateEmpty(
    const KvLayout& layout, uint32_t block_tokens) {
  if (!IsPowerOfTwo(block_tokens))
    return absl::InvalidArgumentError(
        absl::StrCat("block-table KV cache: blocks of ", block_tokens,
                     " tokens: must be a power of two"));
  if (!CheckedMultiply(layout.TokenBytes(), block_tokens))
    return absl::InvalidArgumentError(
        absl::StrCat("block-table KV cache: a block of ", block_tokens,
                     " tokens exceeds 2^64 bytes"));
  return BlockGeometry(layout,
                       static_cast<uint32_t>(std::countr_zero(block_tokens)));
}

std::optional<PageCount> BlockGeometry::PagesOf(uint32_t group, uint64_t blocks,
                                                Bytes page_size) const {
  const auto bytes = CheckedMultiply(BlockStride(group), blocks);
  return bytes ? std::optional(PagesFor(*bytes, page_size)) : std::nullopt;
}

std::optional<PageCount> BlockGeometry::PagesOf(uint64_t blocks,
                                                Bytes page_size) const {
  uint64_t sum = 0;
  for (uint32_t group = 0; group < layout_.groups(); ++group) {
    const auto pages = PagesOf(group, blocks, page_size);
    const auto next = pages ? CheckedAdd(sum, pages->value()) : std::nullopt;
    if (!next) return std::nullopt;
    sum = *next;
  }
  return PageCount(sum);
}

absl::StatusOr<BlockGeometry> BlockGeometry::Create(const KvLayout& layout,
                                                    uint32_t block_tokens,
                                                    uint64_t blocks,
                                                    Bytes page_size) {
  QUIRE_ASSIGN_OR_RETURN(BlockGeometry geometry,
                         CreateEmpty(layout, block_tokens));
  if (blocks == 0 || blocks > kMaxBlocks)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: ", blocks, " blocks: 1 to ", kMaxBlocks));
  const auto pages = geometry.PagesOf(blocks, page_size);
  if (!pages || !CheckedBytes(*pages, page_size))
    return absl::InvalidArgumentError(
        absl::StrCat("block-table KV cache: ", blocks, " blocks of ",
                     FormatBytes(geometry.BlockBytes()), " exceed 2^64 bytes"));
  geometry.blocks_ = static_cast<uint32_t>(blocks);
  geometry.pages_ = *pages;
  uint64_t offset = 0;
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    geometry.offsets_.emplace_back(offset * page_size.value());
    offset += geometry.PagesOf(group, blocks, page_size)->value();
  }
  return geometry;
}

absl::StatusOr<uint64_t> BlockGeometry::BlocksIn(const KvLayout& layout,
                                                 uint32_t block_tokens,
                                                 PageCount pages,
                                                 Bytes page_size) {
  QUIRE_ASSIGN_OR_RETURN(const BlockGeometry geometry,
                         CreateEmpty(layout, block_tokens));
  // Pages grow with the blocks.
  uint64_t fits = 0;
  uint64_t too_many = kMaxBlocks + 1;
  while (too_many - fits > 1) {
    const uint64_t middle = fits + (too_many - fits) / 2;
    const auto needed = geometry.PagesOf(middle, page_size);
    (needed && *needed <= pages ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace quire
