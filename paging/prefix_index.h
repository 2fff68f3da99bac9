// Which tokens the cached rows belong to: finds, for a prompt, who holds the
// rows of its longest known beginning.
//
// An *entry* is somebody who holds the rows of a run of tokens from token 0 on:
// a sequence, or the region that one has left behind. Tokens are kept in blocks
// of a fixed number; a block hangs below the block before it, so that entries
// with a common beginning share its blocks, and whoever holds a block holds all
// blocks above it:
//
//   root -- [the system prompt] -- [question A] <- entry 1
//                              \-- [question B] -- [answer B] <- entries 2, 3
//
// Where layers drop tokens, an entry may be *limited*: every layer has the rows
// of its first tokens, and some of them no more. Its further tokens are known,
// so that prompts show where they part from it, and it is found there only if
// its *end is kept*: the rows that the next token sees, and no fewer tokens
// than all that it has.
//
// Blocks are found by a keyed 128-bit hash of the hash above and their tokens.
// The hash only finds: a block matches where its tokens and the block above it
// are the same ones. Of two blocks with one hash the second is not indexed.
//
// What is held is given up in the order of Victims: entries of low priority
// first; of one priority those that no prompt is expected to continue, the
// least recently used first, and then the others, the latest turn first. An
// entry that holds more than what is expected of it is one that nobody expects,
// until it is truncated. A priority may end at a time of the caller's clock:
// there is no other clock. Entries that are pinned, those of sequences, are no
// victims. How many pages an entry gives is asked of
// the caller at that time, since pages may be shared: one that gives none is
// passed over.
//
// Invariants: a block without blocks below it is the end of an entry; and each
// block counts the entries that hold it whole, at its own end or below. So
// whoever holds a block is found by going down, and no block keeps a list of
// all its holders, which for a system prompt are all sequences.
//
// Costs: Match, Extend, Truncate, Limit and Remove O(tokens); the rest O(log
// entries). Not thread-safe: the cache's state lock guards it.

#ifndef QUIRE_PAGING_PREFIX_INDEX_H_
#define QUIRE_PAGING_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "paging/siphash.h"
#include "quire/alloc/units.h"

namespace quire {

using PrefixEntryId = Id<struct PrefixEntryIdTag, uint64_t>;  // 0 names none

struct PrefixIndexOptions {
  uint32_t block_tokens = 16;     // at least 1
  std::optional<SipHashKey> key;  // none: a random one
  // Bits of the hash that are used: fewer in tests of what a collision does.
  int hash_bits = 128;
};

class PrefixIndex {
 public:
  explicit PrefixIndex(const PrefixIndexOptions& options);

  uint32_t block_tokens() const { return options_.block_tokens; }
  size_t entries() const { return entries_.size(); }
  size_t blocks() const { return blocks_.size(); }

  // An entry of no tokens, pinned once, as the one that was used last.
  PrefixEntryId Add();
  // One that holds what `entry` holds, and has its priority.
  PrefixEntryId AddLike(PrefixEntryId entry);
  void Remove(PrefixEntryId entry);

  // Tokens of the entry that are indexed: whole blocks.
  uint64_t TokensOf(PrefixEntryId entry) const;
  // The most tokens for which it is found.
  uint64_t FoundTokensOf(PrefixEntryId entry) const;
  // The entry holds `tokens`, the first of which, TokensOf(entry) many, are
  // known and not looked at again. Its last, incomplete block is left out.
  void Extend(PrefixEntryId entry, std::span<const int32_t> tokens);
  // The entry holds its first `tokens` tokens at most.
  void Truncate(PrefixEntryId entry, uint64_t tokens);
  // Of its first `tokens` tokens all rows are there, of those behind them, now
  // and later, not.
  void Limit(PrefixEntryId entry, uint64_t tokens);
  // The rows that the token behind its end sees are there, until it is extended
  // or truncated.
  void KeepEnd(PrefixEntryId entry);

  struct Found {
    uint64_t tokens = 0;   // whole blocks
    PrefixEntryId holder;  // of these and perhaps more; none for 0 tokens
    // The holder's end, which is kept, and nothing whole.
    bool at_end = false;
    // All that hold exactly these tokens, as a whole.
    std::vector<PrefixEntryId> exact;
    uint64_t known = 0;  // that entries begin with, found or not
  };
  // The longest known beginning of `tokens`. Changes nothing, order included.
  Found Match(std::span<const int32_t> tokens) const;

  // Pins are counted.
  void Pin(PrefixEntryId entry);
  void Unpin(PrefixEntryId entry);
  // The entry is the one that was used last.
  void Touch(PrefixEntryId entry);
  // The larger, the later it is given up; entries begin with 0. From the time
  // `until` on the priority is 0 again.
  void SetPriority(PrefixEntryId entry, int32_t priority,
                   uint64_t until = UINT64_MAX);

