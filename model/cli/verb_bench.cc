// quire bench: prompt and decode speed, and the bandwidth that decoding reads
// weights with.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "model/cli/memory_output.h"
#include "model/cli/offload_bound.h"
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/runnable.h"
#include "model/cli/verbs.h"
#include "model/cli/verification.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"

namespace quire {
namespace {

struct BenchOptions {
  std::string model;
  uint32_t prompt_tokens = 128;
  uint32_t new_tokens = 64;
  uint32_t sequences = 1;
  SessionOptions session;
  MemoryOutputOptions memory;
  bool json = false;
};

// `run` makes the prompts those of this run alone: a cache that keeps prefixes
// knows none of them.
absl::StatusOr<EngineStatistics> Run(const BenchOptions& options, uint32_t run,
                                     Session* session) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                         Engine::Create(&session->decoder(), &session->cache(),
                                        options.session.ForEngine()));
  engine->set_make_room(
      [&](Bytes missing) { return session->MakeRoom(missing); });
  const uint32_t vocab = session->config().vocab_size;
  for (uint32_t s = 0; s < options.sequences; ++s) {
    Request request;
    // Any tokens will do: speed does not depend on them.
    for (uint32_t i = 0; i < options.prompt_tokens; ++i)
      request.prompt.push_back(
          static_cast<TokenId>((uint64_t{run} * 15485863 + uint64_t{s} * 7919 +
                                uint64_t{i} * 104729) %
                               vocab));
    request.max_new_tokens = options.new_tokens;
    QUIRE_RETURN_IF_ERROR(engine->Add(std::move(request)).status());
  }
  QUIRE_RETURN_IF_ERROR(engine->RunToCompletion());
  return engine->statistics();
}

double PerSecond(double count, double seconds) {
  return seconds > 0 ? count / seconds : 0;
}

// Of the steps that decoded tokens: what came from elsewhere for each, and the
// rate of steps that moving these bytes, and reading all weights, would allow.
absl::StatusOr<nlohmann::json> OffloadJson(Session* session, Bytes before,
                                           const EngineStatistics& statistics,
                                           double decode_steps) {
  const Bytes streamed = SaturatingSubtract(
      session->weights().GetOffloadStatistics().streamed, before);
  const Bytes per_step(streamed.value() /
                       std::max<uint64_t>(statistics.steps, 1));
  QUIRE_ASSIGN_OR_RETURN(
      const OffloadBound bound,
      MeasureOffloadBound(session, session->weights().BytesPerToken(),
                          per_step));
  return nlohmann::json{
      {"copy_bytes_per_second", bound.copy_bytes_per_second},
      {"streamed_bytes_per_step", per_step.value()},
      {"bound_steps_per_second", PerSecond(1, bound.seconds_per_step)},
      {"of_bound", decode_steps * bound.seconds_per_step}};
}

