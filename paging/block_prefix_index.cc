#include "paging/block_prefix_index.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace quire {

size_t BlockPrefixIndex::Hash::operator()(const Key& place) const {
  return absl::HashOf(place.before,
                      SipHash128(key, std::as_bytes(place.tokens)));
}

size_t BlockPrefixIndex::Hash::operator()(PlaceId id) const {
  const Place& place = (*places)[id];
  return (*this)(Key{place.before, place.tokens});
}

bool BlockPrefixIndex::Equal::operator()(PlaceId id, const Key& key) const {
  const Place& place = (*places)[id];
  return place.before == key.before &&
         std::ranges::equal(place.tokens, key.tokens);
}

std::optional<BlockPrefixIndex::PlaceId> BlockPrefixIndex::Find(
    PlaceId before, std::span<const int32_t> tokens) const {
  const auto found = found_.find(Key{before, tokens});
  if (found == found_.end()) return std::nullopt;
  return *found;
}

BlockPrefixIndex::PlaceId BlockPrefixIndex::Hold(
    PlaceId before, std::span<const int32_t> tokens) {
  if (const auto found = Find(before, tokens)) {
    Hold(*found);
    return *found;
  }
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<PlaceId>(places_.size()));
    places_.emplace_back();
  }
  const PlaceId id = free_places_.back();
  free_places_.pop_back();
  Place& place = places_[id];
  place.before = before;
  place.uses = 1;
  place.tokens.assign(tokens.begin(), tokens.end());
  place.blocks.assign(chains_.size(), kNoBlock);
  place.followers.assign(chains_.size(), 0);
  found_.insert(id);
  Hold(before);
  return id;
}

void BlockPrefixIndex::Hold(PlaceId place) {
  if (place != kStart) ++places_[place].uses;
}

void BlockPrefixIndex::LetGo(PlaceId place) {
  if (place != kStart) EndUse(place);
}

void BlockPrefixIndex::EndUse(PlaceId id) {
  while (id != kStart && --places_[id].uses == 0) {
    found_.erase(id);
    const PlaceId before = places_[id].before;
    places_[id].tokens = {};
    free_places_.push_back(id);
    id = before;
  }
}

void BlockPrefixIndex::Insert(PlaceId id, uint32_t table, BlockId block) {
  if (block >= where_.size()) where_.resize(size_t{block} + 1);
  where_[block] = {id, table};
  Place& place = places_[id];
  place.blocks[table] = block;
  ++place.uses;
  if (place.before != kStart) ++places_[place.before].followers[table];
  ++blocks_;
}

bool BlockPrefixIndex::IsLeaf(BlockId block) const {
  const auto& [place, table] = where_[block];
  return !chains_[table] || places_[place].followers[table] == 0;
}

void BlockPrefixIndex::Remove(BlockId block) {
  const Where where = std::exchange(where_[block], {});
  Place& place = places_[where.place];
  place.blocks[where.table] = kNoBlock;
  if (place.before != kStart) --places_[place.before].followers[where.table];
  --blocks_;
  EndUse(where.place);
}

absl::Status BlockPrefixIndex::CheckInvariants() const {
  std::vector<uint32_t> uses(places_.size());
  std::vector<std::vector<uint32_t>> followers(
      places_.size(), std::vector<uint32_t>(chains_.size()));
  size_t blocks = 0;
  for (const PlaceId id : found_) {
    const Place& place = places_[id];
    if (Find(place.before, place.tokens) != id)
      return absl::InternalError(
          absl::StrCat("place ", id, " is not found by its tokens"));
    if (place.before != kStart) {
      if (!found_.contains(place.before))
        return absl::InternalError(absl::StrCat(
            "place ", id, " stands behind ", place.before, ", which is gone"));
      ++uses[place.before];
    }
    for (uint32_t table = 0; table < chains_.size(); ++table) {
      const BlockId block = place.blocks[table];
      if (block == kNoBlock) continue;
      ++blocks;
      ++uses[id];
      if (place.before != kStart) ++followers[place.before][table];
      if (!Contains(block) || where_[block].place != id ||
          where_[block].table != table)
        return absl::InternalError(
            absl::StrCat("block ", block, " does not know of its place ", id));
    }
  }
  for (const PlaceId id : found_) {
    const Place& place = places_[id];
    if (uses[id] > place.uses || place.uses == 0)
      return absl::InternalError(absl::StrCat("place ", id, " has ", uses[id],
                                              " uses, kept ", place.uses));
    for (uint32_t table = 0; table < chains_.size(); ++table) {
      if (followers[id][table] != place.followers[table])
        return absl::InternalError(absl::StrCat(
            "place ", id, " is followed by ", followers[id][table],
            " blocks of table ", table, ", kept ", place.followers[table]));
    }
  }
  if (blocks != blocks_)
    return absl::InternalError(
        absl::StrCat("counted ", blocks, " blocks in places, kept ", blocks_));
  return absl::OkStatus();
}

}  // namespace quire