  // Priorities that have ended by `now` end. Time does not go back.
  void AdvanceClock(uint64_t now);

  // A prompt that begins with the first `tokens` tokens of the entry has its
  // turn at `turn`. Of several expectations the one of most tokens counts, of
  // these the soonest.
  void Expect(PrefixEntryId entry, uint64_t tokens, uint64_t turn);
  // The tokens that are expected; 0: none are.
  uint64_t ExpectedTokens(PrefixEntryId entry) const {
    return At(entry).expected_tokens;
  }
  // Turns before `turn` are over, and what was expected for them.
  void AdvanceTurn(uint64_t turn);

  struct Victim {
    PrefixEntryId entry;
    PageCount pages;  // that it gives
  };
  // The first entries in the order of giving up that together give `wanted`
  // pages, or all that give some. `pages_of(entry)` tells what the entry would
  // give by itself.
  template <typename PagesOf>
  std::vector<Victim> Victims(PageCount wanted, PagesOf pages_of) const
      ABSL_NO_THREAD_SAFETY_ANALYSIS {  // `pages_of` may require what we hold
    std::vector<Victim> victims;
    uint64_t given = 0;
    for (auto it = order_.begin(); it != order_.end() && given < wanted.value();
         ++it) {
      const PageCount pages = pages_of(it->entry);
      if (pages.zero()) continue;
      victims.push_back({it->entry, pages});
      given = SaturatingAdd(given, pages.value());
    }
    return victims;
  }

  // An error names what does not hold.
  absl::Status CheckInvariants() const;

 private:
  struct Block {
    Block* above = nullptr;
    Hash128 hash;
    uint64_t depth = 0;  // blocks from the root to here, this one included
    std::vector<int32_t> tokens;
    // The blocks below, and the place among those below `above`.
    Block* first_below = nullptr;
    Block* previous = nullptr;
    Block* next = nullptr;
    std::vector<PrefixEntryId> ends;
    // Entries that are whole up to here and no further.
    std::vector<PrefixEntryId> whole_ends;
    uint64_t holders = 0;  // whole_ends here and below
  };
  // The order of giving up.
  struct Place {
    int32_t priority;
    uint64_t soon;   // the larger, the sooner it is expected; 0: it is not
    uint64_t stamp;  // of the last use
    PrefixEntryId entry;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Entry {
    Block* end;
    Block* whole_end;             // min(end, limit)
    uint64_t limit = UINT64_MAX;  // blocks
    bool end_kept = false;
    uint32_t pins = 1;
    int32_t priority = 0;
    uint64_t until = UINT64_MAX;
    uint64_t stamp = 0;
    uint64_t expected_tokens = 0;
    uint64_t turn = 0;  // where tokens are expected
  };
  using Expiry = std::pair<uint64_t, PrefixEntryId>;

  Entry& At(PrefixEntryId entry) { return entries_.find(entry)->second; }
  const Entry& At(PrefixEntryId entry) const {
    return entries_.find(entry)->second;
  }
  Place PlaceOf(PrefixEntryId id, const Entry& entry) const {
    const bool expected =
        entry.expected_tokens > 0 &&
        entry.end->depth * options_.block_tokens <= entry.expected_tokens;
    return {entry.priority, expected ? UINT64_MAX - entry.turn : 0, entry.stamp,
            id};
  }
  // Takes the entry out of the order while `change` runs.
  template <typename Change>
  void Reorder(PrefixEntryId id, Change change);

  Hash128 HashOf(const Block& above, std::span<const int32_t> tokens) const;
  // Null where there is none; then `free` tells whether the hash is free.
  Block* FindBelow(const Block& above, const Hash128& hash,
                   std::span<const int32_t> tokens, bool* free) const;
  Block* AddBelow(Block* above, const Hash128& hash,
                  std::span<const int32_t> tokens);
  void MoveEnd(PrefixEntryId id, Block* to);
  // The entry is whole as far as its end and its limit go.
  void PlaceWholeEnd(PrefixEntryId id);
  // Drops the block, and those above it, that nobody holds any more.
  void Prune(Block* block);

  const PrefixIndexOptions options_;
  const SipHashKey key_;
  Block root_;
  absl::flat_hash_map<Hash128, std::unique_ptr<Block>> blocks_;
  absl::flat_hash_map<PrefixEntryId, Entry> entries_;
  std::set<Place> order_;      // of what is not pinned
  std::set<Expiry> expiring_;  // priorities that end
  std::set<Expiry> turns_;     // of what is expected
  uint64_t next_entry_ = 1;
  uint64_t next_stamp_ = 1;
  uint64_t now_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_PREFIX_INDEX_H_
