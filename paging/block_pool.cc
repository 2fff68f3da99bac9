#include "paging/block_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire {

void BlockPool::Append(BlockId id, ListId to) {
  List& list = lists_[to];
  Block& block = blocks_[id];
  block.list = to;
  block.previous = list.last;
  block.next = kNoBlock;
  (list.last == kNoBlock ? list.first : blocks_[list.last].next) = id;
  list.last = id;
  ++list.size;
}

void BlockPool::Unlink(BlockId id) {
  const Block& block = blocks_[id];
  List& list = lists_[block.list];
  (block.previous == kNoBlock ? list.first : blocks_[block.previous].next) =
      block.next;
  (block.next == kNoBlock ? list.last : blocks_[block.next].previous) =
      block.previous;
  --list.size;
}

// Where the driver cannot tell, the work may still be running.
bool BlockPool::HasCooled(BlockId id) {
  const auto found = fences_.find(id);
  if (found == fences_.end()) return true;
  const auto complete = [](const Fence& fence) {
    return fence.IsComplete().value_or(false);
  };
  Fences& fences = found->second;
  fences.erase(std::remove_if(fences.begin(), fences.end(), complete),
               fences.end());
  if (!fences.empty()) return false;
  fences_.erase(found);
  return true;
}

// Blocks that were given up together have one fence, of which the driver is
// asked once.
void BlockPool::Harvest() {
  std::optional<Fence> running;
  for (BlockId next = lists_[kCooling].first; next != kNoBlock;) {
    const BlockId id = next;
    next = blocks_[id].next;
    if (fences_.at(id).front() == running) continue;
    if (HasCooled(id)) {
      Move(id, FreeList(id));
    } else {
      running = fences_.at(id).front();
    }
  }
}

std::optional<BlockId> BlockPool::Take() {
  BlockId id = lists_[kClean].first;
  if (id == kNoBlock && blocks_.size() < size_) {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
    Append(id, kClean);
  }
  if (id == kNoBlock) {
    id = lists_[kKept].first;
    while (id != kNoBlock && !index_.IsLeaf(id)) id = blocks_[id].next;
    if (id == kNoBlock) return std::nullopt;
    index_.Remove(id);
    ++evictions_;
  }
  blocks_[id].references = 1;
  Move(id, kUsed);
  return id;
}

// Without a clean block and a kept leaf, the leaves behind what is kept are in
// use or cool; and those behind a block in use hold nothing up.
Fence BlockPool::NextFence() const {
  const BlockId first = lists_[kCooling].first;
  return first == kNoBlock ? Fence() : fences_.at(first).front();
}

void BlockPool::Reference(BlockId id) {
  if (blocks_[id].references++ == 0) Move(id, kUsed);
}

// Whether the fence is complete is asked in Harvest, once for all blocks. But a
// block that always has some holder is never harvested, and must not collect
// the fences of all who ever had it.
void BlockPool::Unreference(BlockId id, const Fence& fence) {
  bool cooled = HasCooled(id);
  if (fence != Fence()) {
    Fences& fences = fences_[id];
    if (std::ranges::find(fences, fence) == fences.end())
      fences.push_back(fence);
    cooled = false;
  }
  if (--blocks_[id].references > 0) return;
  Move(id, cooled ? FreeList(id) : kCooling);
}

absl::Status BlockPool::CheckInvariants() const {
  size_t listed = 0;
  for (int number = 0; number < kLists; ++number) {
    const auto list = static_cast<ListId>(number);
    BlockId previous = kNoBlock;
    uint32_t size = 0;
    for (BlockId id = lists_[list].first; id != kNoBlock;
         previous = id, id = blocks_[id].next) {
      const Block& block = blocks_[id];
      ++size;
      if (block.list != list || block.previous != previous ||
          ++listed > blocks_.size())
        return absl::InternalError(
            absl::StrCat("block ", id, " is on a list that it does not know"));
      const bool indexed = index_.Contains(id);
      const bool cools = fences_.contains(id);
      const bool fits = list == kUsed      ? block.references > 0
                        : list == kCooling ? cools
                        : list == kKept    ? indexed && !cools
                                           : !indexed && !cools;
      if (!fits || (list != kUsed && block.references > 0))
        return absl::InternalError(absl::StrCat(
            "block ", id, " with ", block.references, " references, which ",
            cools ? "cools" : "has cooled", ", is on the wrong list"));
    }
    if (size != lists_[list].size || previous != lists_[list].last)
      return absl::InternalError(absl::StrCat(
          "list ", number, " has ", size, " blocks, kept ", lists_[list].size));
  }
  if (listed != blocks_.size() || listed > size_)
    return absl::InternalError(
        absl::StrCat(listed, " of ", blocks_.size(), " blocks are on a list"));
  return index_.CheckInvariants();
}

}  // namespace quire
