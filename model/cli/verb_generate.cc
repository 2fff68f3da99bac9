// quire generate

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/memory_output.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/stream_view.h"
#include "model/cli/verbs.h"
#include "model/config/file_io.h"
#include "model/tokenizer/stop_checker.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

struct GenerateOptions {
  std::string model;
  std::vector<std::string> prompts;
  std::vector<std::string> tokens;
  uint64_t max_new_tokens = 64;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  SamplingOptions sampling;
  SessionOptions session;
  MemoryOutputOptions memory;
  bool json = false;
};

struct Prompt {
  std::string title;
  std::vector<TokenId> tokens;
};

// The text of one sequence as it grows, up to a stop string. Without a
// tokenizer it is the token ids.
class OutputText {
 public:
  OutputText(const Tokenizer* tokenizer, const std::vector<std::string>& stop)
      // Length and EOS are the engine's business.
      : checker_({.max_new_tokens = std::numeric_limits<int64_t>::max(),
                  .stop_strings = stop}) {
    if (tokenizer != nullptr) stream_.emplace(tokenizer);
  }

  StopChecker::Step Push(TokenId token) {
    return checker_.Push(
        token, stream_ ? stream_->Push(token) : absl::StrCat(token, " "));
  }

  // What was held back. Nothing where a stop string has ended the text.
  std::string Finish(FinishReason reason) {
    if (reason == FinishReason::kStopped) return "";
    return checker_.Finish(stream_ ? stream_->Finish() : "").text;
  }

 private:
  std::optional<TextStream> stream_;
  StopChecker checker_;
};

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const GenerateOptions& options,
                                                const Tokenizer* tokenizer) {
  std::vector<Prompt> prompts;
  for (const std::string& text : options.prompts)
    prompts.push_back({text, tokenizer->Encode(text)});
  for (const std::string& text : options.tokens) {
    QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, ParseTokens(text));
    prompts.push_back({text, std::move(tokens)});
  }
  return prompts;
}

// The model's, and what its tokenizer's configuration names.
absl::StatusOr<std::vector<TokenId>> EosTokens(const Session& session,
                                               const Tokenizer* tokenizer) {
  std::vector<TokenId> tokens = session.config().eos_tokens;
  const std::string path =
      session.checkpoint().folder() + "/tokenizer_config.json";
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return tokens;  // there need not be one
  const nlohmann::json config =
      nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return absl::InvalidArgumentError(path + ": is no JSON object");
  const nlohmann::json none = nlohmann::json::object();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> named,
                         EosTokenIds(none, none, config, none, tokenizer));
  tokens.insert(tokens.end(), named.begin(), named.end());
  return tokens;
}

nlohmann::json CompletionJson(const Completion& completion,
                              const nlohmann::json& text) {
  return {{"tokens", completion.tokens},
          {"text", text},
          {"finish_reason", FinishReasonName(completion.reason)}};
}

absl::Status PrintCompletions(const GenerateOptions& options,
                              const std::vector<Prompt>& prompts,
                              const Engine& engine, const Tokenizer* tokenizer,
                              StreamView* view) {
  const std::vector<Completion>& completions = engine.completions();
  if (!options.json) {
    std::vector<std::string> titles;
    for (const Prompt& prompt : prompts) titles.push_back(prompt.title);
    return view->Finish(titles);
  }
  std::vector<nlohmann::json> sequences;
  for (size_t i = 0; i < completions.size(); ++i)
    sequences.push_back(CompletionJson(
        completions[i], tokenizer != nullptr ? nlohmann::json(view->text(i))
                                             : nlohmann::json()));
  if (sequences.size() == 1) return PrintJson(sequences[0]);
  return PrintJson({{"sequences", sequences}});
}

