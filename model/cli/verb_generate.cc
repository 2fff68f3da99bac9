// quire generate

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/memory_output.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/stream_view.h"
#include "model/cli/verbs.h"
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
  SamplingOptions sampling;
  SessionOptions session;
  MemoryOutputOptions memory;
  bool json = false;
};

struct Prompt {
  std::string title;
  std::vector<TokenId> tokens;
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

std::vector<TokenId> EosTokens(const GenerateOptions& options,
                               const Session& session) {
  return options.ignore_eos ? std::vector<TokenId>()
                            : session.config().eos_tokens;
}

nlohmann::json CompletionJson(const Completion& completion,
                              const nlohmann::json& text) {
  return {{"tokens", completion.tokens},
          {"text", text},
          {"finish_reason", FinishReasonName(completion.reason)}};
}

absl::Status PrintCompletions(const GenerateOptions& options,
                              const std::vector<Prompt>& prompts,
                              const Engine& engine,
                              const Tokenizer* tokenizer,
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
        completions[i],
        tokenizer != nullptr ? nlohmann::json(view->text(i))
                             : nlohmann::json()));
  if (sequences.size() == 1) return PrintJson(sequences[0]);
  return PrintJson({{"sequences", sequences}});
}

absl::Status Generate(GenerateOptions options) {
  QUIRE_RETURN_IF_ERROR(options.sampling.Validate());
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

  StreamView view(prompts.size(), !options.json && IsInteractive());
  std::vector<TextStream> streams(prompts.size(), TextStream(text));
  Engine engine(&session->decoder(), &session->cache(),
                options.session.max_sequences);
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i].tokens;
    request.max_new_tokens = options.max_new_tokens;
    request.sampling = options.sampling;
    // Each sequence draws its own numbers.
    request.sampling.seed = options.sampling.seed + i;
    request.eos_tokens = EosTokens(options, *session);
    request.on_token = [&, i](TokenId token) {
      if (text != nullptr)
        view.Append(i, streams[i].Push(token));
      else
        view.Append(i, absl::StrCat(token, " "));
      return true;
    };
    QUIRE_RETURN_IF_ERROR(engine.Add(std::move(request)).status());
  }
  session->runtime().trace()->Mark("generate");
  while (!engine.done()) {
    QUIRE_RETURN_IF_ERROR(engine.Step());
    QUIRE_RETURN_IF_ERROR(view.Refresh());
  }
  if (text != nullptr) {
    for (size_t i = 0; i < prompts.size(); ++i)
      view.Append(i, streams[i].Finish());
  }
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
  CLI::Option* prompt = verb->add_option(
      "--prompt", options->prompts, "Text to continue; once per sequence");
  prompt->allow_extra_args(false);
  CLI::Option* tokens =
      verb->add_option("--tokens", options->tokens,
                       "Token ids to continue, 1,2,3; once per sequence");
  tokens->allow_extra_args(false)->check(kTokenList);
  verb->add_option("--max-new-tokens", options->max_new_tokens,
                   "Tokens to add at most")
      ->capture_default_str();
  verb->add_flag("--ignore-eos", options->ignore_eos,
                 "Go on after the end of the text");
  SamplingOptions& sampling = options->sampling;
  verb->add_option("--temperature", sampling.temperature,
                   "0: the likeliest token each time")
      ->capture_default_str();
  verb->add_option("--top-k", sampling.top_k,
                   "Choose among so many likeliest tokens; 0: all")
      ->capture_default_str();
  verb->add_option("--top-p", sampling.top_p,
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
      ->capture_default_str();
  verb->add_flag("--json", options->json,
                 "{\"tokens\": [...], \"text\": ...}; {\"sequences\": [...]} "
                 "for several");
  AddSessionOptions(verb, &options->session);
  AddMemoryOutputOptions(verb, &options->memory);
  verb->callback([=] {
    if (prompt->empty() && tokens->empty())
      throw CLI::RequiredError("--prompt or --tokens");
    *chosen = [=] { return Generate(*options); };
  });
}

}  // namespace quire
