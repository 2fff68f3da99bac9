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
// Thread-compatible. O(1), but for Harvest.

#ifndef QUIRE_PAGING_BLOCK_POOL_H_
#define QUIRE_PAGING_BLOCK_POOL_H_

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "paging/block_prefix_index.h"
#include "quire/alloc/fence.h"

namespace quire {

class BlockPool {
 public:
  explicit BlockPool(uint32_t blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t free() const {
    return static_cast<uint32_t>(cooling_.size() + kept_.size() +
                                 clean_.size());
  }
  uint32_t kept() const { return static_cast<uint32_t>(kept_.size()); }
  uint32_t references(BlockId block) const { return blocks_[block].references; }
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
  using List = std::list<BlockId>;
  struct Block {
    uint32_t references = 0;
    List* list = nullptr;  // that it is on
    List::iterator place;
    // Incomplete when last asked, or not asked yet. More than one where holders
    // gave it up at different times.
    absl::InlinedVector<Fence, 1> fences;
  };

  // To the end of a list; nothing is allocated.
  void Move(BlockId block, List* to);
  // Forgets fences that are complete; whether all were.
  static bool HasCooled(Block* block);
  List* FreeList(BlockId block) {
    return index_.Contains(block) ? &kept_ : &clean_;
  }

  BlockPrefixIndex index_;
  std::vector<Block> blocks_;
  List used_, cooling_, kept_, clean_;
  uint64_t evictions_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_POOL_H_
