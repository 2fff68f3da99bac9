#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/absl_view.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// A pair that can be merged: that of the symbol at `position` with its next.
struct Candidate {
  uint32_t rank;
  uint32_t position;
  TokenId result;

  // Lowest rank first, then leftmost.
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

}  // namespace

// A token of the word being merged, in a doubly linked list by index.
struct Bpe::Symbol {
  TokenId id;
  uint32_t previous;
  uint32_t next;
  bool removed = false;
};

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Create(BpeOptions options,
                                                 Vocabulary vocabulary,
                                                 const Merges& merges) {
  std::unique_ptr<Bpe> bpe(new Bpe());
  bpe->options_ = std::move(options);
  QUIRE_RETURN_IF_ERROR(bpe->AddVocabulary(std::move(vocabulary)));
  QUIRE_RETURN_IF_ERROR(bpe->AddMerges(merges));
  QUIRE_RETURN_IF_ERROR(bpe->ResolveSpecialTokens());
  return bpe;
}

absl::Status Bpe::AddVocabulary(Vocabulary vocabulary) {
  TokenId max_id = -1;
  for (const auto& [token, id] : vocabulary) {
    if (id < 0 || id > kMaxTokenId) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "vocab: token \"%s\" has id %d, which is not from 0 to %d", token, id,
          kMaxTokenId));
    }
    max_id = std::max(max_id, id);
  }
  tokens_.resize(static_cast<size_t>(max_id) + 1);
  ids_.reserve(vocabulary.size());
  for (auto& [token, id] : vocabulary) {
    std::optional<std::string>& slot = tokens_[static_cast<size_t>(id)];
    if (slot) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "vocab: tokens \"%s\" and \"%s\" both have id %d", *slot, token, id));
    }
    slot = std::move(token);
    const auto [it, inserted] = ids_.emplace(*slot, id);
    if (!inserted) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "vocab: token \"%s\" has the ids %d and %d", *slot, it->second, id));
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerges(const Merges& merges) {
  if (merges.size() >= kNone) {
    return absl::InvalidArgumentError("merges: too many");
  }
  const size_t prefix_length = options_.continuing_subword_prefix.size();
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& left = merges[rank].first;
    const std::string& right = merges[rank].second;
    const auto find = [&](const std::string& token) -> absl::StatusOr<TokenId> {
      const std::optional<TokenId> id = Find(token);
      if (!id) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "merges[%d] (\"%s\", \"%s\"): token \"%s\" is not in vocab", rank,
            left, right, token));
      }
      return *id;
    };
    QUIRE_ASSIGN_OR_RETURN(const TokenId left_id, find(left));
    QUIRE_ASSIGN_OR_RETURN(const TokenId right_id, find(right));
    if (right.size() < prefix_length) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "merges[%d]: \"%s\" is shorter than continuing_subword_prefix", rank,
          right));
    }
    QUIRE_ASSIGN_OR_RETURN(const TokenId result,
                           find(left + right.substr(prefix_length)));
    // Of a pair that is there twice the last counts, as in `tokenizers`.
    merges_.insert_or_assign(PairKey(left_id, right_id),
                             Merge{static_cast<uint32_t>(rank), result});
  }
  return absl::OkStatus();
}

absl::Status Bpe::ResolveSpecialTokens() {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[static_cast<size_t>(byte)] =
        Find(absl::StrFormat("<0x%02X>", byte));
  }
  if (!options_.unk_token) return absl::OkStatus();
  unk_id_ = Find(*options_.unk_token);
  if (unk_id_) return absl::OkStatus();
  // A byte-level vocabulary that is whole never needs it.
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &character);
    if (!Find(character)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unk_token ", Quoted(*options_.unk_token), " is not in vocab"));
    }
  }
  return absl::OkStatus();
}

