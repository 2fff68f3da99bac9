// kv_stress: requests of a trace, or random ones, through KV caches on a
// software device.
//
// Each cache sees the same requests through the same scheduler. What driver
// calls and the model would take on a GPU is added up on a virtual clock.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/kv_stress/bursts.h"
#include "bench/kv_stress/report.h"
#include "bench/kv_stress/simulation.h"
#include "bench/kv_stress/traces.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct Options {
  std::string trace;
  std::string model;
  std::string device_memory = "8GiB";
  double memory_utilization = 0.9;
  std::string page_size = "2MiB";
  std::string headroom = "256MiB";
  uint32_t layers = 36;
  uint32_t kv_heads = 8;
  uint32_t head_dim = 128;
  std::string dtype = "f16";
  std::vector<std::string> caches;
  std::vector<uint32_t> layers_per_row = {1, 4, 36};
  double waste_limit = 0.02;
  uint64_t map_ahead = 0;
  std::optional<uint32_t> page_ahead;
  bool park = false;
  RandomRequestOptions random;
  uint64_t requests = 0;
  double load_factor = 1;
  bool saturate = false;
  double arrivals_per_second = 1;
  uint64_t max_model_len = 0;
  uint32_t max_sequences = 256;
  uint32_t max_batched_tokens = 2048;
  double halve_above = 0.85;
  double grow_below = 0.60;
  std::string policy = "youngest";
  std::string costs = QUIRE_SOURCE_DIR "/bench/costs/a100-80g.json";
  std::vector<double> create_us;
  std::vector<std::string> burst_models;
  bool json = false;
};

// The options that a file or the memory of a card does not decide.
void AddOptions(CLI::App* app, Options* options) {
  const CLI::Validator is_size(
      [](std::string& text) {
        const auto bytes = ParseBytes(text);
        return bytes ? std::string() : "'" + text + "' is no size, as 8GiB is";
      },
      "SIZE");
  std::vector<std::string> models;
  for (const StressModel& model : StressModels()) models.push_back(model.name);
  app->add_option(
      "--trace", options->trace,
      "Requests: a file of the azure, mooncake or vidur traces, or\n"
      "a file or folder of servegen. Default: random ones");
  app->add_option("--model", options->model,
                  "Whose KV cache it is; its weights take of the device memory")
      ->check(CLI::IsMember(models));
  app->add_option("--device-memory", options->device_memory,
                  "Physical memory of the device")
      ->check(is_size)
      ->capture_default_str();
  app->add_option("--gpu-memory-utilization", options->memory_utilization,
                  "The part of it for weights and cache, with --model")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app->add_option("--page-size", options->page_size, "A multiple of 2MiB")
      ->check(is_size)
      ->capture_default_str();
  app->add_option("--headroom", options->headroom,
                  "Memory that admissions leave free")
      ->check(is_size)
      ->capture_default_str();
  app->add_option("--caches", options->caches,
                  "Kinds of cache: contiguous:G with G layers to a row,\n"
                  "contiguous:all, contiguous:auto, blocks:N with N tokens to\n"
                  "a block, static. Default: all of these with --model, else\n"
                  "those of --layers-per-row")
      ->delimiter(',');
  app->add_option(
         "--waste-limit", options->waste_limit,
         "What contiguous:auto may lose to partly used pages and to what is\n"
         "backed ahead, of what sequences keep")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--layers-per-row", options->layers_per_row,
                  "Contiguous caches without --model or --caches")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--layers", options->layers, "Without --model")
      ->capture_default_str();
  app->add_option("--kv-heads", options->kv_heads)->capture_default_str();
  app->add_option("--head-dim", options->head_dim)->capture_default_str();
  app->add_option("--dtype", options->dtype, "Of the cache")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  app->add_option("--map-ahead", options->map_ahead,
                  "Pages mapped beyond the need, per group of layers")
      ->capture_default_str();
  app->add_option("--page-ahead", options->page_ahead,
                  "Steps that contiguous caches map ahead at most, while the\n"
                  "device computes; requests are then released and admitted\n"
                  "meanwhile too, and pages created at the start. 0: all when\n"
                  "it is needed. Default: 8 with --model, else 0")
      ->check(CLI::Range(0u, 1024u));
  app->add_flag("--park", options->park,
                "With page-ahead too, what ends stays mapped for whom it fits");
  app->add_option("--requests", options->requests,
                  "So many requests; 0: all of a trace (of servegen 10000), "
                  "2000 random ones")
      ->capture_default_str();
  app->add_option("--load-factor", options->load_factor,
                  "Requests of the trace arrive so many times faster")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app->add_flag("--saturate", options->saturate, "All arrive at once");
  app->add_option("--arrivals-per-second", options->arrivals_per_second,
                  "Of traces without times")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app->add_option("--arrivals-per-step", options->random.arrivals_per_step,
                  "Mean number of random requests that arrive in a step")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app->add_option("--prompt-mean", options->random.prompt_mean,
                  "Of random requests, in tokens; lengths are exponential")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app->add_option("--output-mean", options->random.output_mean)
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app->add_option("--seed", options->random.seed)->capture_default_str();
  app->add_option("--max-model-len,--max-sequence-length",
                  options->max_model_len,
                  "Tokens of a request; longer ones are left out, random ones\n"
                  "cut. Default: the model's own limit, else 8192")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 32));
  app->add_option("--max-num-seqs,--max-sequences", options->max_sequences)
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  app->add_option("--max-num-batched-tokens", options->max_batched_tokens)
      ->check(CLI::Range(1u, 1u << 30))
      ->capture_default_str();
  app->add_option("--halve-above", options->halve_above,
                  "Use of the cache above which the batch is halved")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--grow-below", options->grow_below,
                  "Use of the cache below which it is doubled")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--victims", options->policy, "Who is preempted")
      ->check(CLI::IsMember({"youngest", "lru", "page-aware"}))
      ->capture_default_str();
  app->add_option("--costs", options->costs,
                  "Of driver calls and of the model, on the virtual clock")
      ->check(CLI::ExistingFile)
      ->capture_default_str();
  app->add_option("--create-us", options->create_us,
                  "Costs of creating a page; default: all of the file")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e6));
  app->add_option(
         "--bursts", options->burst_models,
         "Instead: these models take turns on the device, with a burst\n"
         "of the random requests each, three times over")
      ->delimiter(',')
      ->check(CLI::IsMember(models));
  app->add_flag("--json", options->json,
                "Print JSON, with one object for each cache");
}

