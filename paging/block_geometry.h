// How a pool of blocks lies in one address range: for each group of layers a
// page-aligned array of blocks, each an array of the group's rows.
//
// Layers that keep the same tokens have their rows in the same blocks, and a
// sequence a *table* of these. Layers that drop others, behind their windows,
// have a table of their own, so that what they drop is free for all: a block
// serves one table at a time. So the groups of several tables lie in the same
// arrays, the first group of each in the first one, and so on, and an array's
// blocks are as large as the largest row needs. Where windowed and full layers
// of a model are as large as each other, nothing is lost by that.
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
  // With `blocks` blocks, of sequences under the limit. Errors:
  // kInvalidArgument for 0, for a number of tokens that is no power of two, and
  // for sizes that do not fit.
  static absl::StatusOr<BlockGeometry> Create(const KvLayout& layout,
                                              const KvTokenLimit& limit,
                                              uint32_t block_tokens,
                                              uint64_t blocks, Bytes page_size);
  // The most blocks that `pages` pages hold; 0 for none. Same errors.
  static absl::StatusOr<uint64_t> BlocksIn(const KvLayout& layout,
                                           const KvTokenLimit& limit,
                                           uint32_t block_tokens,
                                           PageCount pages, Bytes page_size);

  const KvLayout& layout() const { return layout_; }
  uint32_t block_tokens() const { return uint32_t{1} << block_shift_; }
  uint32_t block_shift() const { return block_shift_; }
  uint32_t blocks() const { return blocks_; }
  PageCount pages() const { return pages_; }
  // Of a sequence.
  uint32_t tables() const { return static_cast<uint32_t>(kept_.size()); }
  // What the layers of a table keep: of the kind only window and sinks count.
  const KvLayerKind& Kept(uint32_t table) const { return kept_[table]; }
  // Whether no layer ever drops a token.
  bool KeepsAllTokens() const { return kept_.size() == 1 && !kept_[0].window; }
  // Of each table whether its layers never drop a token.
  std::vector<bool> TablesThatKeepAllTokens() const {
    std::vector<bool> all;
    for (const KvLayerKind& kept : kept_) all.push_back(kept.window == 0);
    return all;
  }
  // Bytes of a block over all arrays.
  Bytes BlockBytes() const { return block_bytes_; }

  // The blocks of a table of `tokens` tokens.
  uint64_t BlocksFor(uint64_t tokens) const {
    return (tokens >> block_shift_) + ((tokens & (block_tokens() - 1)) != 0);
  }

  // REQUIRES, of all: group < layout().groups().
  //
  uint32_t TableOf(uint32_t group) const { return table_of_[group]; }
  // Where the group's blocks begin in the range.
  Bytes Offset(uint32_t group) const {
    return arrays_[array_of_[group]].offset;
  }
  Bytes BlockStride(uint32_t group) const {
    return arrays_[array_of_[group]].stride;
  }

 private:
  struct Array {
    Bytes stride;  // of blocks
    Bytes offset;
  };

  BlockGeometry(const KvLayout& layout, const KvTokenLimit& limit,
                uint32_t block_shift);
  static absl::StatusOr<BlockGeometry> CreateEmpty(const KvLayout& layout,
                                                   const KvTokenLimit& limit,
                                                   uint32_t block_tokens);
  // nullopt where the sizes do not fit.
  std::optional<PageCount> PagesOf(uint64_t blocks, Bytes page_size) const;

  KvLayout layout_;
  uint32_t block_shift_;
  uint32_t blocks_ = 0;
  PageCount pages_;
  Bytes block_bytes_;
  std::vector<Array> arrays_;
  std::vector<uint32_t> array_of_;  // by group
  std::vector<uint32_t> table_of_;  // by group
  std::vector<KvLayerKind> kept_;   // by table
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_GEOMETRY_H_
