// Which blocks hold the rows of which tokens: the prefix cache of the
// block-table cache.
//
// A tree of *places*: a place is found by the place before it and the tokens of
// its block, so that a prompt is looked up block by block, from its start.
// Tokens are compared, never trusted to their hash, which is keyed. In a place
// there may be a block of each *table* of the cache: layers that keep other
// tokens have blocks of their own. A place exists as long as it has a block,
// stands before another one, or is held.
//
// A table is a *chain* where it keeps all tokens: a block is of use only as
// long as those of the places before it are there, so that of these only leaves
// may be removed. Blocks of other tables are of use wherever those of one
// window are left.
//
// Thread-compatible. O(tokens of a block) each.

#ifndef QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_
#define QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "paging/siphash.h"

namespace quire {

// A block's number in its pool.
using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;

class BlockPrefixIndex {
 public:
  using PlaceId = uint32_t;
  // Before the first block of a prompt.
  static constexpr PlaceId kStart = UINT32_MAX;

  // Of each table whether it is a chain.
  explicit BlockPrefixIndex(std::vector<bool> chains = {true})
      : chains_(std::move(chains)),
        found_(0, Hash{&places_, SipHashKey::Random()}, Equal{&places_}) {}
  BlockPrefixIndex(const BlockPrefixIndex&) = delete;
  BlockPrefixIndex& operator=(const BlockPrefixIndex&) = delete;

  // The place with `tokens` behind `before`.
  std::optional<PlaceId> Find(PlaceId before,
                              std::span<const int32_t> tokens) const;
  // The same, which is made where there is none, and held.
  PlaceId Hold(PlaceId before, std::span<const int32_t> tokens);
  // Holds are counted. kStart needs none.
  void Hold(PlaceId place);
  void LetGo(PlaceId place);
  // REQUIRES, of both: not kStart.
  PlaceId Before(PlaceId place) const { return places_[place].before; }
  // kNoBlock: there is none.
  BlockId BlockAt(PlaceId place, uint32_t table) const {
    return places_[place].blocks[table];
  }

  // REQUIRES: neither is the block here, nor one of the table in this place.
  void Insert(PlaceId place, uint32_t table, BlockId block);
  bool Contains(BlockId block) const {
    return block < where_.size() && where_[block].place != kStart;
  }
  // Whether removing the block leaves none that is of no use without it.
  // REQUIRES: it is here.
  bool IsLeaf(BlockId block) const;
  // REQUIRES: a leaf.
  void Remove(BlockId block);

  size_t blocks() const { return blocks_; }
  size_t places() const { return found_.size(); }
  absl::Status CheckInvariants() const;

 private:
  struct Place {
    PlaceId before = kStart;
    uint32_t uses = 0;  // blocks here, places behind it, and holds
    std::vector<int32_t> tokens;
    absl::InlinedVector<BlockId, 2> blocks;  // by table
    // Places behind it that have a block of the table.
    absl::InlinedVector<uint32_t, 2> followers;
  };
  using Places = std::vector<Place>;
  struct Where {
    PlaceId place = kStart;
    uint32_t table = 0;
  };
  struct Key {
    PlaceId before;
    std::span<const int32_t> tokens;
  };
  // The set holds ids only: what they stand for is in the places.
  struct Hash {
    using is_transparent = void;
    const Places* places;
    SipHashKey key;
    size_t operator()(const Key& place) const;
    size_t operator()(PlaceId place) const;
  };
  struct Equal {
    using is_transparent = void;
    const Places* places;
    bool operator()(PlaceId a, PlaceId b) const { return a == b; }
    bool operator()(PlaceId place, const Key& key) const;
  };

  // The place, and those before it, go when nothing uses them any more.
  void EndUse(PlaceId place);

  const std::vector<bool> chains_;
  Places places_;
  std::vector<PlaceId> free_places_;
  absl::flat_hash_set<PlaceId, Hash, Equal> found_;
  std::vector<Where> where_;  // up to the largest block that was ever here
  size_t blocks_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_PREFIX_INDEX_H_
