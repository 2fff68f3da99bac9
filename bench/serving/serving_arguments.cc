#include "bench/serving/serving_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/option_checks.h"
#include "bench/serving/model_table.h"
#include "bench/serving/traces.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/batch_levels.h"

namespace quire {
namespace {

// 4 TiB of 2 MiB, more than the eight largest devices of a machine have. All of
// them are made at the start: a second and 128 MiB of this machine for each
// half a million.
constexpr uint64_t kMostPages = uint64_t{1} << 21;
// The simulation keeps what became of each.
constexpr uint64_t kMostRequests = 10'000'000;
constexpr double kYear = 365.25 * 86400;

// Those of 8 bits have scales of 16, one a head of keys and one of values.
constexpr KvDType kDTypes[] = {KvDType::kF32,    KvDType::kF16,
                               KvDType::kBF16,   KvDType::kF8E4M3,
                               KvDType::kF8E5M2, KvDType::kInt8};

KvDType ParseDType(const std::string& name) {
  return *std::find_if(
      std::begin(kDTypes), std::end(kDTypes),
      [&](KvDType dtype) { return name == KvDTypeName(dtype); });
}

// Of a sequence at a step of its life: there is one for each of its new tokens,
// and half of them are there on average. With page-ahead a prompt is backed
// whole, a step before its first tokens are computed and until its last ones
// are, and at most so many steps more are mapped.
KvWorkload MakeKvWorkload(double waste_limit,
                          const SimulationOptions& simulation,
                          const std::vector<StressRequest>& requests) {
  const double batch = simulation.scheduler.max_num_batched_tokens;
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
  workload.waste_limit = waste_limit;
  if (simulation.scheduler.prepare_next)
    workload.idle_tokens = waiting / steps + simulation.cache.page_ahead;
  return workload;
}

}  // namespace

void AddServingArguments(CLI::App* app, ServingArguments* arguments) {
  std::vector<std::string> models;
  for (const StressModel& model : StressModels())
    models.push_back(model.name());
  std::vector<std::string> dtypes;
  for (const KvDType dtype : kDTypes) dtypes.push_back(KvDTypeName(dtype));
  app->add_option("--model", arguments->model,
                  "Whose KV cache it is; its weights take of the device memory")
      ->check(CLI::IsMember(models));
  app->add_option("--device-memory", arguments->device_memory,
                  "Physical memory of the device")
      ->check(ByteSize())
      ->capture_default_str();
  app->add_option("--gpu-memory-utilization", arguments->memory_utilization,
                  "The part of it for weights and cache, with --model")
      ->check(NumberBetween(0.01, 1.0))
      ->capture_default_str();
  app->add_option("--page-size", arguments->page_size,
                  "A power of two from 2MiB on")
      ->check(PageSize())
      ->capture_default_str();
  app->add_option("--headroom", arguments->headroom,
                  "Memory that admissions leave free")
      ->check(ByteSize())
      ->capture_default_str();
  app->add_option("--caches", arguments->caches,
                  "Kinds of cache: contiguous:G with G layers to a row,\n"
                  "contiguous:all, contiguous:auto, blocks:N with N tokens to\n"
                  "a block, static")
      ->delimiter(',');
  app->add_option(
         "--waste-limit", arguments->waste_limit,
         "What contiguous:auto may lose to partly used pages and to what is\n"
         "backed ahead, of what sequences keep")
      ->check(NumberBetween(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--dtype", arguments->dtype,
                  "Of the cache; those of 8 bits have scales of 16 bits, one\n"
                  "for each token and head")
      ->check(CLI::IsMember(dtypes))
      ->capture_default_str();
  app->add_option("--map-ahead", arguments->map_ahead,
                  "Pages mapped beyond the need, per group of layers")
      ->check(WholeNumber())
      ->capture_default_str();
  app->add_option("--page-ahead", arguments->page_ahead,
                  "Steps that contiguous caches map ahead at most, while the\n"
                  "device computes; requests are then released and admitted\n"
                  "meanwhile too, and pages created at the start. 0: all when\n"
                  "it is needed. Default: 8 with --model, else 0")
      ->check(CLI::Range(0u, 1024u));
  app->add_flag("--park", arguments->park,
                "With page-ahead too, what ends stays mapped for whom it fits");
  app->add_option("--max-parked", arguments->max_parked,
                  "With --park the part of the cache's memory that may be so")
      ->check(NumberBetween(0.0, 1.0));
  app->add_option(
         "--swap-space", arguments->swap_space,
         "Pinned host memory to which contiguous caches move requests\n"
         "that are preempted, as long as there is some; it is really\n"
         "taken. Others are computed again")
      ->check(ByteSize())
      ->capture_default_str();
  app->add_option("--requests", arguments->requests,
                  "So many requests; 0: all of a trace (of servegen 10000), "
                  "2000 random ones")
      ->check(CLI::Range(uint64_t{0}, kMostRequests))
      ->capture_default_str();
  app->add_flag("--saturate", arguments->saturate, "All arrive at once");
  app->add_option("--arrivals-per-second", arguments->arrivals_per_second,
                  "Of traces without times")
      ->check(NumberBetween(1e-6, 1e6))
      ->capture_default_str();
  app->add_option("--arrivals-per-step", arguments->random.arrivals_per_step,
                  "Mean number of random requests that arrive in a step")
      ->check(NumberBetween(1e-6, 1e6))
      ->capture_default_str();
  app->add_option("--prompt-mean", arguments->random.prompt_mean,
                  "Of random requests, in tokens; lengths are exponential")
      ->check(NumberBetween(1.0, 1e9))
      ->capture_default_str();
  app->add_option("--output-mean", arguments->random.output_mean)
      ->check(NumberBetween(1.0, 1e9))
      ->capture_default_str();
  app->add_option("--seed", arguments->random.seed)
      ->check(WholeNumber())
      ->capture_default_str();
  app->add_option("--max-model-len,--max-sequence-length",
                  arguments->max_model_len,
                  "Tokens of a request; longer ones are left out, random ones\n"
                  "cut. Default: the model's own limit, else 8192")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 32));
  app->add_option("--max-num-seqs,--max-sequences", arguments->max_sequences)
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  app->add_option("--max-num-batched-tokens", arguments->max_batched_tokens)
      ->check(CLI::Range(1u, 1u << 30))
      ->capture_default_str();
  app->add_option("--halve-above", arguments->halve_above,
                  "Use of the cache above which the batch is halved [0.85]")
      ->check(NumberBetween(0.0, 1.0));
  app->add_option(
         "--grow-below", arguments->grow_below,
         "Use of the cache below which it is doubled [0.6]; where one\n"
         "of the two is given, the other follows")
      ->check(NumberBetween(0.0, 1.0));
  app->add_option("--victims", arguments->policy, "Who is preempted")
      ->check(CLI::IsMember({"youngest", "fifo", "lru", "page-aware"}))
      ->capture_default_str();
  app->add_option("--costs", arguments->costs,
                  "File of what driver calls and the model cost on the virtual "
                  "clock [bench/costs/a100-80g.json of the sources]")
      ->check(CLI::ExistingFile);
}

