// Whatever tokenizer.json or the metadata of a GGUF say, they are refused or
// make a tokenizer that takes any text, whose tokens are its own, that streams
// what it decodes, and that is the same after it was written and read again.
//
// The input has three parts: tokenizer.json, or a JSON object of GGUF metadata;
// tokenizer_config.json; a text.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/stop_checker.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"
#include "quire/model/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {
namespace {

using nlohmann::json;

// A pattern that backtracks takes its time over a long text.
constexpr size_t kMaxText = 256;

absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const json& description) {
  return description.contains("tokenizer.ggml.model")
             ? Tokenizer::FromGguf(description, "model.gguf")
             : Tokenizer::FromTokenizerJson(description, "tokenizer.json");
}

absl::Status CheckEosTokens(std::string_view config,
                            const Tokenizer& tokenizer) {
  const auto parsed = ParseJsonText(config, "tokenizer_config.json");
  if (!parsed.ok()) return CheckRefusal(parsed.status());
  const json none = json::object();
  const auto tokens = EosTokenIds("fuzz", none, none, *parsed, none, &tokenizer);
  if (!tokens.ok()) return CheckRefusal(tokens.status());
  return absl::OkStatus();
}

absl::Status CheckText(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> tokens = tokenizer.Encode(text);
  QUIRE_ASSIGN_OR_RETURN(const std::string decoded, tokenizer.Decode(tokens));
  TextStream stream(&tokenizer);
  std::string streamed;
  for (const TokenId token : tokens) streamed += stream.Push(token);
  streamed += stream.Finish();
  return Property(streamed == decoded, "streamed text is the decoded text");
}

}  // namespace

absl::Status FuzzTokenizer(std::string_view input) {
  const std::vector<std::string_view> parts = InputParts(input, 3);
  const auto description = ParseJsonText(parts[0], "tokenizer.json");
  if (!description.ok()) return CheckRefusal(description.status());
  const auto tokenizer = Make(*description);
  if (!tokenizer.ok()) return CheckRefusal(tokenizer.status());
  QUIRE_RETURN_IF_ERROR(CheckEosTokens(parts[1], **tokenizer));
  const std::string_view text = parts[2].substr(0, kMaxText);
  QUIRE_RETURN_IF_ERROR(CheckText(**tokenizer, text));

  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Tokenizer> again,
      Tokenizer::FromTokenizerJson((*tokenizer)->ToTokenizerJson(), "written"));
  return Property(again->Encode(text) == (*tokenizer)->Encode(text),
                  "a tokenizer that was written and read is the same");
}

}  // namespace quire
