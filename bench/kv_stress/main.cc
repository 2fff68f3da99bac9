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
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/kv_stress/attention_speed.h"
#include "bench/kv_stress/bursts.h"
#include "bench/kv_stress/report.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"
#include "bench/serving/serving_arguments.h"
#include "bench/serving/serving_settings.h"
#include "bench/serving/simulation.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Of a layer, and of the elements of a head: more than any model has.
constexpr uint32_t kMostHeads = 1u << 16;

struct Options {
  ServingArguments serving;
  std::vector<uint32_t> layers_per_row = {1, 4, 36};
  std::vector<double> create_us;
  std::vector<std::string> burst_models;
  std::optional<uint64_t> attention_rows;
  bool json = false;
  nlohmann::json run;  // of DescribeRun
};

void AddOptions(CLI::App* app, Options* options) {
  app->add_option(
         "--trace", options->serving.trace,
         "Requests: a file of the azure, mooncake or vidur traces, or\n"
         "a file or folder of servegen. Default: random ones")
      ->check(NotEmpty());
  AddServingArguments(app, &options->serving);
  app->add_option("--load-factor", options->serving.load_factor,
                  "Requests of the trace arrive so many times faster")
      ->check(NumberBetween(1e-6, 1e6))
      ->capture_default_str();
  app->add_option(
         "--layers-per-row", options->layers_per_row,
         "Contiguous caches without --model or --caches; with --model\n"
         "all kinds are the default")
      ->delimiter(',')
      ->check(CLI::Range(1u, kMaxKvLayers))
      ->capture_default_str();
  app->add_option("--layers", options->serving.layers, "Without --model")
      ->check(CLI::Range(1u, kMaxKvLayers))
      ->capture_default_str();
  app->add_option("--kv-heads", options->serving.kv_heads, "Without --model")
      ->check(CLI::Range(1u, kMostHeads))
      ->capture_default_str();
  app->add_option("--head-dim", options->serving.head_dim, "Without --model")
      ->check(CLI::Range(1u, kMostHeads))
      ->capture_default_str();
  app->add_option("--create-us", options->create_us,
                  "Costs of creating a page; default: all of the file")
      ->delimiter(',')
      ->check(NumberBetween(0.0, 1e6));
  std::vector<std::string> models;
  for (const StressModel& model : StressModels())
    models.push_back(model.name());
  app->add_option(
         "--bursts", options->burst_models,
         "Instead: these models take turns on the device, with a burst\n"
         "of the random requests each, three times over")
      ->delimiter(',')
      ->check(CLI::IsMember(models));
  app->add_option("--attention-rows", options->attention_rows,
                  "Measures on this machine how long attention of a decode\n"
                  "step takes over so many tokens in each cache; 0: does not\n"
                  "[512 with --model, else 0]")
      ->check(NumberBetween(0, 1 << 20));
  app->add_flag("--json", options->json,
                "Print JSON, with one object for each cache");
}

std::vector<std::string> CacheNames(const Options& options) {
  if (!options.serving.caches.empty()) return options.serving.caches;
  if (!options.serving.model.empty())
    return {"contiguous:1", "contiguous:auto", "contiguous:all",
            "blocks:16",    "blocks:32",       "static"};
  std::vector<std::string> names;
  for (const uint32_t g : options.layers_per_row)
    names.push_back(absl::StrCat("contiguous:", g));
  return names;
}

// What is wrong with the options, whatever the requests are.
absl::Status CheckOptions(const CLI::App& app, const Options& options) {
  if (!options.burst_models.empty()) {
    const std::set<std::string> read = {
        "--bursts",      "--device-memory", "--gpu-memory-utilization",
        "--page-size",   "--park",          "--requests",
        "--prompt-mean", "--output-mean",   "--seed",
        "--json"};
    std::vector<std::string> idle;
    for (const CLI::Option* const option : app.get_options()) {
      std::string name = option->get_name();
      if (!read.contains(name)) idle.push_back(std::move(name));
    }
    return CheckIdleOptions(app, idle, false, "with --bursts");
  }
  const ServingArguments& serving = options.serving;
  QUIRE_RETURN_IF_ERROR(
      CheckIdleOptions(app, {"--layers", "--kv-heads", "--head-dim"},
                       serving.model.empty(), "with --model"));
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(
      app, {"--layers-per-row"},
      serving.model.empty() && serving.caches.empty(),
      serving.model.empty() ? "with --caches" : "with --model"));
  return CheckServingArguments(app, serving, serving.trace.empty(),
                               CacheNames(options));
}