struct Workload {
  std::vector<StressRequest> requests;
  uint64_t too_long = 0;
};

absl::StatusOr<Workload> MakeWorkload(const Options& options,
                                      uint64_t max_model_len) {
  Workload workload;
  if (options.trace.empty()) {
    RandomRequestOptions random = options.random;
    if (options.requests > 0) random.requests = options.requests;
    random.max_sequence_length = max_model_len;
    workload.requests = MakeRandomRequests(random);
  } else {
    TraceOptions trace;
    if (options.requests > 0) trace.max_requests = options.requests;
    trace.arrivals_per_second = options.arrivals_per_second;
    trace.seed = options.random.seed;
    QUIRE_ASSIGN_OR_RETURN(workload.requests, ReadTrace(options.trace, trace));
  }
  workload.too_long =
      std::erase_if(workload.requests, [&](const StressRequest& request) {
        return request.tokens() > max_model_len;
      });
  for (StressRequest& request : workload.requests)
    request.arrival =
        options.saturate ? 0 : request.arrival / options.load_factor;
  return workload;
}

KvDType ParseDType(const std::string& name) {
  return name == "f32"    ? KvDType::kF32
         : name == "bf16" ? KvDType::kBF16
                          : KvDType::kF16;
}

// Of weights and caches.
Bytes UsableMemory(const Options& options) {
  return Bytes(static_cast<uint64_t>(
      static_cast<double>(ParseBytes(options.device_memory)->value()) *
      options.memory_utilization));
}

