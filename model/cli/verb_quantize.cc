// quire quantize, quire perplexity

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/runnable.h"
#include "model/cli/verbs.h"
#include "model/cli/verification.h"
#include "model/quantizer/activation_cache.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/device_map.h"
#include "quire/loader/process_memory.h"
#include "quire/loader/regular_file.h"
#include "quire/model/quantizer.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

struct QuantizeVerbOptions {
  std::string model;
  std::string out;
  std::string calibration_file;
  std::string method = "gptq";
  bool asymmetric = false;
  bool no_mse = false;
  uint32_t sequences = 32;
  uint32_t sequence_length = 256;
  uint64_t seed = 0;
  Bytes weight_cache = GiB(1);
  QuantizeOptions quantize;
  SessionOptions session;
  bool json = false;
};

// "WHAT 3 of 30" on one line of stderr, redrawn; nothing where nobody watches.
void ShowProgress(const char* what, uint64_t done, uint64_t total) {
  if (!IsInteractive()) return;
  PrintMessage(absl::StrFormat("\r%s %d of %d\033[K%s", what, done, total,
                               done == total ? "\r\033[K" : ""));
}

// Null where the model has no tokenizer and the text to calibrate with is none
// of a file.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const QuantizeVerbOptions& options) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(options.model);
  if (absl::IsNotFound(tokenizer.status()) && options.calibration_file.empty())
    return nullptr;
  return tokenizer;
}

// `tokenizer` is there where a file is to be read.
absl::StatusOr<std::vector<std::vector<TokenId>>> CalibrationTokens(
    const QuantizeVerbOptions& options, const Tokenizer* tokenizer,
    Session* session) {
  if (options.calibration_file.empty()) {
    // Before the text is written, which takes a while.
    QUIRE_RETURN_IF_ERROR(CheckActivationCache(
        ActivationCacheBytes(
            uint64_t{options.sequences} * options.sequence_length,
            options.sequence_length, session->config().hidden_size),
        options.quantize.activation_cache));
    return SampleCalibration(
        *session, options.sequences, options.sequence_length, options.seed,
        [](uint32_t done, uint32_t total) {
          ShowProgress("sampling calibration text, token", done, total);
        });
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string text,
                         ReadRegularFile(options.calibration_file));
  const std::vector<TokenId> tokens = tokenizer->Encode(text);
  if (tokens.empty())
    return absl::InvalidArgumentError(options.calibration_file +
                                      ": has no tokens to calibrate with");
  return CutCalibration(tokens, options.sequences, options.sequence_length);
}

// Of the weight cache, the rings that weights pass through: first when they are
// loaded, then whenever a layer comes from disk.
constexpr int kRingBuffers = 4;
constexpr Bytes kLoadBuffer = MiB(4);
constexpr Bytes kDiskBuffer = MiB(2);
constexpr Bytes kRings =
    Bytes(kRingBuffers * (kLoadBuffer.value() + kDiskBuffer.value()));

// Keeps what fits into the cache on the host, and the rest on disk: the device
// has the part at work and the next one.
void PlaceInCache(Bytes cache, SessionOptions* session) {
  session->streaming.buffers = kRingBuffers;
  session->streaming.buffer_size = kLoadBuffer;
  session->placement.offload.buffers = kRingBuffers;
  session->placement.offload.buffer_size = kDiskBuffer;
  // Who says where the weights go is taken at their word.
  if (session->placement.in_use()) return;
  session->placement.device_map = "sequential";
  session->placement.max_memory = {
      {kHostPlace, SaturatingSubtract(cache, kRings)},
      {kDiskPlace, Bytes(UINT64_MAX)}};
}

// What the calibration and the caches make of the session's options.
void AdaptSession(QuantizeVerbOptions* options) {
  SessionOptions& session = options->session;
  PlaceInCache(options->weight_cache, &session);
  session.placement.embedding_by_rows = false;  // it is written whole
  session.max_sequences = std::max(session.max_sequences, options->sequences);
  session.decoder.max_logit_rows =
      std::max(session.decoder.max_logit_rows, options->sequences);
}

