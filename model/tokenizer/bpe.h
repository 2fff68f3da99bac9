// Byte-pair encoding: a word's characters, merged pair by pair in the order of
// the merges' ranks.
//
// O(n log n) in the length of the word: pairs wait in a heap by (rank,
// position) and stale entries are skipped when they surface.

#ifndef QUIRE_MODEL_TOKENIZER_BPE_H_
#define QUIRE_MODEL_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "quire/model/tokenizer.h"

namespace quire {

// Ids index vectors, so a file must not be able to ask for a huge one.
inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  // A word that is in the vocabulary is that token, whatever the merges say.
  bool ignore_merges = false;
};

// Immutable, thread-safe.
class Bpe {
 public:
  using Vocabulary = std::vector<std::pair<std::string, TokenId>>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // kInvalidArgument that names the token or merge at fault.
  static absl::StatusOr<std::unique_ptr<Bpe>> Create(BpeOptions options,
                                                     Vocabulary vocabulary,
                                                     const Merges& merges);

  // Not movable: the index points into tokens_.
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the tokens of `word`, which must be UTF-8.
  void Encode(std::string_view word, std::vector<TokenId>* out) const;

  std::optional<TokenId> Find(std::string_view token) const;
  // Null where no token has this id.
  const std::string* Token(TokenId id) const;
  // The number of tokens; ids may be larger.
  size_t size() const { return ids_.size(); }
  TokenId max_id() const { return static_cast<TokenId>(tokens_.size()) - 1; }

  const BpeOptions& options() const { return options_; }
  // In the order of ranks.
  std::vector<std::pair<TokenId, TokenId>> MergePairs() const;

 private:
  struct Merge {
    uint32_t rank;
    TokenId result;
  };
  struct Symbol;

  Bpe() = default;

  static uint64_t PairKey(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }

  absl::Status AddVocabulary(Vocabulary vocabulary);
  absl::Status AddMerges(const Merges& merges);
  absl::Status ResolveSpecialTokens();

  const Merge* FindMerge(TokenId left, TokenId right) const;
  std::vector<Symbol> Characters(std::string_view word) const;
  void MergeAll(std::vector<Symbol>* symbols) const;

  BpeOptions options_;
  // By id; an id without a token has nullopt.
  std::vector<std::optional<std::string>> tokens_;
  absl::flat_hash_map<absl::string_view, TokenId> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::optional<TokenId> unk_id_;
  // The tokens "<0x00>" to "<0xFF>".
  std::array<std::optional<TokenId>, 256> byte_tokens_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_BPE_H_