absl::StatusOr<SimulationOptions> MakeSimulation(const Options& options) {
  SimulationOptions simulation;
  simulation.dtype = ParseDType(options.dtype);
  simulation.kv_memory = *ParseBytes(options.device_memory);
  if (const StressModel* const model = FindStressModel(options.model)) {
    simulation.model = *model;
    simulation.kv_memory =
        SaturatingSubtract(UsableMemory(options), model->weights);
    if (simulation.kv_memory.zero())
      return absl::InvalidArgumentError(absl::StrCat(
          "the weights of ", options.model, ", ", FormatBytes(model->weights),
          ", leave nothing of ", options.device_memory));
  } else {
    simulation.model = {.name = "",
                        .layers = options.layers,
                        .query_heads = options.kv_heads,
                        .kv_heads = options.kv_heads,
                        .head_dim = options.head_dim,
                        .max_positions = 8192};
  }
  simulation.cache.shape = simulation.model.Shape(simulation.dtype);
  simulation.cache.max_sequence_length = options.max_model_len == 0
                                             ? simulation.model.max_positions
                                             : options.max_model_len;
  simulation.cache.max_sequences = options.max_sequences;
  simulation.cache.page_size = *ParseBytes(options.page_size);
  simulation.cache.headroom = *ParseBytes(options.headroom);
  simulation.cache.map_ahead = PageCount(options.map_ahead);
  const uint32_t page_ahead =
      options.page_ahead.value_or(options.model.empty() ? 0 : 8);
  simulation.cache.page_ahead = page_ahead;
  simulation.cache.eager_reclaim = page_ahead > 0 && !options.park;
  simulation.prepare_pages = page_ahead > 0;
  simulation.scheduler.prepare_next = page_ahead > 0;
  simulation.scheduler.max_num_seqs = options.max_sequences;
  simulation.scheduler.max_num_batched_tokens = options.max_batched_tokens;
  simulation.scheduler.batch_limit = {options.halve_above, options.grow_below};
  simulation.policy = options.policy;
  simulation.clock_is_steps = options.trace.empty();
  return simulation;
}

// Of a sequence at a step of its life: there is one for each of its new tokens,
// and half of them are there on average. With page-ahead a prompt is backed
// whole, a step before its first tokens are computed and until its last ones
// are, and at most so many steps more are mapped.
KvWorkload MakeKvWorkload(const Options& options,
                          const SimulationOptions& simulation,
                          const std::vector<StressRequest>& requests) {
  const double batch = options.max_batched_tokens;
  double tokens = 0;
  double waiting = 0;
  double steps = 0;
  for (const StressRequest& request : requests) {
    const double prompt = static_cast<double>(request.prompt);
    const double output = static_cast<double>(request.output);
    tokens += output * (prompt + output / 2);
    waiting += prompt * (1 + prompt / batch / 2);
    steps += output;
  }
  KvWorkload workload;
  workload.mean_tokens = static_cast<uint64_t>(std::max(tokens / steps, 1.0));
  workload.waste_limit = options.waste_limit;
  if (simulation.scheduler.prepare_next)
    workload.idle_tokens = waiting / steps + simulation.cache.page_ahead;
  return workload;
}

