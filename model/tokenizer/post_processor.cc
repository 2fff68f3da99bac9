#include "model/tokenizer/post_processor.h"

#include <string>

#include "model/tokenizer/bpe.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// The ids that special_tokens gives for `name`.
absl::StatusOr<std::vector<TokenId>> SpecialTokenIds(const JsonReader& json,
                                                     const std::string& name) {
  if (!json.Has("special_tokens") || !json.Field("special_tokens").Has(name)) {
    return json.Error("special_tokens has no " + Quoted(name));
  }
  const JsonReader token = json.Field("special_tokens").Field(name);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         token.Array("ids"));
  std::vector<TokenId> ids;
  for (const JsonReader& element : elements) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t id, element.AsInteger(0, kMaxTokenId));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

absl::StatusOr<PostProcessor> ParseTemplate(const JsonReader& json) {
  PostProcessor result;
  bool have_text = false;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> pieces,
                         json.Array("single"));
  for (const JsonReader& piece : pieces) {
    if (piece.Has("Sequence")) {
      QUIRE_ASSIGN_OR_RETURN(const std::string id,
                             piece.Field("Sequence").String("id"));
      if (id != "A" || have_text) {
        return piece.Unsupported("a sequence that is not A, once,");
      }
      have_text = true;
    } else if (piece.Has("SpecialToken")) {
      QUIRE_ASSIGN_OR_RETURN(const std::string id,
                             piece.Field("SpecialToken").String("id"));
      QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                             SpecialTokenIds(json, id));
      std::vector<TokenId>& side = have_text ? result.after : result.before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      return piece.Error("neither Sequence nor SpecialToken");
    }
  }
  if (!have_text) return json.Error("single has no sequence A");
  return result;
}

}  // namespace

absl::StatusOr<PostProcessor> ParsePostProcessor(const JsonReader& json) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, json.String("type"));
  // Only moves offsets, which nothing here keeps.
  if (type == "ByteLevel") return PostProcessor{};
  if (type == "TemplateProcessing") return ParseTemplate(json);
  if (type == "Sequence") {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> processors,
                           json.Array("processors"));
    PostProcessor result;
    bool have_template = false;
    for (const JsonReader& processor : processors) {
      QUIRE_ASSIGN_OR_RETURN(const std::string part, processor.String("type"));
      if (part == "Sequence" || (part == "TemplateProcessing" &&
                                 std::exchange(have_template, true))) {
        return processor.Unsupported("another " + part + " in a Sequence");
      }
      QUIRE_ASSIGN_OR_RETURN(const PostProcessor parsed,
                             ParsePostProcessor(processor));
      if (part == "TemplateProcessing") result = parsed;
    }
    return result;
  }
  return json.Unsupported("the post-processor " + type);
}

}  // namespace quire
