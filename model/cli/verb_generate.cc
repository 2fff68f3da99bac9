// quire generate

#include <algorithm>
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
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/runnable.h"
#include "model/cli/stream_view.h"
#include "model/cli/verbs.h"
#include "model/cli/verification.h"
#include "model/tokenizer/stop_checker.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"
#include "quire/model/engine.h"
#include "quire/model/generation_config.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

// Where neither the command line nor the model says.
constexpr uint64_t kDefaultNewTokens = 64;

struct GenerateOptions {
  std::string model;
  std::vector<std::string> prompts;
  std::vector<std::string> tokens;
  uint32_t continuations = 1;  // of each prompt
  uint64_t max_new_tokens = kDefaultNewTokens;
  bool max_new_tokens_given = false;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<std::string> adapters;  // of all sequences, or one for each
  SamplingOptions sampling;
  bool sampling_given = false;  // any of it but the seed
  SessionOptions session;
  MemoryOutputOptions memory;
  std::string progress = "auto";
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
  const absl::StatusOr<nlohmann::json> config = ReadJsonText(path);
  if (absl::IsNotFound(config.status())) return tokens;
  QUIRE_RETURN_IF_ERROR(config.status());
  if (!config->is_object())
    return absl::InvalidArgumentError(path + ": is no JSON object");
  const nlohmann::json none = nlohmann::json::object();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> named,
                         EosTokenIds(session.checkpoint().folder(), none, none,
                                     *config, none, tokenizer));
  tokens.insert(tokens.end(), named.begin(), named.end());
  return tokens;
}

// The adapter of each of `count` sequences.
absl::StatusOr<std::vector<AdapterId>> ChooseAdapters(
    const std::vector<std::string>& chosen, const AdapterSet& adapters,
    size_t count) {
  std::vector<AdapterId> ids(count);
  if (chosen.empty()) return ids;
  for (size_t i = 0; i < count; ++i) {
    const std::string& folder = chosen.size() == 1 ? chosen[0] : chosen[i];
    if (folder == kNoAdapter) continue;
    QUIRE_ASSIGN_OR_RETURN(ids[i], FindAdapter(adapters, folder));
  }
  return ids;
}

// What is not given is the model's own, as far as it fits in a sequence.
uint64_t NewTokens(const GenerateOptions& options,
                   const GenerationConfig& config, Session& session,
                   uint64_t prompt) {
  if (options.max_new_tokens_given) return options.max_new_tokens;
  uint64_t tokens = config.max_new_tokens.value_or(kDefaultNewTokens);
  if (config.max_length)
    tokens = std::min(tokens, SaturatingSubtract(*config.max_length, prompt));
  return std::min(tokens, SaturatingSubtract(
                              session.cache().max_sequence_length(), prompt));
}

// The sequences of prompt i are those from i * continuations on.
std::vector<std::string> Titles(const std::vector<Prompt>& prompts,
                                uint32_t continuations) {
  std::vector<std::string> titles;
  for (const Prompt& prompt : prompts) {
    for (uint32_t i = 1; i <= continuations; ++i)
      titles.push_back(continuations == 1
                           ? prompt.title
                           : absl::StrCat(prompt.title, " (", i, " of ",
                                          continuations, ")"));
  }
  return titles;
}

nlohmann::json CompletionJson(const Completion& completion,
                              const nlohmann::json& text) {
  return {{"tokens", completion.tokens},
          {"text", text},
          {"finish_reason", FinishReasonName(completion.reason)}};
}

absl::Status PrintCompletions(const GenerateOptions& options,
                              const std::vector<Prompt>& prompts,
                              const Session& session, const Engine& engine,
                              const Tokenizer* tokenizer, StreamView* view) {
  const std::vector<Completion>& completions = engine.completions();
  if (!options.json)
    return view->Finish(Titles(prompts, options.continuations));
  std::vector<nlohmann::json> sequences;
  for (size_t i = 0; i < completions.size(); ++i) {
    sequences.push_back(CompletionJson(
        completions[i], tokenizer != nullptr ? nlohmann::json(view->text(i))
                                             : nlohmann::json()));
    if (options.continuations == 1) continue;
    sequences.back()["prompt"] = i / options.continuations;
    sequences.back()["continuation"] = i % options.continuations;
  }
  nlohmann::json result = sequences.size() == 1
                              ? std::move(sequences[0])
                              : nlohmann::json{{"sequences", sequences}};
  result["kv_layout"] = session.kv_layout();
  result["memory"] = MemoryJson(session);
  result["load"] = LoadJson(session);
  return PrintJson(result);
}

