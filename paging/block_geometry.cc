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

// Sizes fit: those of a block of all layers do.
BlockGeometry::BlockGeometry(const KvLayout& layout, const KvTokenLimit& limit,
                             uint32_t block_shift)
    : layout_(layout), block_shift_(block_shift) {
  std::vector<uint32_t> groups_of;  // by table
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    const KvLayerKind kind =
        WithLimit(layout.kinds()[layout.GroupKind(group)], limit);
    const auto alike = std::ranges::find_if(kept_, [&](const KvLayerKind& k) {
      return k.window == kind.window &&
             (k.window == 0 || k.sinks == kind.sinks);
    });
    const auto table = static_cast<uint32_t>(alike - kept_.begin());
    if (alike == kept_.end()) {
      kept_.push_back(kind);
      groups_of.push_back(0);
    }
    table_of_.push_back(table);
    const uint32_t array = groups_of[table]++;
    array_of_.push_back(array);
    if (array == arrays_.size()) arrays_.emplace_back();
    arrays_[array].stride =
        std::max(arrays_[array].stride,
                 Bytes(layout.RowBytes(group).value() << block_shift));
  }
  // Rows of several tables are aligned as the largest elements are.
  constexpr uint64_t kAlignment = 4;
  uint64_t bytes = 0;
  for (Array& array : arrays_) {
    if (tables() > 1)
      array.stride = Bytes((array.stride.value() + kAlignment - 1) /
                           kAlignment * kAlignment);
    bytes += array.stride.value();
  }
  block_bytes_ = Bytes(bytes);
}

absl::StatusOr<BlockGeometry> BlockGeometry::CreateEmpty(
    const KvLayout& layout, const KvTokenLimit& limit, uint32_t block_tokens) {
  if (!IsPowerOfTwo(block_tokens))
    return absl::InvalidArgumentError(
        absl::StrCat("block-table KV cache: blocks of ", block_tokens,
                     " tokens: must be a power of two"));
  // With room for strides that are rounded up.
  const auto bytes = CheckedMultiply(layout.TokenBytes(), block_tokens);
  if (!bytes || !CheckedAdd(bytes->value(), 4 * uint64_t{layout.groups()}))
    return absl::InvalidArgumentError(
        absl::StrCat("block-table KV cache: a block of ", block_tokens,
                     " tokens exceeds 2^64 bytes"));
  return BlockGeometry(layout, limit,
                       static_cast<uint32_t>(std::countr_zero(block_tokens)));
}

std::optional<PageCount> BlockGeometry::PagesOf(uint64_t blocks,
                                                Bytes page_size) const {
  uint64_t sum = 0;
  for (const Array& array : arrays_) {
    const auto bytes = CheckedMultiply(array.stride, blocks);
    const auto next = bytes
                          ? CheckedAdd(sum, PagesFor(*bytes, page_size).value())
                          : std::nullopt;
    if (!next) return std::nullopt;
    sum = *next;
  }
  return PageCount(sum);
}

absl::StatusOr<BlockGeometry> BlockGeometry::Create(const KvLayout& layout,
                                                    const KvTokenLimit& limit,
                                                    uint32_t block_tokens,
                                                    uint64_t blocks,
                                                    Bytes page_size) {
  QUIRE_ASSIGN_OR_RETURN(BlockGeometry geometry,
                         CreateEmpty(layout, limit, block_tokens));
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
  for (Array& array : geometry.arrays_) {
    array.offset = Bytes(offset * page_size.value());
    offset +=
        PagesFor(*CheckedMultiply(array.stride, blocks), page_size).value();
  }
  return geometry;
}

absl::StatusOr<uint64_t> BlockGeometry::BlocksIn(const KvLayout& layout,
                                                 const KvTokenLimit& limit,
                                                 uint32_t block_tokens,
                                                 PageCount pages,
                                                 Bytes page_size) {
  QUIRE_ASSIGN_OR_RETURN(const BlockGeometry geometry,
                         CreateEmpty(layout, limit, block_tokens));
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