absl::Status Run(const Options& options) {
  QUIRE_ASSIGN_OR_RETURN(const CostModel costs,
                         CostModel::Read(options.serving.costs));
  QUIRE_ASSIGN_OR_RETURN(SimulationOptions simulation,
                         MakeSimulation(options.serving));
  QUIRE_ASSIGN_OR_RETURN(
      const ServingWorkload workload,
      MakeServingWorkload(options.serving,
                          simulation.cache.max_sequence_length));
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<CacheKind> kinds,
      MakeCacheKinds(CacheNames(options), options.serving.waste_limit,
                     simulation, workload.requests));
  simulation.prefixes = !workload.requests.front().blocks.empty();

  std::vector<AttentionSpeed> speeds(kinds.size());
  const uint64_t attention_rows =
      options.attention_rows.value_or(options.serving.model.empty() ? 0 : 512);
  if (attention_rows > 0) {
    QUIRE_ASSIGN_OR_RETURN(
        speeds, MeasureAttention(simulation.model, simulation.dtype, kinds,
                                 attention_rows));
  }
  const std::vector<double>& create_costs =
      options.create_us.empty() ? costs.create_page_us() : options.create_us;
  std::vector<StressResult> results;
  ProgressLine progress;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const CacheKind& kind = kinds[i];
    for (const double create_us : create_costs) {
      simulation.progress = [&](double done) {
        progress.Update(
            kind.name, static_cast<double>(results.size()) + done,
            static_cast<double>(kinds.size() * create_costs.size()));
      };
      auto result =
          Simulate(simulation, costs, create_us, kind, workload.requests);
      if (absl::IsResourceExhausted(result.status())) {
        // The other kinds may have room.
        results.push_back({{.cache = kind.name, .create_page_us = create_us},
                           speeds[i],
                           std::string(result.status().message())});
        continue;
      }
      if (!result.ok())
        return absl::Status(
            result.status().code(),
            absl::StrCat(kind.name, ": ",
                         std::string(result.status().message())));
      results.push_back({*std::move(result), speeds[i], ""});
    }
  }
  progress.Clear();
  if (std::all_of(
          results.begin(), results.end(),
          [](const StressResult& result) { return !result.failure.empty(); }))
    return absl::ResourceExhaustedError(
        absl::StrCat(results[0].simulation.cache, ": ", results[0].failure));
  if (!options.json) {
    for (const CacheKind& kind : kinds) {
      if (!kind.reason.empty())
        std::cout << kind.name << ": " << kind.reason << "\n";
    }
    std::cout << FormatResults(results);
    return absl::OkStatus();
  }
  nlohmann::json json = {
      {"trace", options.serving.trace},
      {"model", options.serving.model},
      {"card", costs.card()},
      {"kv_memory_bytes", simulation.kv_memory.value()},
      {"page_bytes", simulation.cache.page_size.value()},
      {"kv_bytes_per_token",
       simulation.model.KvBytes(1, simulation.dtype).value()},
      {"max_model_len", simulation.cache.max_sequence_length},
      {"requests", workload.requests.size()},
      {"requests_too_long", workload.too_long},
      {"load_factor", options.serving.load_factor},
      {"seed", options.serving.random.seed}};
  nlohmann::json& settings = json["settings"];
  settings = ServingSettingsToJson(options.serving, simulation, costs);
  settings["attention_rows"] = attention_rows;
  settings.update(options.run);
  for (const CacheKind& kind : kinds) {
    if (!kind.reason.empty()) json["choices"][kind.name] = kind.reason;
  }
  for (const StressResult& result : results)
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
  bursts.kv_memory = SaturatingSubtract(UsableMemory(options.serving), weights);
  if (bursts.kv_memory.zero())
    return absl::InvalidArgumentError(
        absl::StrCat("the weights of the models, ", FormatBytes(weights),
                     ", leave nothing of ", options.serving.device_memory));
  bursts.page_size = *ParseBytes(options.serving.page_size);
  bursts.eager_reclaim = !options.serving.park;
  RandomRequestOptions random = options.serving.random;
  if (options.serving.requests > 0) random.requests = options.serving.requests;
  bursts.requests = MakeRandomRequests(random);
  ProgressLine progress;
  bursts.progress = [&](double done) { progress.Update("bursts", done, 1); };
  QUIRE_ASSIGN_OR_RETURN(const std::vector<BurstResult> results,
                         SimulateBursts(bursts));
  progress.Clear();
  if (!options.json) {
    std::cout << FormatBursts(bursts.kv_memory, results);
    return absl::OkStatus();
  }
  nlohmann::json json = BurstsToJson(bursts.kv_memory, results);
  json["settings"] = options.run;
  std::cout << json.dump(2) << "\n";
  return absl::OkStatus();
}

int Fail(int exit_status, const absl::Status& error) {
  std::cerr << "kv_stress: " << error.message() << "\n";
  return exit_status;
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
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  options.run = DescribeRun(app, argc, argv);
  const absl::Status usage = CheckOptions(app, options);
  if (!usage.ok()) return Fail(kWrongUsage, usage);
  const absl::Status status =
      options.burst_models.empty() ? Run(options) : RunBursts(options);
  return status.ok() ? 0 : Fail(kFailed, status);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("kv_stress", quire::Main(argc, argv));
}
