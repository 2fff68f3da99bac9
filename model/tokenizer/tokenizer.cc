#include "quire/model/tokenizer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/bpe_json.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/tokenizer_impl.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr const char* kDescribedParts[] = {"normalizer", "pre_tokenizer",
                                           "post_processor", "decoder"};

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(
    const JsonReader& json) {
  std::vector<AddedToken> tokens;
  if (!json.Has("added_tokens")) return tokens;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         json.Array("added_tokens"));
  for (const JsonReader& element : elements) {
    AddedToken token;
    // The id is there for people: `tokenizers` gives its own, and so does
    // AddedTokens::Create.
    QUIRE_RETURN_IF_ERROR(element.Integer("id", 0, kMaxTokenId).status());
    QUIRE_ASSIGN_OR_RETURN(token.content, element.String("content"));
    QUIRE_ASSIGN_OR_RETURN(token.single_word,
                           element.BoolOr("single_word", false));
    QUIRE_ASSIGN_OR_RETURN(token.lstrip, element.BoolOr("lstrip", false));
    QUIRE_ASSIGN_OR_RETURN(token.rstrip, element.BoolOr("rstrip", false));
    QUIRE_ASSIGN_OR_RETURN(token.special, element.BoolOr("special", false));
    QUIRE_ASSIGN_OR_RETURN(token.normalized,
                           element.BoolOr("normalized", !token.special));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

nlohmann::json AddedTokensToJson(const AddedTokens& added) {
  nlohmann::json tokens = nlohmann::json::array();
  for (const auto& [id, token] : added.by_id()) {
    tokens.push_back({{"id", id},
                      {"content", token.content},
                      {"single_word", token.single_word},
                      {"lstrip", token.lstrip},
                      {"rstrip", token.rstrip},
                      {"normalized", token.normalized},
                      {"special", token.special}});
  }
  return tokens;
}

// The pieces before pre-tokenization: added tokens, and normalised text.
std::vector<TextPiece> ExtractAddedTokens(const AddedTokens& added,
                                          const Normalizer* normalizer,
                                          std::string_view text) {
  std::vector<TextPiece> pieces;
  const auto add_token = [&pieces](TokenId token) {
    pieces.push_back({std::string(), token, false});
  };
  for (const AddedTokens::Span& span : added.SplitInput(text)) {
    if (span.token) {
      add_token(*span.token);
      continue;
    }
    std::string part(text.substr(span.begin, span.end - span.begin));
    if (normalizer != nullptr) normalizer->Normalize(&part);
    for (const AddedTokens::Span& inner : added.SplitNormalized(part)) {
      if (inner.token) {
        add_token(*inner.token);
      } else {
        pieces.push_back({part.substr(inner.begin, inner.end - inner.begin),
                          TextPiece::kText,
                          span.begin == 0 && inner.begin == 0});
      }
    }
  }
  return pieces;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTokenizerJson(
    const nlohmann::json& json, const std::string& origin) {
  const JsonReader reader(json, origin);
  if (!json.is_object()) return reader.Error("not a JSON object");
  if (reader.Has("version")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string version, reader.String("version"));
    if (version != "1.0") return reader.Unsupported("version " + version);
  }
  auto impl = std::make_unique<Impl>();
  if (!reader.Has("model")) return reader.Error("model is missing");
  QUIRE_ASSIGN_OR_RETURN(impl->bpe, ParseBpe(reader.Field("model")));
  if (reader.Has("normalizer")) {
    QUIRE_ASSIGN_OR_RETURN(impl->normalizer,
                           ParseNormalizer(reader.Field("normalizer")));
  }
  if (reader.Has("pre_tokenizer")) {
    QUIRE_ASSIGN_OR_RETURN(impl->pre_tokenizer,
                           ParsePreTokenizer(reader.Field("pre_tokenizer"),
                                             impl->normalizer != nullptr));
  }
  if (reader.Has("post_processor")) {
    QUIRE_ASSIGN_OR_RETURN(impl->post_processor,
                           ParsePostProcessor(reader.Field("post_processor")));
  }
  if (reader.Has("decoder")) {
    QUIRE_ASSIGN_OR_RETURN(impl->decoder,
                           TokenDecoder::Parse(reader.Field("decoder")));
  }
  QUIRE_ASSIGN_OR_RETURN(std::vector<AddedToken> tokens,
                         ParseAddedTokens(reader));
  absl::StatusOr<AddedTokens> added = AddedTokens::Create(
      std::move(tokens), *impl->bpe, impl->normalizer.get());
  if (!added.ok()) {
    return reader.Error(
        absl::StrCat("added_tokens: ", added.status().message()));
  }
  impl->added = *std::move(added);
  for (const char* part : kDescribedParts) {
    impl->description[part] =
        reader.Has(part) ? reader.Field(part).value() : nlohmann::json();
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text,
                                       bool add_special_tokens) const {
  const std::string valid = RepairUtf8(text);
  std::vector<TextPiece> pieces =
      ExtractAddedTokens(impl_->added, impl_->normalizer.get(), valid);
  if (impl_->pre_tokenizer != nullptr) {
    impl_->pre_tokenizer->PreTokenize(&pieces);
  }
  std::vector<TokenId> tokens;
  if (add_special_tokens) tokens = impl_->post_processor.before;
  for (const TextPiece& piece : pieces) {
    if (piece.token != TextPiece::kText) {
      tokens.push_back(piece.token);
    } else if (!piece.text.empty()) {
      impl_->bpe->Encode(piece.text, &tokens);
    }
  }
  if (add_special_tokens) {
    tokens.insert(tokens.end(), impl_->post_processor.after.begin(),
                  impl_->post_processor.after.end());
  }
  return tokens;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const TokenId> tokens,
                                              bool skip_special_tokens) const {
  DecodeRun run = impl_->decoder.Start();
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    bool is_special = false;
    const std::string* form = impl_->DecodedForm(tokens[i], &is_special);
    if (form == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", i, " is ", tokens[i], ", which is not in the vocabulary"));
    }
    if (is_special && skip_special_tokens) continue;
    text += run.Push(*form);
  }
  text += run.Finish();
  return text;
}

size_t Tokenizer::vocab_size() const {
  size_t size = impl_->bpe->size();
  for (const auto& [id, token] : impl_->added.by_id()) {
    if (!impl_->bpe->Find(token.content)) ++size;
  }
  return size;
}

std::optional<TokenId> Tokenizer::Find(std::string_view token) const {
  const std::optional<TokenId> added = impl_->added.Find(token);
  return added ? added : impl_->bpe->Find(token);
}

bool Tokenizer::IsSpecial(TokenId token) const {
  const auto it = impl_->added.by_id().find(token);
  return it != impl_->added.by_id().end() && it->second.special;
}

nlohmann::json Tokenizer::ToTokenizerJson() const {
  nlohmann::json json = impl_->description;
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = AddedTokensToJson(impl_->added);
  json["model"] = BpeToJson(*impl_->bpe);
  return json;
}

TextStream::TextStream(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      run_(std::make_unique<DecodeRun>(tokenizer->impl_->decoder.Start())) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

std::string TextStream::Push(TokenId token) {
  bool is_special = false;
  const std::string* form = tokenizer_->impl_->DecodedForm(token, &is_special);
  if (form == nullptr || (is_special && skip_special_tokens_)) return "";
  return run_->Push(*form);
}

std::string TextStream::Finish() { return run_->Finish(); }

}  // namespace quire
