// Which requests wait with which prompts: finds, for the tokens of a sequence,
// how much of them a prompt to come begins with, and whose turn that is.
//
// Prompts are known in chunks of kChunkTokens, each by a keyed 128-bit hash of
// the hash before it and its own tokens. A hash is trusted here: what it leads
// to is which rows are worth keeping, and never whose rows they are.
//
// Costs: O(tokens) each, of which a tenth of a microsecond a chunk is the hash.
// Not thread-safe.

#ifndef QUIRE_PAGING_AWAITED_PROMPTS_H_
#define QUIRE_PAGING_AWAITED_PROMPTS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "paging/siphash.h"

namespace quire {

class AwaitedPrompts {
 public:
  static constexpr size_t kChunkTokens = 128;

  AwaitedPrompts() : key_(SipHashKey::Random()) {}

  // A prompt that waits for `turn`; turns are those of one prompt each.
  void Add(uint64_t turn, std::span<const int32_t> prompt);
  // REQUIRES: added with these tokens, or with more of them.
  void Remove(uint64_t turn, std::span<const int32_t> prompt);

  struct Found {
    uint64_t tokens = 0;  // whole chunks; 0: nobody waits with any of them
    uint64_t turn = 0;    // the soonest with all of these
  };
  // The longest beginning of `tokens` that a prompt has as well.
  Found Find(std::span<const int32_t> tokens) const;

  size_t prompts() const { return prompts_; }

 private:
  // Calls visit(hash) for chunk after chunk, until it returns false.
  template <typename Visit>
  void ForEachChunk(std::span<const int32_t> tokens, Visit visit) const;

  const SipHashKey key_;
  size_t prompts_ = 0;
  // By the hash of a beginning.
  absl::flat_hash_map<Hash128, std::set<uint64_t>> turns_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_AWAITED_PROMPTS_H_