// Of a sequence halfway through its new tokens, for --layers-per-row auto.
uint64_t MeanTokens(const GenerateOptions& options,
                    const std::vector<Prompt>& prompts) {
  uint64_t tokens = 0;
  for (const Prompt& prompt : prompts)
    tokens = SaturatingAdd(tokens, prompt.tokens.size());
  return SaturatingAdd(tokens / prompts.size(), options.max_new_tokens / 2);
}

absl::Status Generate(GenerateOptions options) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         OpenRunnable(options.model));
  // A checkpoint without a tokenizer can still be driven by token ids.
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(options.model);
  if (!tokenizer.ok() && !options.prompts.empty())
    return absl::Status(
        tokenizer.status().code(),
        absl::StrCat(tokenizer.status().message(),
                     "; --tokens takes token ids, without a tokenizer"));
  const Tokenizer* text = tokenizer.ok() ? tokenizer->get() : nullptr;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                         ReadPrompts(options, text));

  if (options.session.kv_workload.mean_tokens == 0)
    options.session.kv_workload.mean_tokens = MeanTokens(options, prompts);
  options.session.streaming.progress = LoadProgressIn(options.progress);
  QUIRE_RETURN_IF_ERROR(ChooseOwnAdapter(options.model, &options.adapters));
  options.session.adapters = NameAdapters(options.adapters);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         OpenVerified(std::move(checkpoint), options.session));
  PrintModelWarnings(*session);
  // Who leaves the choice to the program learns what it was.
  if (options.session.layers_per_row == kAutoLayersPerRow)
    PrintMessage(absl::StrCat("KV layout: ", session->kv_layout(), "\n"));
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<AdapterId> adapters,
      ChooseAdapters(options.adapters, session->adapters(), prompts.size()));

  std::vector<TokenId> eos_tokens;
  if (!options.ignore_eos) {
    QUIRE_ASSIGN_OR_RETURN(eos_tokens, EosTokens(*session, text));
  }

  QUIRE_ASSIGN_OR_RETURN(const GenerationConfig generation,
                         ParseGenerationConfig(session->checkpoint()));
  const SamplingOptions& sampling =
      options.sampling_given ? options.sampling : generation.sampling;

  const size_t sequences = prompts.size() * options.continuations;
  StreamView view(sequences, !options.json && IsInteractive());
  std::vector<OutputText> outputs;
  for (size_t i = 0; i < sequences; ++i)
    outputs.emplace_back(text, options.stop);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      Engine::Create(&session->decoder(), &session->cache(),
                     options.session.ForEngine(), &session->adapters()));
  engine->set_make_room(
      [&](Bytes missing) { return session->MakeRoom(missing); });
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i].tokens;
    request.max_new_tokens =
        NewTokens(options, generation, *session, request.prompt.size());
    request.sampling = sampling;
    // Each sequence draws its own numbers.
    const size_t first = i * options.continuations;
    request.continuations = options.continuations;
    request.sampling.seed = options.sampling.seed + first;
    request.adapter = adapters[i];
    request.eos_tokens = eos_tokens;
    request.on_token = [&, first](TokenId token, uint32_t continuation) {
      const size_t sequence = first + continuation;
      const StopChecker::Step step = outputs[sequence].Push(token);
      view.Append(sequence, step.text);
      return step.reason == StopReason::kNone;
    };
    QUIRE_RETURN_IF_ERROR(engine->Add(std::move(request)).status());
  }
  session->runtime().trace()->Mark("generate");
  while (!engine->done()) {
    QUIRE_RETURN_IF_ERROR(engine->Step());
    QUIRE_RETURN_IF_ERROR(view.Refresh());
  }
  for (size_t i = 0; i < sequences; ++i)
    view.Append(i, outputs[i].Finish(engine->completions()[i].reason));
  QUIRE_RETURN_IF_ERROR(
      PrintCompletions(options, prompts, *session, *engine, text, &view));
  return WriteMemoryOutput(options.memory, *session);
}

