// The `added_tokens` of tokenizer.json: found in the text before anything else.
//
// Two passes, as `tokenizers` does it: tokens with normalized = false in the
// input, the others in the normalised text between those. In each pass the
// leftmost match wins, of those the longest; single_word, lstrip and rstrip
// are applied after.

#ifndef QUIRE_MODEL_TOKENIZER_ADDED_TOKENS_H_
#define QUIRE_MODEL_TOKENIZER_ADDED_TOKENS_H_

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"
#include "quire/model/tokenizer.h"

namespace quire {

struct AddedToken {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = true;
  bool special = false;

  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

// Finds the leftmost, then longest of a set of strings: a trie of bytes, tried
// at every position. O(text x longest string) at worst.
class StringSet {
 public:
  // kInvalidArgument for an empty string and one that is there.
  absl::Status Add(std::string_view text, TokenId id);
  bool empty() const { return nodes_.empty(); }

  struct Match {
    size_t begin;
    size_t end;
    TokenId id;
  };
  // From `start` on.
  std::optional<Match> Find(std::string_view text, size_t start) const;

 private:
  static constexpr TokenId kNoToken = -1;

  // The root is node 0.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // (node, byte) to node
  std::vector<TokenId> nodes_;  // the id of the string that ends here
  std::bitset<256> first_bytes_;
};

// Immutable after creation, thread-safe.
class AddedTokens {
 public:
  // Ids follow `tokenizers`: that of the vocabulary where the token is in it,
  // else the next free one. `normalizer` may be null.
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedToken> tokens,
                                            const Bpe& bpe,
                                            const Normalizer* normalizer);

  struct Span {
    size_t begin;
    size_t end;
    std::optional<TokenId> token;
  };
  // Spans of tokens and of the text between. They cover `text`; where rstrip
  // reaches over another token, they overlap, as in `tokenizers`.
  std::vector<Span> SplitInput(std::string_view text) const {
    return Split(input_set_, text);
  }
  std::vector<Span> SplitNormalized(std::string_view text) const {
    return Split(normalized_set_, text);
  }

  std::optional<TokenId> Find(std::string_view content) const;
  // What decoders see; null where no added token has this id.
  const std::string* DecodedForm(TokenId id) const;
  // By its text, as `tokenizers` decides.
  bool IsSpecial(std::string_view token) const;
  const std::map<TokenId, AddedToken>& by_id() const { return by_id_; }

 private:
  std::vector<Span> Split(const StringSet& set, std::string_view text) const;

  std::map<TokenId, AddedToken> by_id_;
  absl::flat_hash_map<std::string, TokenId> ids_;
  absl::flat_hash_set<std::string> special_;
  // The normalised content, where it differs from the content.
  absl::flat_hash_map<TokenId, std::string> normalized_forms_;
  StringSet input_set_;
  StringSet normalized_set_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_ADDED_TOKENS_H_