absl::Status CheckServingArguments(const CLI::App& app,
                                   const ServingArguments& arguments,
                                   bool random,
                                   const std::vector<std::string>& caches) {
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(
      app, {"--prompt-mean", "--output-mean", "--arrivals-per-step"}, random,
      "with a trace"));
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(app, {"--arrivals-per-second"},
                                         !random, "without a trace"));
  QUIRE_RETURN_IF_ERROR(
      CheckIdleOptions(app,
                       {"--arrivals-per-second", "--arrivals-per-step",
                        "--load-factor", "--load-factors"},
                       !arguments.saturate, "with --saturate"));
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(app, {"--gpu-memory-utilization"},
                                         !arguments.model.empty(),
                                         "without --model"));
  QUIRE_ASSIGN_OR_RETURN(const SimulationOptions simulation,
                         MakeSimulation(arguments));
  QUIRE_RETURN_IF_ERROR(
      CheckIdleOptions(app, {"--park"}, simulation.cache.page_ahead > 0,
                       "without --page-ahead: all that ends is parked"));
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(app, {"--max-parked"}, arguments.park,
                                         "without --park"));
  const bool chooses = std::find(caches.begin(), caches.end(),
                                 "contiguous:auto") != caches.end();
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(app, {"--waste-limit"}, chooses,
                                         "without a cache contiguous:auto"));
  return MakeCacheKinds(caches, arguments.waste_limit, simulation,
                        {{.prompt = 1, .output = 1}})
      .status();
}

absl::StatusOr<ServingWorkload> MakeServingWorkload(
    const ServingArguments& arguments, uint64_t max_model_len) {
  ServingWorkload workload;
  if (arguments.trace.empty()) {
    RandomRequestOptions random = arguments.random;
    if (arguments.requests > 0) random.requests = arguments.requests;
    random.max_sequence_length = max_model_len;
    workload.requests = MakeRandomRequests(random);
  } else {
    TraceOptions trace;
    if (arguments.requests > 0) trace.max_requests = arguments.requests;
    trace.arrivals_per_second = arguments.arrivals_per_second;
    trace.seed = arguments.random.seed;
    QUIRE_ASSIGN_OR_RETURN(workload.requests,
                           ReadTrace(arguments.trace, trace));
  }
  workload.too_long =
      std::erase_if(workload.requests, [&](const StressRequest& request) {
        return request.tokens() > max_model_len;
      });
  for (StressRequest& request : workload.requests) {
    request.arrival =
        arguments.saturate ? 0 : request.arrival / arguments.load_factor;
    if (!(request.arrival <= kLongestVirtualDay))
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: a request arrives %.3g years behind the first one; the virtual "
          "clock goes to %.0f",
          arguments.trace.empty() ? "random requests" : arguments.trace,
          request.arrival / kYear, kLongestVirtualDay / kYear));
  }
  if (workload.requests.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("no request has at most ", max_model_len, " tokens"));
  return workload;
}

