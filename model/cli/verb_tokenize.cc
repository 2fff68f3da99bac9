// quire tokenize, quire detokenize

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/regular_file.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  std::string text_file;
  bool no_special_tokens = false;
  bool json = false;
};

absl::Status Tokenize(const TokenizeOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                         Tokenizer::Load(options.model));
  std::string text = options.text;
  if (!options.text_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(text, ReadRegularFile(options.text_file));
  }
  const std::vector<TokenId> tokens =
      tokenizer->Encode(text, !options.no_special_tokens);
  if (options.json) return PrintJson({{"tokens", tokens}});
  std::string line;
  for (const TokenId token : tokens)
    line += (line.empty() ? "" : ",") + std::to_string(token);
  return PrintText(line + "\n");
}

struct DetokenizeOptions {
  std::string model;
  std::string tokens;
  bool skip_special_tokens = false;
  bool json = false;
};

absl::Status Detokenize(const DetokenizeOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                         ParseTokens(options.tokens));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                         Tokenizer::Load(options.model));
  QUIRE_ASSIGN_OR_RETURN(
      const std::string text,
      tokenizer->Decode(tokens, options.skip_special_tokens));
  if (options.json) return PrintJson({{"text", text}});
  return PrintText(text + "\n");
}

}  // namespace

void AddTokenizeVerbs(CLI::App* app, Action* chosen) {
  auto tokenize_options = std::make_shared<TokenizeOptions>();
  CLI::App* tokenize = app->add_subcommand("tokenize", "Text to token ids");
  tokenize
      ->add_option("MODEL", tokenize_options->model,
                   "Folder with tokenizer.json, or .gguf file")
      ->required();
  CLI::Option* text =
      tokenize->add_option("--text", tokenize_options->text, "The text");
  CLI::Option* file = tokenize->add_option(
      "--text-file", tokenize_options->text_file, "A file with the text");
  text->excludes(file);
  tokenize->add_flag("--no-special-tokens", tokenize_options->no_special_tokens,
                     "Add no BOS and the like");
  tokenize->add_flag("--json", tokenize_options->json, "{\"tokens\": [...]}");
  tokenize->callback([=] {
    if (text->empty() && file->empty())
      throw CLI::RequiredError("--text or --text-file");
    *chosen = [=] { return Tokenize(*tokenize_options); };
  });

  auto detokenize_options = std::make_shared<DetokenizeOptions>();
  CLI::App* detokenize = app->add_subcommand("detokenize", "Token ids to text");
  detokenize
      ->add_option("MODEL", detokenize_options->model,
                   "Folder with tokenizer.json, or .gguf file")
      ->required();
  detokenize->add_option("--tokens", detokenize_options->tokens, "1,2,3")
      ->required()
      ->check(kTokenList);
  detokenize->add_flag("--skip-special-tokens",
                       detokenize_options->skip_special_tokens,
                       "Leave special tokens out");
  detokenize->add_flag("--json", detokenize_options->json, "{\"text\": ...}");
  detokenize->callback(
      [=] { *chosen = [=] { return Detokenize(*detokenize_options); }; });
}

}  // namespace quire