// Those that decide how tokens are chosen, --seed not among them.
std::vector<CLI::Option*> AddSamplingOptions(CLI::App* verb,
                                             SamplingOptions* sampling) {
  verb->add_option("--seed", sampling->seed, "Of the random numbers")
      ->capture_default_str();
  const std::vector<CLI::Option*> options = {
      verb->add_option("--temperature", sampling->temperature,
                       "0: the likeliest token each time. With none of these "
                       "options, as the model's generation_config.json says"),
      verb->add_option("--top-k", sampling->top_k,
                       "Choose among so many likeliest tokens; 0: all"),
      verb->add_option(
          "--top-p", sampling->top_p,
          "Choose among the likeliest tokens of this total probability"),
      verb->add_option("--min-p", sampling->min_p,
                       "Leave out tokens below this part of the likeliest's "
                       "probability"),
      verb->add_option("--repetition-penalty", sampling->repetition_penalty,
                       "Above 1 makes tokens already there less likely")};
  for (CLI::Option* const option : options) option->capture_default_str();
  return options;
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
  CLI::Option* max_new_tokens = verb->add_option(
      "--max-new-tokens", options->max_new_tokens,
      "Tokens to add at most; else what the model's generation_config.json "
      "says");
  max_new_tokens->capture_default_str();
  verb->add_option("--n", options->continuations,
                   "Continuations of each prompt, which is computed once; "
                   "sequence i of all, from 0 on, draws with --seed plus i")
      ->check(CLI::Range(1, 4096))
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
  const std::vector<CLI::Option*> sampling =
      AddSamplingOptions(verb, &options->sampling);
  verb->add_flag("--json", options->json,
                 "{\"tokens\": [...], \"text\": ..., \"memory\": {...}}; "
                 "{\"sequences\": [...], \"memory\": {...}} for several");
  AddAdapterOption(verb, &options->adapters,
                   "Folder of a LoRA adapter for all sequences; or one for "
                   "each in their order, --prompt before --tokens, where "
                   "'none' is the base model");
  AddSessionOptions(verb, &options->session);
  AddReadOptions(verb, &options->session.streaming);
  AddProgressOption(verb, &options->progress);
  AddKvCacheOptions(verb, &options->session);
  AddBatchOptions(verb, &options->session);
  AddMemoryOutputOptions(verb, &options->memory);
  verb->callback([=] {
    if (prompt->empty() && tokens->empty())
      throw CLI::RequiredError("--prompt or --tokens");
    const size_t sequences = options->prompts.size() + options->tokens.size();
    if (options->adapters.size() > 1 && options->adapters.size() != sequences)
      throw CLI::ValidationError(absl::StrCat(
          "--adapter: ", options->adapters.size(), " for ", sequences,
          " sequence(s): one for all, or one for each"));
    options->max_new_tokens_given = max_new_tokens->count() > 0;
    options->sampling_given = std::any_of(
        sampling.begin(), sampling.end(),
        [](const CLI::Option* option) { return option->count() > 0; });
    // Where --temperature 0 is given, it is the choice that counts.
    for (const char* option : {"--top-k", "--top-p", "--min-p"})
      RejectIdleOption(
          *verb, option,
          options->sampling.temperature != 0 || IsGiven(*verb, "--temperature"),
          "without --temperature above 0");
    RejectBadOptions(options->sampling.Validate());
    FinishSessionOptions(*verb, &options->session);
    *chosen = [=] {
      return WithAllThatIsMissing(Generate(*options), options->model,
                                  options->session, options->adapters);
    };
  });
}

}  // namespace quire
