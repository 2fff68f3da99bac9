#include "model/tokenizer/bpe_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::StatusOr<Bpe::Vocabulary> ParseVocabulary(const JsonReader& json) {
  if (!json.Has("vocab") || !json.Field("vocab").value().is_object()) {
    return json.Error("vocab is not an object");
  }
  const JsonReader field = json.Field("vocab");
  Bpe::Vocabulary vocabulary;
  vocabulary.reserve(field.value().size());
  for (const auto& [token, id] : field.value().items()) {
    if (!IsUtf8(token)) {
      return field.Error(
          absl::StrCat("a token, with id ", id.dump(), ", is not UTF-8"));
    }
    const absl::StatusOr<int64_t> number =
        JsonReader(id, "").AsInteger(0, kMaxTokenId);
    if (!number.ok()) {
      return field.Error(absl::StrCat("the id of ", Quoted(token),
                                      " is not a number from 0 to ",
                                      kMaxTokenId));
    }
    vocabulary.emplace_back(token, static_cast<TokenId>(*number));
  }
  return vocabulary;
}

// Either "a b" or ["a", "b"].
absl::StatusOr<Bpe::Merges> ParseMerges(const JsonReader& json) {
  if (!json.Has("merges") || !json.Field("merges").value().is_array()) {
    return json.Error("merges is not an array");
  }
  const JsonReader field = json.Field("merges");
  Bpe::Merges merges;
  merges.reserve(field.value().size());
  size_t index = 0;
  for (const nlohmann::json& merge : field.value()) {
    const std::string where = absl::StrCat("merge ", index++);
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string::npos ||
          text.find(' ', space + 1) != std::string::npos) {
        return field.Error(
            absl::StrCat(where, ", ", Quoted(text), ", is not two tokens"));
      }
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(),
                          merge[1].get<std::string>());
    } else {
      return field.Error(absl::StrCat(where, " is not two tokens"));
    }
  }
  return merges;
}

absl::StatusOr<std::string> OptionalString(const JsonReader& json,
                                           std::string_view key) {
  if (!json.Has(key)) return std::string();
  return json.String(key);
}

nlohmann::json NullIfEmpty(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> ParseBpe(const JsonReader& json) {
  // The oldest files have no type; what has merges is BPE.
  if (json.Has("type") || !json.Has("merges")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, json.String("type"));
    if (type != "BPE") return json.Unsupported("the model " + type);
  }
  if (json.Has("dropout") && json.Field("dropout").value() != 0) {
    return json.Unsupported("dropout");
  }
  BpeOptions options;
  if (json.Has("unk_token")) {
    QUIRE_ASSIGN_OR_RETURN(options.unk_token, json.String("unk_token"));
  }
  QUIRE_ASSIGN_OR_RETURN(options.continuing_subword_prefix,
                         OptionalString(json, "continuing_subword_prefix"));
  QUIRE_ASSIGN_OR_RETURN(options.end_of_word_suffix,
                         OptionalString(json, "end_of_word_suffix"));
  QUIRE_ASSIGN_OR_RETURN(options.fuse_unk, json.BoolOr("fuse_unk", false));
  QUIRE_ASSIGN_OR_RETURN(options.byte_fallback,
                         json.BoolOr("byte_fallback", false));
  QUIRE_ASSIGN_OR_RETURN(options.ignore_merges,
                         json.BoolOr("ignore_merges", false));
  QUIRE_ASSIGN_OR_RETURN(Bpe::Vocabulary vocabulary, ParseVocabulary(json));
  QUIRE_ASSIGN_OR_RETURN(const Bpe::Merges merges, ParseMerges(json));
  absl::StatusOr<std::unique_ptr<Bpe>> bpe =
      Bpe::Create(std::move(options), std::move(vocabulary), merges);
  if (!bpe.ok()) return json.Error(std::string(bpe.status().message()));
  return bpe;
}

nlohmann::json BpeToJson(const Bpe& bpe) {
  const BpeOptions& options = bpe.options();
  nlohmann::json vocab = nlohmann::json::object();
  for (TokenId id = 0; id <= bpe.max_id(); ++id) {
    if (const std::string* token = bpe.Token(id)) vocab[*token] = id;
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : bpe.MergePairs()) {
    merges.push_back({*bpe.Token(left), *bpe.Token(right)});
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", options.unk_token ? nlohmann::json(*options.unk_token)
                                          : nlohmann::json()},
          {"continuing_subword_prefix",
           NullIfEmpty(options.continuing_subword_prefix)},
          {"end_of_word_suffix", NullIfEmpty(options.end_of_word_suffix)},
          {"fuse_unk", options.fuse_unk},
          {"byte_fallback", options.byte_fallback},
          {"ignore_merges", options.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace quire
