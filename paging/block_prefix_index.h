// Which block holds the rows of which tokens: the prefix cache of the
// block-table cache.
//
// A tree: a block is found by the block before it and its own tokens, so that a
// prompt is looked up block by block, from its start. Tokens are compared,
// never trusted to their hash, which is keyed. A block must stay while another
// stands behind it, or that one would be found no more: only leaves may be
// removed.
//
// Thread-compatible. O(tokens of a block) each.

#ifndef QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_
#define QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "paging/siphash.h"

namespace quire {

// A block's place in its pool.
using BlockId = uint32_t;
// Before the first block of a prompt.
inline constexpr BlockId kNoBlock = UINT32_MAX;

class BlockPrefixIndex {
 public:
  BlockPrefixIndex()
      : blocks_(0, Hash{&entries_, SipHashKey::Random()}, Equal{&entries_}) {}
  BlockPrefixIndex(const BlockPrefixIndex&) = delete;
  BlockPrefixIndex& operator=(const BlockPrefixIndex&) = delete;

  // The block with `tokens` behind `parent`.
  std::optional<BlockId> Find(BlockId parent,
                              std::span<const int32_t> tokens) const;
  // REQUIRES: `block` is not here; Find(parent, tokens) finds nothing; `parent`
  // is here, or kNoBlock.
  void Insert(BlockId parent, std::span<const int32_t> tokens, BlockId block);
  bool Contains(BlockId block) const {
    return block < entries_.size() && blocks_.contains(block);
  }
  // REQUIRES, of all below: `block` is here.
  BlockId Parent(BlockId block) const { return entries_[block].parent; }
  bool IsLeaf(BlockId block) const { return entries_[block].children == 0; }
  // REQUIRES: a leaf.
  void Remove(BlockId block);

  size_t size() const { return blocks_.size(); }
  absl::Status CheckInvariants() const;

 private:
  // Of a block that is here.
  struct Entry {
    BlockId parent = kNoBlock;
    uint32_t children = 0;
    std::vector<int32_t> tokens;
  };
  using Entries = std::vector<Entry>;
  struct Key {
    BlockId parent;
    std::span<const int32_t> tokens;
  };
  // The set holds ids only: what they stand for is in the entries.
  struct Hash {
    using is_transparent = void;
    const Entries* entries;
    SipHashKey key;
    size_t operator()(const Key& block) const;
    size_t operator()(BlockId block) const;
  };
  struct Equal {
    using is_transparent = void;
    const Entries* entries;
    bool operator()(BlockId a, BlockId b) const { return a == b; }
    bool operator()(BlockId block, const Key& key) const;
  };

  Entries entries_;  // up to the largest block that was ever here
  absl::flat_hash_set<BlockId, Hash, Equal> blocks_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_