std::optional<TokenId> Bpe::Find(std::string_view token) const {
  const auto it = ids_.find(AbslView(token));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const std::string* Bpe::Token(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  const std::optional<std::string>& token = tokens_[static_cast<size_t>(id)];
  return token ? &*token : nullptr;
}

std::vector<std::pair<TokenId, TokenId>> Bpe::MergePairs() const {
  std::vector<std::pair<uint32_t, uint64_t>> by_rank;
  by_rank.reserve(merges_.size());
  for (const auto& [key, merge] : merges_)
    by_rank.emplace_back(merge.rank, key);
  std::sort(by_rank.begin(), by_rank.end());
  std::vector<std::pair<TokenId, TokenId>> pairs;
  pairs.reserve(by_rank.size());
  for (const auto& [rank, key] : by_rank) {
    pairs.emplace_back(static_cast<TokenId>(key >> 32),
                       static_cast<TokenId>(key & 0xFFFFFFFF));
  }
  return pairs;
}

const Bpe::Merge* Bpe::FindMerge(TokenId left, TokenId right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::vector<Bpe::Symbol> Bpe::Characters(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  const auto add = [&symbols](TokenId id) {
    const uint32_t index = static_cast<uint32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, index > 0 ? index - 1 : kNone, kNone});
  };
  // An unknown token waits until a known one follows: to be fused with the
  // next, and (so `tokenizers` has it) to end up behind fallback bytes.
  bool unk_waits = false;
  const bool decorated = !options_.continuing_subword_prefix.empty() ||
                         !options_.end_of_word_suffix.empty();
  std::string decorated_character;
  for (size_t i = 0; i < word.size();) {
    const size_t length = DecodeUtf8(word, i).length;
    std::string_view character = word.substr(i, length);
    if (decorated) {
      decorated_character.clear();
      if (i > 0) decorated_character += options_.continuing_subword_prefix;
      decorated_character += character;
      if (i + length == word.size()) {
        decorated_character += options_.end_of_word_suffix;
      }
      character = decorated_character;
    }
    i += length;
    if (const std::optional<TokenId> id = Find(character)) {
      if (unk_waits) add(*unk_id_);
      unk_waits = false;
      add(*id);
      continue;
    }
    if (options_.byte_fallback &&
        std::all_of(character.begin(), character.end(), [this](char byte) {
          return byte_tokens_[static_cast<uint8_t>(byte)].has_value();
        })) {
      for (const char byte : character) {
        add(*byte_tokens_[static_cast<uint8_t>(byte)]);
      }
      continue;
    }
    if (unk_id_) {
      if (unk_waits && !options_.fuse_unk) add(*unk_id_);
      unk_waits = true;
    }
  }
  if (unk_waits) add(*unk_id_);
  return symbols;
}

void Bpe::MergeAll(std::vector<Symbol>* word) const {
  std::vector<Symbol>& symbols = *word;
  std::vector<Candidate> initial;
  const auto candidate_at = [&](uint32_t position) -> std::optional<Candidate> {
    const Symbol& left = symbols[position];
    if (left.next == kNone) return std::nullopt;
    const Merge* merge = FindMerge(left.id, symbols[left.next].id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, position, merge->result};
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    if (const auto candidate = candidate_at(i)) initial.push_back(*candidate);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(
      std::greater<>(), std::move(initial));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (left.removed || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    // The pair may have changed since; what it merges to decides, as in
    // `tokenizers`.
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->result != top.result) continue;
    left.id = top.result;
    left.next = right.next;
    right.removed = true;
    if (left.next != kNone) symbols[left.next].previous = top.position;
    if (left.previous != kNone) {
      if (const auto candidate = candidate_at(left.previous)) {
        queue.push(*candidate);
      }
    }
    if (const auto candidate = candidate_at(top.position)) {
      queue.push(*candidate);
    }
  }
}

void Bpe::Encode(std::string_view word, std::vector<TokenId>* out) const {
  if (options_.ignore_merges) {
    if (const std::optional<TokenId> id = Find(word)) {
      out->push_back(*id);
      return;
    }
  }
  std::vector<Symbol> symbols = Characters(word);
  MergeAll(&symbols);
  for (const Symbol& symbol : symbols) {
    if (!symbol.removed) out->push_back(symbol.id);
  }
}

}  // namespace quire
