#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/absl_view.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

bool EndsWithWord(std::string_view text) {
  return !text.empty() &&
         IsWord(
             DecodeUtf8(text, PreviousCharacter(text, text.size())).code_point);
}
bool StartsWithWord(std::string_view text) {
  return !text.empty() && IsWord(DecodeUtf8(text, 0).code_point);
}

// Where the white space before `end` starts.
size_t SkipSpaceBackward(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t last = PreviousCharacter(text, end);
    if (!IsWhitespace(DecodeUtf8(text, last).code_point)) break;
    end = last;
  }
  return end;
}
// Where the white space from `begin` on ends.
size_t SkipSpaceForward(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const DecodedCharacter c = DecodeUtf8(text, begin);
    if (!IsWhitespace(c.code_point)) break;
    begin += c.length;
  }
  return begin;
}

}  // namespace

absl::Status StringSet::Add(std::string_view text, TokenId id) {
  if (text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("added token %d is empty", id));
  }
  if (nodes_.empty()) nodes_.push_back(kNoToken);
  uint32_t node = 0;
  for (const char byte : text) {
    if (nodes_.size() == std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError("added tokens are too long");
    }
    const auto [edge, inserted] = edges_.emplace(
        EdgeKey(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (inserted) nodes_.push_back(kNoToken);
    node = edge->second;
  }
  if (nodes_[node] != kNoToken) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "added tokens %d and %d are both %s", nodes_[node], id, Quoted(text)));
  }
  nodes_[node] = id;
  first_bytes_.set(static_cast<uint8_t>(text.front()));
  return absl::OkStatus();
}

std::optional<StringSet::Match> StringSet::Find(std::string_view text,
                                                size_t start) const {
  for (size_t begin = start; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto edge = edges_.find(EdgeKey(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (nodes_[node] != kNoToken) longest = Match{begin, i + 1, nodes_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens,
                                                const Bpe& bpe,
                                                const Normalizer* normalizer) {
  AddedTokens result;
  TokenId next_id = static_cast<TokenId>(bpe.size());
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const std::optional<TokenId> known = result.Find(token.content);
    if (known && result.by_id_.at(*known) == token) continue;
    std::optional<TokenId> id = known ? known : bpe.Find(token.content);
    if (!id) id = next_id++;
    if (token.normalized && normalizer != nullptr) {
      std::string form = token.content;
      normalizer->Normalize(&form);
      if (form != token.content) {
        result.normalized_forms_.insert_or_assign(*id, std::move(form));
      }
    }
    result.ids_.insert_or_assign(token.content, *id);
    if (token.special) result.special_.insert(token.content);
    result.by_id_.insert_or_assign(*id, std::move(token));
  }
  for (const auto& [id, token] : result.by_id_) {
    QUIRE_RETURN_IF_ERROR(
        token.normalized
            ? result.normalized_set_.Add(*result.DecodedForm(id), id)
            : result.input_set_.Add(token.content, id));
  }
  return result;
}

std::optional<TokenId> AddedTokens::Find(std::string_view content) const {
  const auto it = ids_.find(AbslView(content));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const std::string* AddedTokens::DecodedForm(TokenId id) const {
  const auto token = by_id_.find(id);
  if (token == by_id_.end()) return nullptr;
  const auto form = normalized_forms_.find(id);
  return form == normalized_forms_.end() ? &token->second.content
                                         : &form->second;
}

bool AddedTokens::IsSpecial(std::string_view token) const {
  return special_.contains(AbslView(token));
}

std::vector<AddedTokens::Span> AddedTokens::Split(const StringSet& set,
                                                  std::string_view text) const {
  std::vector<Span> spans;
  size_t covered = 0;
  size_t search_from = 0;
  while (!set.empty()) {
    const std::optional<StringSet::Match> match = set.Find(text, search_from);
    if (!match) break;
    search_from = match->end;
    size_t begin = match->begin, end = match->end;
    const AddedToken& token = by_id_.at(match->id);
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) ||
                              StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) {
      begin = std::max(SkipSpaceBackward(text, begin), covered);
    }
    if (token.rstrip) end = SkipSpaceForward(text, end);
    if (covered < begin) spans.push_back({covered, begin, std::nullopt});
    spans.push_back({begin, end, match->id});
    covered = end;
  }
  if (covered != text.size()) {
    spans.push_back({covered, text.size(), std::nullopt});
  }
  return spans;
}

}  // namespace quire
