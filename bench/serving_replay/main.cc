// serving_replay: requests of a trace arrive when they did, and are served from
// KV caches of several kinds, through the same admission and batch control, on
// virtual time. Says what their users waited for, and what memory was wasted.

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"
#include "bench/serving/serving_arguments.h"
#include "bench/serving/serving_settings.h"
#include "bench/serving/simulation.h"
#include "bench/serving_replay/report.h"
#include "bench/serving_replay/service.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct Options {
  ServingArguments serving;
  std::vector<std::string> traces;
  std::vector<double> load_factors = {1};
  double create_us = 0;  // 0: the first of the costs
  ServiceObjective objective = {.time_to_first_token = 2,
                                .time_per_output_token = 0.1};
  bool json = false;
  nlohmann::json run;  // of DescribeRun
};

void AddOptions(CLI::App* app, Options* options) {
  app->add_option("TRACE", options->traces,
                  "Files of the azure, mooncake or vidur traces, or files or\n"
                  "folders of servegen; none: random requests, for which a\n"
                  "step is a second")
      ->check(NotEmpty());
  AddServingArguments(app, &options->serving);
  app->get_option("--caches")->capture_default_str();
  app->add_option("--load-factors", options->load_factors,
                  "Requests arrive so many times faster, each in turn")
      ->delimiter(',')
      ->check(NumberBetween(1e-6, 1e6))
      ->capture_default_str();
  app->add_option("--objective-ttft", options->objective.time_to_first_token,
                  "Goodput counts requests with their first token within so\n"
                  "many seconds")
      ->check(NumberBetween(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--objective-tpot", options->objective.time_per_output_token,
                  "and with so many seconds for each token behind it, mean")
      ->check(NumberBetween(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--create-us", options->create_us,
                  "Cost of creating a page; default: the first of --costs")
      ->check(NumberBetween(0.001, 1e6));
  app->add_flag("--json", options->json,
                "Print JSON, a line for each cache, load and trace");
}

class Replay {
 public:
  Replay(const Options& options, CostModel costs)
      : options_(options),
        costs_(std::move(costs)),
        create_us_(options.create_us > 0 ? options.create_us
                                         : costs_.create_page_us().front()) {
    if (traces_.empty()) traces_.emplace_back();
  }

  absl::Status Run() {
    for (const std::string& trace : traces_) {
      for (const double load_factor : options_.load_factors) {
        QUIRE_RETURN_IF_ERROR(RunOne(trace, load_factor));
      }
    }
    progress_.Clear();
    if (!options_.json) std::cout << ServingToTable(runs_);
    if (std::all_of(runs_.begin(), runs_.end(),
                    [](const ServingRun& run) { return !run.failure.empty(); }))
      return absl::ResourceExhaustedError(absl::StrCat(
          runs_.front().result.cache, ": ", runs_.front().failure));
    return absl::OkStatus();
  }

 private:
  absl::Status RunOne(const std::string& trace, double load_factor) {
    ServingArguments arguments = options_.serving;
    arguments.trace = trace;
    arguments.load_factor = load_factor;
    QUIRE_ASSIGN_OR_RETURN(SimulationOptions simulation,
                           MakeSimulation(arguments));
    simulation.clock_is_steps = false;
    QUIRE_ASSIGN_OR_RETURN(
        const ServingWorkload workload,
        MakeServingWorkload(arguments, simulation.cache.max_sequence_length));
    simulation.prefixes = !workload.requests.front().blocks.empty();
    QUIRE_ASSIGN_OR_RETURN(
        const std::vector<CacheKind> kinds,
        MakeCacheKinds(arguments.caches, arguments.waste_limit, simulation,
                       workload.requests));
    for (const CacheKind& kind : kinds) {
      simulation.progress = [&](double done) {
        progress_.Update(
            absl::StrCat(trace, ", ", kind.name),
            static_cast<double>(runs_.size()) + done,
            static_cast<double>(traces_.size() * options_.load_factors.size() *
                                kinds.size()));
      };
      ServingRun run{trace,
                     load_factor,
                     workload.requests.size(),
                     workload.too_long,
                     simulation.kv_memory,
                     options_.objective,
                     SimulationResult(),
                     ServiceQuality(),
                     ""};
      absl::StatusOr<SimulationResult> result =
          Simulate(simulation, costs_, create_us_, kind, workload.requests);
      if (result.ok()) {
        run.result = *std::move(result);
        run.quality = Judge(run.result.timings, options_.objective);
      } else if (absl::IsResourceExhausted(result.status())) {
        // The other kinds may have room.
        run.result.cache = kind.name;
        run.failure = std::string(result.status().message());
      } else {
        return absl::Status(
            result.status().code(),
            absl::StrCat(kind.name, ": ",
                         std::string(result.status().message())));
      }
      if (options_.json) {
        progress_.Clear();
        nlohmann::json settings =
            ServingSettingsToJson(arguments, simulation, costs_);
        settings["create_page_us"] = create_us_;
        settings.update(options_.run);
        std::cout << ServingToJson(run, settings) << std::flush;
      }
      runs_.push_back(std::move(run));
    }
    return absl::OkStatus();
  }

  const Options& options_;
  const CostModel costs_;
  const double create_us_;
  std::vector<std::string> traces_ = options_.traces;
  std::vector<ServingRun> runs_;
  ProgressLine progress_;
};

absl::Status Run(const Options& options) {
  QUIRE_ASSIGN_OR_RETURN(CostModel costs,
                         CostModel::Read(options.serving.costs));
  return Replay(options, std::move(costs)).Run();
}

int Fail(int exit_status, const absl::Status& error) {
  std::cerr << "serving_replay: " << error.message() << "\n";
  return exit_status;
}

int Main(int argc, char** argv) {
  Options options;
  options.serving.model = "qwen3-8b";
  options.serving.device_memory = "80GiB";
  options.serving.caches = {"contiguous:auto", "blocks:16", "static"};
  CLI::App app(
      "Serves the requests of traces on virtual time, from KV caches of\n"
      "several kinds. Example: serving_replay AzureLLMInferenceTrace_conv.csv\n"
      "--load-factors 1,2,4 --json");
  AddOptions(&app, &options);
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  options.run = DescribeRun(app, argc, argv);
  const absl::Status usage = CheckServingArguments(
      app, options.serving, options.traces.empty(), options.serving.caches);
  if (!usage.ok()) return Fail(kWrongUsage, usage);
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail(kFailed, status);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("serving_replay", quire::Main(argc, argv));
}
