#include "paging/block_pool.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace quire {

BlockPool::BlockPool(uint32_t blocks) : index_(blocks), blocks_(blocks) {
  for (BlockId block = 0; block < blocks; ++block) {
    clean_.push_back(block);
    blocks_[block].list = &clean_;
    blocks_[block].place = std::prev(clean_.end());
  }
}

void BlockPool::Move(BlockId id, List* to) {
  Block& block = blocks_[id];
  to->splice(to->end(), *block.list, block.place);
  block.list = to;
}

// Where the driver cannot tell, the work may still be running.
bool BlockPool::HasCooled(Block* block) {
  const auto complete = [](const Fence& fence) {
    return fence.IsComplete().value_or(false);
  };
  block->fences.erase(
      std::remove_if(block->fences.begin(), block->fences.end(), complete),
      block->fences.end());
  return block->fences.empty();
}

// Blocks that were given up together have one fence, of which the driver is
// asked once.
void BlockPool::Harvest() {
  std::optional<Fence> running;
  for (auto next = cooling_.begin(); next != cooling_.end();) {
    const BlockId id = *next++;
    Block& block = blocks_[id];
    if (block.fences.front() == running) continue;
    if (HasCooled(&block)) {
      Move(id, FreeList(id));
    } else {
      running = block.fences.front();
    }
  }
}

std::optional<BlockId> BlockPool::Take() {
  BlockId id = kNoBlock;
  if (!clean_.empty()) {
    id = clean_.front();
  } else {
    const auto leaf = std::ranges::find_if(
        kept_, [&](BlockId b) { return index_.IsLeaf(b); });
    if (leaf == kept_.end()) return std::nullopt;
    id = *leaf;
    index_.Remove(id);
    ++evictions_;
  }
  blocks_[id].references = 1;
  Move(id, &used_);
  return id;
}

// Without a clean block and a kept leaf, the leaves behind what is kept are in
// use or cool; and those behind a block in use hold nothing up.
Fence BlockPool::NextFence() const {
  return cooling_.empty() ? Fence() : blocks_[cooling_.front()].fences.front();
}

void BlockPool::Reference(BlockId id) {
  if (blocks_[id].references++ == 0) Move(id, &used_);
}

// Whether the fence is complete is asked in Harvest, once for all blocks. But a
// block that always has some holder is never harvested, and must not collect
// the fences of all who ever had it.
void BlockPool::Unreference(BlockId id, const Fence& fence) {
  Block& block = blocks_[id];
  if (!block.fences.empty()) HasCooled(&block);
  if (fence != Fence() &&
      std::ranges::find(block.fences, fence) == block.fences.end())
    block.fences.push_back(fence);
  if (--block.references > 0) return;
  Move(id, block.fences.empty() ? FreeList(id) : &cooling_);
}

absl::Status BlockPool::CheckInvariants() const {
  const List* const lists[] = {&used_, &cooling_, &kept_, &clean_};
  size_t listed = 0;
  for (const List* list : lists) {
    for (auto at = list->begin(); at != list->end(); ++at) {
      const Block& block = blocks_[*at];
      ++listed;
      if (block.list != list || block.place != at)
        return absl::InternalError(
            absl::StrCat("block ", *at, " is on a list that it does not know"));
      const bool indexed = index_.Contains(*at);
      const bool fits = list == &used_      ? block.references > 0
                        : list == &cooling_ ? !block.fences.empty()
                        : list == &kept_    ? indexed && block.fences.empty()
                                            : !indexed && block.fences.empty();
      if (!fits || (list != &used_ && block.references > 0))
        return absl::InternalError(absl::StrCat(
            "block ", *at, " with ", block.references, " references and ",
            block.fences.size(), " fences is on the wrong list"));
    }
  }
  if (listed != blocks_.size())
    return absl::InternalError(
        absl::StrCat(listed, " of ", blocks_.size(), " blocks are on a list"));
  return index_.CheckInvariants();
}

}  // namespace quire
