#include "paging/block_prefix_index.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace quire {

size_t BlockPrefixIndex::Hash::operator()(const Key& block) const {
  return absl::HashOf(block.parent,
                      SipHash128(key, std::as_bytes(block.tokens)));
}

size_t BlockPrefixIndex::Hash::operator()(BlockId block) const {
  const Entry& entry = (*entries)[block];
  return (*this)(Key{entry.parent, entry.tokens});
}

bool BlockPrefixIndex::Equal::operator()(BlockId block, const Key& key) const {
  const Entry& entry = (*entries)[block];
  return entry.parent == key.parent &&
         std::ranges::equal(entry.tokens, key.tokens);
}

std::optional<BlockId> BlockPrefixIndex::Find(
    BlockId parent, std::span<const int32_t> tokens) const {
  const auto found = blocks_.find(Key{parent, tokens});
  if (found == blocks_.end()) return std::nullopt;
  return *found;
}

void BlockPrefixIndex::Insert(BlockId parent, std::span<const int32_t> tokens,
                              BlockId block) {
  if (block >= entries_.size()) entries_.resize(size_t{block} + 1);
  entries_[block] = {.parent = parent,
                     .tokens = std::vector(tokens.begin(), tokens.end())};
  blocks_.insert(block);
  if (parent != kNoBlock) ++entries_[parent].children;
}

void BlockPrefixIndex::Remove(BlockId block) {
  const BlockId parent = entries_[block].parent;
  if (parent != kNoBlock) --entries_[parent].children;
  blocks_.erase(block);
  entries_[block] = {};
}

absl::Status BlockPrefixIndex::CheckInvariants() const {
  std::vector<uint32_t> children(entries_.size());
  for (const BlockId block : blocks_) {
    const Entry& entry = entries_[block];
    if (Find(entry.parent, entry.tokens) != block)
      return absl::InternalError(
          absl::StrCat("block ", block, " is not found by its tokens"));
    if (entry.parent == kNoBlock) continue;
    if (!Contains(entry.parent))
      return absl::InternalError(absl::StrCat(
          "block ", block, " stands behind ", entry.parent, ", which is gone"));
    ++children[entry.parent];
  }
  for (BlockId block = 0; block < entries_.size(); ++block) {
    if (children[block] != entries_[block].children)
      return absl::InternalError(
          absl::StrCat("block ", block, " has ", children[block],
                       " children, kept ", entries_[block].children));
  }
  return absl::OkStatus();
}

}  // namespace quire