absl::Status Quantize(QuantizeVerbOptions options) {
  QuantizeOptions& quantize = options.quantize;
  quantize.method = options.method == "gptq" ? QuantizeMethod::kGptq
                                             : QuantizeMethod::kRoundToNearest;
  quantize.sym = !options.asymmetric;
  quantize.mse = !options.no_mse;
  quantize.progress = [](const QuantizeProgress& progress) {
    ShowProgress("quantising layer", progress.layer, progress.layers);
  };
  // Before the work: an unusable folder should say so at once.
  QUIRE_RETURN_IF_ERROR(CheckQuantizeOutput(options.out));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         OpenRunnable(options.model));
  QUIRE_RETURN_IF_ERROR(CheckQuantizeSource(*checkpoint));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AnonymousPeakSampler> sampler,
                         AnonymousPeakSampler::Start());
  options.session.streaming.progress = LoadProgressLine();
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                         LoadTokenizer(options));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Open(std::move(checkpoint), options.session));
  std::vector<std::vector<TokenId>> calibration;
  if (quantize.method == QuantizeMethod::kGptq) {
    QUIRE_ASSIGN_OR_RETURN(
        calibration,
        CalibrationTokens(options, tokenizer.get(), session.get()));
  }
  QUIRE_ASSIGN_OR_RETURN(const QuantizeReport report,
                         QuantizeModel(*session, tokenizer.get(), options.out,
                                       calibration, quantize));
  const Bytes anonymous_peak = sampler->Stop();
  const OffloadStatistics weights = session->weights().GetOffloadStatistics();
  if (options.json)
    return PrintJson({{"modules", report.modules},
                      {"calibration_tokens", report.calibration_tokens},
                      {"bytes", report.bytes.value()},
                      {"seconds", report.seconds},
                      {"activation_cache", report.activation_cache.value()},
                      {"weight_cache", weights.host.value()},
                      {"layer", report.layer.value()},
                      {"anonymous_peak", anonymous_peak.value()}});
  return PrintText(absl::StrFormat(
      "%s: %d modules at %d bits, %s, %d calibration tokens, %.1f s\n"
      "anonymous peak  %s (activations %s, weights %s, layer %s)\n",
      options.out, report.modules, quantize.bits, FormatBytes(report.bytes),
      report.calibration_tokens, report.seconds, FormatBytes(anonymous_peak),
      FormatBytes(report.activation_cache), FormatBytes(weights.host),
      FormatBytes(report.layer)));
}

void RejectIdleOptions(const CLI::App& verb,
                       const QuantizeVerbOptions& options) {
  RejectIdleOption(verb, "--seed", !IsGiven(verb, "--calibration-file"),
                   "with --calibration-file");
  RejectIdleOption(verb, "--weight-cache", !options.session.placement.in_use(),
                   "with --device-map or --max-memory");
}

// What calibration alone reads. No wrong usage: methods are compared with
// options that are the same otherwise.
void WarnOfIdleOptions(const CLI::App& verb,
                       const QuantizeVerbOptions& options) {
  if (options.method == "gptq") return;
  for (const char* option :
       {"--act-order", "--static-groups", "--damp-percent",
        "--calibration-file", "--calibration-sequences", "--calibration-length",
        "--seed", "--activation-cache"})
    if (IsGiven(verb, option))
      PrintWarning(absl::StrCat(AsGiven(verb, option),
                                " has no effect with --method ",
                                options.method));
}

struct PerplexityOptions {
  std::string model;
  std::string text_file;
  uint32_t window = 512;
  uint64_t max_tokens = 16384;
  SessionOptions session;
  bool json = false;
};

absl::Status Perplexity(PerplexityOptions options) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         OpenRunnable(options.model));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                         Tokenizer::Load(options.model));
  QUIRE_ASSIGN_OR_RETURN(const std::string text,
                         ReadRegularFile(options.text_file));
  std::vector<TokenId> tokens = tokenizer->Encode(text);
  if (tokens.size() > options.max_tokens) tokens.resize(options.max_tokens);
  options.session.streaming.progress = LoadProgressLine();
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         OpenVerified(std::move(checkpoint), options.session));
  PrintModelWarnings(*session);
  QUIRE_ASSIGN_OR_RETURN(const double perplexity,
                         ComputePerplexity(*session, tokens, options.window,
                                           [](uint64_t done, uint64_t total) {
                                             ShowProgress("window", done,
                                                          total);
                                           }));
  const uint64_t used = tokens.size() / options.window * options.window;
  if (options.json)
    return PrintJson({{"perplexity", perplexity},
                      {"tokens", used},
                      {"window", options.window}});
  return PrintText(
      absl::StrFormat("perplexity %.4f over %d tokens\n", perplexity, used));
}

void AddPerplexityVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* verb = app->add_subcommand(
      "perplexity", "How well a model predicts a text; lower is better");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_option("--text-file", options->text_file, "The text")->required();
  verb->add_option("--window", options->window,
                   "Tokens that are predicted from each other")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_option("--max-tokens", options->max_tokens,
                   "Tokens of the text to use at most")
      ->capture_default_str();
  verb->add_flag("--json", options->json, "Machine-readable");
  AddReadOptions(verb, &options->session.streaming);
  AddSessionOptions(verb, &options->session);
  AddKvCacheOptions(verb, &options->session);
  verb->callback([=] {
    FinishSessionOptions(*verb, &options->session);
    *chosen = [=] {
      return WithAllThatIsMissing(Perplexity(*options), options->model,
                                  options->session, {});
    };
  });
}

}  // namespace

void AddQuantizeVerbs(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<QuantizeVerbOptions>();
  QuantizeOptions& quantize = options->quantize;
  CLI::App* verb = app->add_subcommand(
      "quantize", "Writes a GPTQ checkpoint of a plain or GGUF model");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_option("OUT", options->out, "Folder to write; new or empty")
      ->required();
  verb->add_option("--bits", quantize.bits, "2, 3, 4 or 8")
      ->check(CLI::IsMember({2, 3, 4, 8}))
      ->capture_default_str();
  verb->add_option("--group-size", quantize.group_size,
                   "Inputs that share a scale; -1: all")
      ->capture_default_str();
  verb->add_flag("--act-order", quantize.act_order,
                 "Round the inputs with the largest activations first");
  verb->add_flag("--static-groups", quantize.static_groups,
                 "Keep groups sequential under --act-order");
  verb->add_flag("--asymmetric", options->asymmetric,
                 "Zero points of their own (written as gptq_v2)");
  verb->add_flag("--no-mse", options->no_mse,
                 "Fit scales to the largest weight");
  verb->add_option("--damp-percent", quantize.damping,
                   "Part of the Hessian's mean diagonal to add to it")
      ->capture_default_str();
  verb->add_option("--method", options->method,
                   "gptq, or rtn: round to nearest, without calibration")
      ->check(CLI::IsMember({"gptq", "rtn"}))
      ->capture_default_str();
  verb->add_option("--calibration-file", options->calibration_file,
                   "Text to calibrate with [text the model writes itself]");
  verb->add_option("--calibration-sequences", options->sequences,
                   "Sequences to calibrate with")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--calibration-length", options->sequence_length,
                   "Tokens of each")
      ->check(CLI::Range(2, 65536))
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "Of the sampled text")
      ->capture_default_str();
  AddBytesOption(verb, "--activation-cache", &quantize.activation_cache,
                 "Host memory for the activations of the calibration tokens "
                 "[1GiB]");
  AddBytesOption(verb, "--weight-cache", &options->weight_cache,
                 "Host memory for the weights of MODEL, at least " +
                     FormatBytes(kRings) +
                     "; what does not fit is read from its files when its "
                     "turn comes [1GiB]");
  verb->add_flag("--json", options->json, "Machine-readable");
  AddSessionOptions(verb, &options->session);
  verb->callback([=] {
    if (options->weight_cache < kRings)
      throw CLI::ValidationError(
          "--weight-cache", FormatBytes(options->weight_cache) +
                                ": takes at least " + FormatBytes(kRings) +
                                ", for the rings that weights pass through");
    FinishSessionOptions(*verb, &options->session, {.places_weights = true});
    RejectIdleOptions(*verb, *options);
    WarnOfIdleOptions(*verb, *options);
    RejectBadOptions(options->quantize.Validate());
    AdaptSession(options.get());
    *chosen = [=] {
      return WithAllThatIsMissing(Quantize(*options), options->model,
                                  options->session, {});
    };
  });
  AddPerplexityVerb(app, chosen);
}

}  // namespace quire
