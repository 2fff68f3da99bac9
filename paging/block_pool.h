// The blocks of a block-table cache: references, and the order in which free
// blocks are used again.
//
// A block is
//   in use    referenced, by sequences
//   cooling   free, but a kernel that was queued before may still read it
//   kept      free, with rows that the prefix index finds: what a prompt that
//             begins alike takes up again
//   clean     free, with nothing
// Clean blocks are used first, then kept ones, least recently used first; of
// these only leaves of the index, so that a chain of blocks goes from its end.
// A block that cools may be referenced through the index at once, since reading
// disturbs nobody; it is written again only when every fence under which it was
// given up is complete.
//
// A pool may have many more blocks than are ever used at once: what is kept of
// a block begins with its first use, and blocks that were used are used again
// before others.
//
// Thread-compatible. O(1), but for Harvest.

#ifndef QUIRE_PAGING_BLOCK_POOL_H_
#define QUIRE_PAGING_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "paging/block_prefix_index.h"
#include "quire/alloc/fence.h"

namespace quire {

class BlockPool {
 public:
  // Of each table of the cache whether it is a chain (BlockPrefixIndex).
  explicit BlockPool(uint32_t blocks, std::vector<bool> chains = {true})
      : size_(blocks), index_(std::move(chains)) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint32_t size() const { return size_; }
  uint32_t free() const { return size_ - lists_[kUsed].size; }
  uint32_t kept() const { return lists_[kKept].size; }
  uint32_t references(BlockId block) const {
    return block < blocks_.size() ? blocks_[block].references : 0;
  }
  // How many kept blocks were used again for something else.
  uint64_t evictions() const { return evictions_; }
  BlockPrefixIndex& index() { return index_; }
  const BlockPrefixIndex& index() const { return index_; }

  // Sees which blocks have cooled, which is not seen before. O(cooling).
  void Harvest();
  // A free block that nothing reads, with one reference. nullopt: what is free
  // cools, or nothing is free.
  std::optional<BlockId> Take();
  // What Take lacks is to be had when this is complete. REQUIRES: Take has
  // returned nullopt, and free() > 0.
  Fence NextFence() const;

  // REQUIRES: the block is in use, or in the index.
  void Reference(BlockId block);
  // REQUIRES: it is in use. `fence` covers what its holder had queued.
  void Unreference(BlockId block, const Fence& fence);

  absl::Status CheckInvariants() const;

 private:
  // Where a block is that was used once.
  enum ListId : uint8_t { kUsed, kCooling, kKept, kClean };
  static constexpr int kLists = 4;
  struct List {
    BlockId first = kNoBlock;
    BlockId last = kNoBlock;
    uint32_t size = 0;
  };
  struct Block {
    uint32_t references = 0;
    ListId list = kClean;
    BlockId previous = kNoBlock;  // on the list
    BlockId next = kNoBlock;
  };
  // More than one where holders gave a block up at different times.
  using Fences = absl::InlinedVector<Fence, 1>;

  void Append(BlockId block, ListId to);
  void Unlink(BlockId block);
  // To the end of a list.
  void Move(BlockId block, ListId to) {
    Unlink(block);
    Append(block, to);
  }
  // Forgets fences that are complete; whether all were.
  bool HasCooled(BlockId block);
  ListId FreeList(BlockId block) const {
    return index_.Contains(block) ? kKept : kClean;
  }

  const uint32_t size_;
  BlockPrefixIndex index_;
  std::vector<Block> blocks_;  // those that were used; the others are clean
  List lists_[kLists];
  // Incomplete when last asked, or not asked yet; of blocks that have some.
  absl::flat_hash_map<BlockId, Fences> fences_;
  uint64_t evictions_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_POOL_H_