absl::Status Generate(GenerateOptions options) {
  // A checkpoint without a tokenizer can still be driven by token ids.
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(options.model);
  if (!tokenizer.ok() && !options.prompts.empty()) return tokenizer.status();
  const Tokenizer* text = tokenizer.ok() ? tokenizer->get() : nullptr;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                         ReadPrompts(options, text));

  options.session.streaming.progress = LoadProgressLine();
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Open(options.model, options.session));
  for (const std::string& warning : session->weights().warnings())
    PrintWarning(warning);

  std::vector<TokenId> eos_tokens;
  if (!options.ignore_eos) {
    QUIRE_ASSIGN_OR_RETURN(eos_tokens, EosTokens(*session, text));
  }

  StreamView view(prompts.size(), !options.json && IsInteractive());
  std::vector<OutputText> outputs;
  for (size_t i = 0; i < prompts.size(); ++i)
    outputs.emplace_back(text, options.stop);
  Engine engine(&session->decoder(), &session->cache(),
                options.session.max_sequences);
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i].tokens;
    request.max_new_tokens = options.max_new_tokens;
    request.sampling = options.sampling;
    // Each sequence draws its own numbers.
    request.sampling.seed = options.sampling.seed + i;
    request.eos_tokens = eos_tokens;
    request.on_token = [&, i](TokenId token) {
      const StopChecker::Step step = outputs[i].Push(token);
      view.Append(i, step.text);
      return step.reason == StopReason::kNone;
    };
    QUIRE_RETURN_IF_ERROR(engine.Add(std::move(request)).status());
  }
  session->runtime().trace()->Mark("generate");
  while (!engine.done()) {
    QUIRE_RETURN_IF_ERROR(engine.Step());
    QUIRE_RETURN_IF_ERROR(view.Refresh());
  }
  for (size_t i = 0; i < prompts.size(); ++i)
    view.Append(i, outputs[i].Finish(engine.completions()[i].reason));
  QUIRE_RETURN_IF_ERROR(
      PrintCompletions(options, prompts, engine, text, &view));
  return WriteMemoryOutput(options.memory, *session);
}

}  // namespace

void AddGenerateVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app->add_subcommand(
      "generate",
      "Continues one or more prompts; several are decoded as one batch");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  CLI::Option* prompt = verb->add_option("--prompt", options->prompts,
                                         "Text to continue; once per sequence");
  prompt->allow_extra_args(false);
  CLI::Option* tokens =
      verb->add_option("--tokens", options->tokens,
                       "Token ids to continue, 1,2,3; once per sequence");
  tokens->allow_extra_args(false)->check(kTokenList);
  verb->add_option("--max-new-tokens", options->max_new_tokens,
                   "Tokens to add at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb->add_flag("--ignore-eos", options->ignore_eos,
                 "Go on after the end of the text");
  verb->add_option("--stop", options->stop,
                   "End a text before this string; may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::Validator(
          [](const std::string& value) {
            return value.empty() ? "a stop string cannot be empty" : "";
          },
          "TEXT"));
  SamplingOptions& sampling = options->sampling;
  verb->add_option("--temperature", sampling.temperature,
                   "0: the likeliest token each time")
      ->capture_default_str();
  verb->add_option("--top-k", sampling.top_k,
                   "Choose among so many likeliest tokens; 0: all")
      ->capture_default_str();
  verb->add_option(
          "--top-p", sampling.top_p,
          "Choose among the likeliest tokens of this total probability")
      ->capture_default_str();
  verb->add_option("--min-p", sampling.min_p,
                   "Leave out tokens below this part of the likeliest's "
                   "probability")
      ->capture_default_str();
  verb->add_option("--repetition-penalty", sampling.repetition_penalty,
                   "Above 1 makes tokens already there less likely")
      ->capture_default_str();
  verb->add_option("--seed", sampling.seed, "Of the random numbers")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb->add_flag("--json", options->json,
                 "{\"tokens\": [...], \"text\": ...}; {\"sequences\": [...]} "
                 "for several");
  AddSessionOptions(verb, &options->session);
  AddKvCacheOptions(verb, &options->session);
  AddMemoryOutputOptions(verb, &options->memory);
  verb->callback([=] {
    if (prompt->empty() && tokens->empty())
      throw CLI::RequiredError("--prompt or --tokens");
    RejectBadOptions(options->sampling.Validate());
    *chosen = [=] { return Generate(*options); };
  });
}

}  // namespace quire