Bytes UsableMemory(const ServingArguments& arguments) {
  return Bytes(static_cast<uint64_t>(
      static_cast<double>(ParseBytes(arguments.device_memory)->value()) *
      arguments.memory_utilization));
}

absl::StatusOr<SimulationOptions> MakeSimulation(
    const ServingArguments& arguments) {
  const Bytes memory = *ParseBytes(arguments.device_memory);
  const Bytes page = *ParseBytes(arguments.page_size);
  if (memory.value() / page.value() > kMostPages)
    return absl::InvalidArgumentError(absl::StrFormat(
        "--device-memory %s: more than %d pages of %s, each of which is "
        "simulated",
        arguments.device_memory, kMostPages, FormatBytes(page)));
  SimulationOptions simulation;
  simulation.dtype = ParseDType(arguments.dtype);
  simulation.kv_memory = memory;
  if (const StressModel* const model = FindStressModel(arguments.model)) {
    simulation.model = *model;
    simulation.kv_memory =
        SaturatingSubtract(UsableMemory(arguments), model->weights);
    if (simulation.kv_memory.zero())
      return absl::InvalidArgumentError(absl::StrCat(
          "the weights of ", arguments.model, ", ", FormatBytes(model->weights),
          ", leave nothing of ", arguments.device_memory));
  } else {
    simulation.model =
        StressModel("",
                    KvShape{arguments.layers, arguments.kv_heads,
                            arguments.head_dim, KvDType::kF16},
                    /*query_heads=*/arguments.kv_heads, /*max_positions=*/8192);
  }
  if (simulation.kv_memory < page)
    return absl::InvalidArgumentError(
        absl::StrCat("--page-size ", arguments.page_size,
                     " is more than there is for keys "
                     "and values, ",
                     FormatBytes(simulation.kv_memory)));
  simulation.cache.shape = simulation.model.Shape(simulation.dtype);
  simulation.cache.max_sequence_length = arguments.max_model_len == 0
                                             ? simulation.model.max_positions()
                                             : arguments.max_model_len;
  simulation.cache.max_sequences = arguments.max_sequences;
  simulation.cache.page_size = page;
  simulation.cache.headroom = *ParseBytes(arguments.headroom);
  simulation.cache.map_ahead = PageCount(arguments.map_ahead);
  const uint32_t page_ahead =
      arguments.page_ahead.value_or(arguments.model.empty() ? 0 : 8);
  simulation.cache.page_ahead = page_ahead;
  simulation.cache.eager_reclaim = page_ahead > 0 && !arguments.park;
  if (arguments.max_parked)
    simulation.cache.max_parked = PageCount(static_cast<uint64_t>(
        static_cast<double>(simulation.kv_memory.value() / page.value()) *
        *arguments.max_parked));
  simulation.cache.swap_space = *ParseBytes(arguments.swap_space);
  simulation.prepare_pages = page_ahead > 0;
  simulation.scheduler.prepare_next = page_ahead > 0;
  simulation.scheduler.max_num_seqs = arguments.max_sequences;
  simulation.scheduler.max_num_batched_tokens = arguments.max_batched_tokens;
  simulation.scheduler.batch_limit =
      CompleteBatchLevels(arguments.halve_above, arguments.grow_below);
  if (const BatchLimitOptions& levels = simulation.scheduler.batch_limit;
      levels.grow_below > levels.halve_above)
    return absl::InvalidArgumentError(absl::StrCat(
        "--grow-below ", levels.grow_below,
        " is to be from 0 to --halve-above, ", levels.halve_above));
  simulation.policy = arguments.policy;
  simulation.clock_is_steps = arguments.trace.empty();
  return simulation;
}

absl::StatusOr<std::vector<CacheKind>> MakeCacheKinds(
    const std::vector<std::string>& names, double waste_limit,
    const SimulationOptions& simulation,
    const std::vector<StressRequest>& requests) {
  const KvWorkload workload = MakeKvWorkload(waste_limit, simulation, requests);
  std::vector<CacheKind> kinds;
  for (const std::string& name : names) {
    QUIRE_ASSIGN_OR_RETURN(
        CacheKind kind, ParseCacheKind(name, simulation.cache.shape, workload,
                                       simulation.cache.page_size));
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

}  // namespace quire
