// How a pool of blocks lies in one address range: for each group of layers a
// page-aligned array of blocks, each an array of the group's rows.
//
// Immutable.

#ifndef QUIRE_PAGING_BLOCK_GEOMETRY_H_
#define QUIRE_PAGING_BLOCK_GEOMETRY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"

namespace quire {

class BlockGeometry {
 public:
  // With `blocks` blocks. Errors: kInvalidArgument for 0, for a number of
  // tokens that is no power of two, and for sizes that do not fit.
  static absl::StatusOr<BlockGeometry> Create(const KvLayout& layout,
                                              uint32_t block_tokens,
                                              uint64_t blocks, Bytes page_size);
  // The most blocks that `pages` pages hold; 0 for none. Same errors.
  static absl::StatusOr<uint64_t> BlocksIn(const KvLayout& layout,
                                           uint32_t block_tokens,
                                           PageCount pages, Bytes page_size);

  const KvLayout& layout() const { return layout_; }
  uint32_t block_tokens() const { return uint32_t{1} << block_shift_; }
  uint32_t block_shift() const { return block_shift_; }
  uint32_t blocks() const { return blocks_; }
  PageCount pages() const { return pages_; }
  // Bytes of a block over all groups.
  Bytes BlockBytes() const {
    return Bytes(layout_.TokenBytes().value() << block_shift_);
  }

  // The blocks that hold `tokens` tokens.
  uint64_t BlocksFor(uint64_t tokens) const {
    return (tokens >> block_shift_) + ((tokens & (block_tokens() - 1)) != 0);
  }

  // REQUIRES, of both: group < layout().groups().
  //
  // Where the group's blocks begin in the range.
  Bytes Offset(uint32_t group) const { return offsets_[group]; }
  Bytes BlockStride(uint32_t group) const {
    return Bytes(layout_.RowBytes(group).value() << block_shift_);
  }

 private:
  BlockGeometry(const KvLayout& layout, uint32_t block_shift)
      : layout_(layout), block_shift_(block_shift) {}
  static absl::StatusOr<BlockGeometry> CreateEmpty(const KvLayout& layout,
                                                   uint32_t block_tokens);
  // nullopt where the sizes do not fit.
  std::optional<PageCount> PagesOf(uint32_t group, uint64_t blocks,
                                   Bytes page_size) const;
  std::optional<PageCount> PagesOf(uint64_t blocks, Bytes page_size) const;

  KvLayout layout_;
  uint32_t block_shift_;
  uint32_t blocks_ = 0;
  PageCount pages_;
  std::vector<Bytes> offsets_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_GEOMETRY_H_