absl::Status Bench(BenchOptions options) {
  options.session.streaming.progress = LoadProgressLine();
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.model));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         OpenVerified(std::move(checkpoint), options.session));
  // The first run faults pages in and starts threads; the second is counted.
  QUIRE_RETURN_IF_ERROR(Run(options, 0, session.get()).status());
  const Bytes streamed = session->weights().GetOffloadStatistics().streamed;
  QUIRE_ASSIGN_OR_RETURN(const EngineStatistics statistics,
                         Run(options, 1, session.get()));

  // The steps that compute prompts also yield the first token of each sequence.
  const double decoded =
      static_cast<double>(statistics.decoded_tokens - options.sequences);
  const double prompt_rate = PerSecond(
      static_cast<double>(statistics.prompt_tokens), statistics.prompt_seconds);
  const double decode_rate = PerSecond(decoded, statistics.decode_seconds);
  const double weight_bytes =
      static_cast<double>(session->weights().BytesPerToken().value());
  // A step reads every weight once, whatever the batch.
  const double bandwidth = weight_bytes * decode_rate / options.sequences;
  const AllocatorStatistics memory =
      session->runtime().allocator()->GetStatistics();
  const Bytes kv_held = session->cache().Use().held;
  nlohmann::json offload;
  if (!session->weights().stores().empty()) {
    QUIRE_ASSIGN_OR_RETURN(offload,
                           OffloadJson(session.get(), streamed, statistics,
                                       decode_rate / options.sequences));
  }
  if (options.json) {
    QUIRE_RETURN_IF_ERROR(PrintJson(
        {{"prompt_tokens_per_second", prompt_rate},
         {"decode_tokens_per_second", decode_rate},
         {"weight_bytes_per_token", weight_bytes},
         {"read_bytes_per_second", bandwidth},
         {"sequences", options.sequences},
         {"threads", session->pool().threads()},
         {"simd", SimdTargetName()},
         {"memory_mapped", memory.mapped_bytes},
         {"kv_cache", KvCacheKindName(options.session.kv_cache)},
         {"kv_committed", kv_held.value()},
         {"kv_layout", session->kv_layout()},
         {"preemptions", statistics.preemptions},
         {"swaps", statistics.swaps},
         {"decode_steps", statistics.decode_steps},
         {"decode_steps_waiting", statistics.decode_steps_waiting},
         {"driver_calls_on_critical_path", statistics.driver_calls},
         {"driver_calls_off_critical_path", statistics.driver_calls_meanwhile},
         {"memory", MemoryJson(*session)},
         {"offload", std::move(offload)},
         {"load", LoadJson(*session)},
         {"load_seconds", session->weights().load_report().seconds}}));
  } else {
    QUIRE_RETURN_IF_ERROR(PrintText(absl::StrFormat(
        "prompt   %10.1f tokens/s   (%d sequences of %d tokens)\n"
        "decode   %10.1f tokens/s   (%d tokens each)\n"
        "weights  %10s read per step, %s/s\n"
        "memory   %10s mapped for weights and workspace, %s for KV\n"
        "driver   %d calls that steps waited for, %d while they were "
        "computed; %d of %d decode steps waited\n"
        "layout   %s\n"
        "machine  %d threads, %s\n",
        prompt_rate, options.sequences, options.prompt_tokens, decode_rate,
        options.new_tokens,
        FormatBytes(Bytes(static_cast<uint64_t>(weight_bytes))),
        FormatBytes(Bytes(static_cast<uint64_t>(bandwidth))),
        FormatBytes(Bytes(memory.mapped_bytes)), FormatBytes(kv_held),
        statistics.driver_calls, statistics.driver_calls_meanwhile,
        statistics.decode_steps_waiting, statistics.decode_steps,
        session->kv_layout(), session->pool().threads(), SimdTargetName())));
  }
  return WriteMemoryOutput(options.memory, *session);
}

}  // namespace

void AddBenchVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app->add_subcommand(
      "bench", "Prompt and decode speed, bandwidth and memory");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_option("--prompt-tokens", options->prompt_tokens,
                   "Tokens of each prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--new-tokens", options->new_tokens,
                   "Tokens to decode for each sequence")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_option("--sequences", options->sequences, "Sequences in the batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "Machine-readable");
  AddSessionOptions(verb, &options->session);
  AddReadOptions(verb, &options->session.streaming);
  AddKvCacheOptions(verb, &options->session);
  AddBatchOptions(verb, &options->session);
  AddMemoryOutputOptions(verb, &options->memory);
  verb->callback([=] {
    FinishSessionOptions(*verb, &options->session);
    // The lengths are known here: those halfway through the decoding.
    if (options->session.kv_workload.mean_tokens == 0)
      options->session.kv_workload.mean_tokens =
          uint64_t{options->prompt_tokens} + options->new_tokens / 2;
    *chosen = [=] {
      return WithAllThatIsMissing(Bench(*options), options->model,
                                  options->session, {});
    };
  });
}

}  // namespace quire