absl::StatusOr<std::vector<CacheKind>> MakeKinds(
    const Options& options, const SimulationOptions& simulation,
    const std::vector<StressRequest>& requests) {
  const CacheSettings& settings = simulation.cache;
  std::vector<std::string> names = options.caches;
  if (names.empty() && !options.model.empty())
    names = {"contiguous:1", "contiguous:auto", "contiguous:all",
             "blocks:16",    "blocks:32",       "static"};
  if (names.empty()) {
    for (const uint32_t g : options.layers_per_row)
      names.push_back(absl::StrCat("contiguous:", g));
  }
  const KvWorkload workload = MakeKvWorkload(options, simulation, requests);
  std::vector<CacheKind> kinds;
  for (const std::string& name : names) {
    QUIRE_ASSIGN_OR_RETURN(
        CacheKind kind,
        ParseCacheKind(name, settings.shape, workload, settings.page_size));
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

absl::Status Run(const Options& options) {
  QUIRE_ASSIGN_OR_RETURN(const CostModel costs, CostModel::Read(options.costs));
  QUIRE_ASSIGN_OR_RETURN(SimulationOptions simulation, MakeSimulation(options));
  QUIRE_ASSIGN_OR_RETURN(
      const Workload workload,
      MakeWorkload(options, simulation.cache.max_sequence_length));
  if (workload.requests.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("no request has at most ",
                     simulation.cache.max_sequence_length, " tokens"));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<CacheKind> kinds,
                         MakeKinds(options, simulation, workload.requests));
  simulation.prefixes = !workload.requests.front().blocks.empty();

  std::vector<SimulationResult> results;
  for (const CacheKind& kind : kinds) {
    for (const double create_us : options.create_us.empty()
                                      ? costs.create_page_us()
                                      : options.create_us) {
      auto result =
          Simulate(simulation, costs, create_us, kind, workload.requests);
      if (!result.ok())
        return absl::Status(
            result.status().code(),
            absl::StrCat(kind.name, ": ",
                         std::string(result.status().message())));
      results.push_back(*std::move(result));
    }
  }
  if (!options.json) {
    for (const CacheKind& kind : kinds) {
      if (!kind.reason.empty())
        std::cout << kind.name << ": " << kind.reason << "\n";
    }
    std::cout << FormatResults(results);
    return absl::OkStatus();
  }
  nlohmann::json json = {
      {"trace", options.trace},
      {"model", options.model},
      {"card", costs.card()},
      {"kv_memory_bytes", simulation.kv_memory.value()},
      {"page_bytes", simulation.cache.page_size.value()},
      {"kv_bytes_per_token",
       simulation.model.LayerTokenBytes(simulation.dtype).value() *
           simulation.model.layers},
      {"max_model_len", simulation.cache.max_sequence_length},
      {"requests", workload.requests.size()},
      {"requests_too_long", workload.too_long},
      {"load_factor", options.load_factor},
      {"seed", options.random.seed}};
  for (const CacheKind& kind : kinds) {
    if (!kind.reason.empty()) json["choices"][kind.name] = kind.reason;
  }
  for (const SimulationResult& result : results)
    json["caches"].push_back(ResultToJson(result));
  std::cout << json.dump(2) << "\n";
  return absl::OkStatus();
}

absl::Status RunBursts(const Options& options) {
  BurstOptions bursts;
  Bytes weights;
  for (const std::string& name : options.burst_models) {
    bursts.models.push_back(*FindStressModel(name));
    weights = SaturatingAdd(weights, bursts.models.back().weights);
  }
  bursts.kv_memory = SaturatingSubtract(UsableMemory(options), weights);
  if (bursts.kv_memory.zero())
    return absl::InvalidArgumentError(
        absl::StrCat("the weights of the models, ", FormatBytes(weights),
                     ", leave nothing of ", options.device_memory));
  bursts.page_size = *ParseBytes(options.page_size);
  bursts.eager_reclaim = !options.park;
  RandomRequestOptions random = options.random;
  if (options.requests > 0) random.requests = options.requests;
  bursts.requests = MakeRandomRequests(random);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<BurstResult> results,
                         SimulateBursts(bursts));
  nlohmann::json json = {{"kv_memory_bytes", bursts.kv_memory.value()}};
  for (const BurstResult& result : results) {
    const double share =
        result.peak_held.zero()
            ? 0
            : static_cast<double>(result.most_idle_held.value()) /
                  static_cast<double>(result.peak_held.value());
    json["models"].push_back(
        {{"model", result.model},
         {"requests_served", result.served},
         {"preempted_requests", result.preemptions},
         {"peak_held_bytes", result.peak_held.value()},
         {"idle_held_bytes", result.most_idle_held.value()},
         {"idle_share_of_peak", share}});
  }
  std::cout << json.dump(2) << "\n";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Requests through KV caches on a software device, once for each kind of\n"
      "cache. The default shape is Qwen3-8B's, the default lengths have the\n"
      "means of a public trace of conversations.\n"
      "Example: kv_stress --trace AzureLLMInferenceTrace_conv.csv --model "
      "qwen3-8b\n         --device-memory 80GiB --json");
  AddOptions(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status =
      options.burst_models.empty() ? Run(options) : RunBursts(options);
  if (status.ok()) return 0;
  std::cerr << "kv_stress: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
