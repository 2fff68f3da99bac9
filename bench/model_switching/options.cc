#include "bench/model_switching/options.h"

#include <algorithm>
#include <optional>
#include <span>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/option_checks.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::StatusOr<Bytes> ReadSize(const char* option, const std::string& text) {
  const std::optional<Bytes> size = ParseBytes(text);
  if (size && !size->zero()) return *size;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " \"", text, "\" is no size"));
}

void AddGeneratorArguments(CLI::App* app, SwitchingArguments* arguments) {
  GeneratorOptions& generator = arguments->generator;
  CLI::Option* const generate =
      app->add_option("--generate", generator.requests,
                      "A day of so many requests at random, instead of FILE")
          ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
  app->add_option("--arrivals", arguments->arrivals,
                  "poisson: each request on its own; bursts: several for one "
                  "model")
      ->check(CLI::IsMember({"poisson", "bursts"}))
      ->capture_default_str()
      ->needs(generate);
  app->add_option("--requests-per-hour", generator.requests_per_hour)
      ->check(NumberBetween(1e-3, 1e6))
      ->capture_default_str()
      ->needs(generate);
  app->add_option("--burst-size", generator.burst_size,
                  "Requests of a burst, mean")
      ->check(NumberBetween(1.0, 1e6))
      ->capture_default_str()
      ->needs(generate);
  app->add_option("--mix", arguments->mix,
                  "Workloads and their weights, as a=2,b=1; default: each CSV\n"
                  "of the traces once, except totals.csv")
      ->needs(generate);
  app->add_option("--service-seconds", generator.service_seconds,
                  "What a request takes, mean")
      ->check(NumberBetween(1e-3, 1e6))
      ->capture_default_str()
      ->needs(generate);
  app->add_option("--keep-alive-seconds", generator.keep_alive_seconds,
                  "After so long without a request a model is unloaded")
      ->check(NumberBetween(0.0, 1e9))
      ->capture_default_str()
      ->needs(generate);
  app->add_option(
         "--fill", generator.fill,
         "Models are unloaded until what is asked for is at most this\n"
         "part of it")
      ->check(NumberBetween(0.01, 1.0))
      ->capture_default_str()
      ->needs(generate);
  app->add_option("--write", arguments->write,
                  "Write the day to this file, for FILE")
      ->check(NotEmpty());
}

void AddRealArguments(CLI::App* app, SwitchingArguments* arguments) {
  RealOptions& real = arguments->real;
  CLI::Option* const models =
      app->add_option(
             "--real", real.models,
             "Instead of FILE: these models, folders or files, with a LoRA\n"
             "adapter as MODEL:adapter=FOLDER, take turns\n"
             "on one device, with all strategies but shared;\n"
             "each token is compared with a run of the model alone. Exit\n"
             "status 1 where one differs")
          ->delimiter(',');
  app->add_option("--page-size", arguments->page_size, "--real: of the device")
      ->capture_default_str()
      ->needs(models);
  app->add_option("--prompt-tokens", real.prompt_tokens,
                  "--real: of each model, at random")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20))
      ->capture_default_str()
      ->needs(models);
  app->add_option("--tokens-per-turn", real.tokens_per_turn, "--real: decoded")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20))
      ->capture_default_str()
      ->needs(models);
  app->add_option("--turns", real.turns, "--real: of each model")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20))
      ->capture_default_str()
      ->needs(models);
  app->add_option("--threads", real.threads, "--real: 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->needs(models);
}

// Which of the ways to say what is played was taken.
absl::Status CheckMode(const SwitchingArguments& arguments) {
  const bool generates = arguments.generator.requests > 0;
  const int ways = (arguments.file.empty() ? 0 : 1) + (generates ? 1 : 0) +
                   (arguments.real.models.empty() ? 0 : 1);
  if (ways != 1) {
    return absl::InvalidArgumentError(
        "one of FILE, --generate and --real says what to play");
  }
  if (generates && arguments.traces.empty()) {
    return absl::InvalidArgumentError("--generate needs --traces");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SwitchStrategy>> ChooseStrategies(
    const SwitchingArguments& arguments) {
  const std::span<const SwitchStrategy> known =
      arguments.real.models.empty()
          ? std::span<const SwitchStrategy>(kSwitchStrategies)
          : std::span<const SwitchStrategy>(kRealStrategies);
  if (arguments.strategies.empty()) {
    return std::vector<SwitchStrategy>(known.begin(), known.end());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SwitchStrategy> strategies,
                         ParseSwitchStrategies(arguments.strategies));
  for (const SwitchStrategy strategy : strategies) {
    if (std::find(known.begin(), known.end(), strategy) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("real models do not know the strategy ",
                       SwitchStrategyName(strategy)));
    }
  }
  return strategies;
}

}  // namespace

void AddArguments(CLI::App* app, SwitchingArguments* arguments) {
  CLI::Option* const file =
      app->add_option("FILE", arguments->file, "Scenarios, JSON")
          ->check(NotEmpty());
  app->add_option("--traces", arguments->traces,
                  "Folder of the workloads' traces; default: that of FILE")
      ->check(NotEmpty());
  app->add_option("--scenario", arguments->names, "By name; default: all")
      ->delimiter(',')
      ->needs(file);
  app->add_option("--policies", arguments->policies,
                  absl::StrCat("Separated by commas, each with its settings\n"
                               "behind colons. There are ",
                               KnownPolicies()))
      ->capture_default_str();
  app->add_option(
      "--strategies", arguments->strategies,
      absl::StrCat(
          "Separated by commas; default: all. There are ",
          KnownSwitchStrategies(),
          ".\nreload: only the models of a step are there, others are\n"
          "read from disk again; keep: the day as it is written;\n"
          "sleep: as reload, from host memory; shared: as keep, and\n"
          "reserved pools give way and take what is left; restart: a\n"
          "new process after each switch"));
  app->add_option("--disk-rate", arguments->disk_rate,
                  "What weights are read at, in a second")
      ->capture_default_str();
  app->add_option("--host-rate", arguments->host_rate,
                  "What is copied to and from host memory, in a second")
      ->capture_default_str();
  app->add_option("--pool-minimum", arguments->pool_minimum,
                  "shared: the part of a pool that never gives way")
      ->check(NumberBetween(0.0, 1.0))
      ->capture_default_str();
  app->add_option(
         "--days", arguments->days,
         "Play each day so often; what the last one calls is told apart")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000}))
      ->capture_default_str();
  app->add_option("--seed", arguments->generator.seed,
                  "Of what is drawn: the day, or the prompts")
      ->check(WholeNumber())
      ->capture_default_str();
  app->add_option(
         "--device-memory", arguments->device_memory,
         "Of the day that is generated, default 16GiB; of the device\n"
         "that real models share, default what the largest takes, and\n"
         "a sixteenth")
      ->excludes(file);
  AddGeneratorArguments(app, arguments);
  AddRealArguments(app, arguments);
  app->add_flag("--json", arguments->json, "Machine-readable output");
}

absl::StatusOr<SwitchingPlan> MakePlan(const SwitchingArguments& arguments) {
  QUIRE_RETURN_IF_ERROR(CheckMode(arguments));
  SwitchingPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.policies, ParsePolicySpecs(arguments.policies));
  QUIRE_ASSIGN_OR_RETURN(plan.strategies, ChooseStrategies(arguments));
  QUIRE_ASSIGN_OR_RETURN(plan.rates.disk,
                         ReadSize("--disk-rate", arguments.disk_rate));
  QUIRE_ASSIGN_OR_RETURN(plan.rates.host,
                         ReadSize("--host-rate", arguments.host_rate));
  plan.generator = arguments.generator;
  plan.generator.usable = GiB(16);
  plan.real = arguments.real;
  if (!arguments.device_memory.empty()) {
    QUIRE_ASSIGN_OR_RETURN(
        plan.generator.usable,
        ReadSize("--device-memory", arguments.device_memory));
    plan.real.device_memory = plan.generator.usable;
  }
  QUIRE_ASSIGN_OR_RETURN(plan.real.page_size,
                         ReadSize("--page-size", arguments.page_size));
  plan.real.seed = arguments.generator.seed;
  plan.generator.arrivals = arguments.arrivals == "bursts"
                                ? ArrivalProcess::kBursts
                                : ArrivalProcess::kPoisson;
  if (!arguments.mix.empty()) {
    QUIRE_ASSIGN_OR_RETURN(plan.generator.mix, ParseModelMix(arguments.mix));
  }
  return plan;
}

absl::Status CheckIdle(const CLI::App& app, const SwitchingArguments& arguments,
                       const SwitchingPlan& plan) {
  QUIRE_RETURN_IF_ERROR(
      CheckIdleOptions(app,
                       {"--traces", "--policies", "--disk-rate", "--host-rate",
                        "--pool-minimum", "--days", "--write"},
                       plan.real.models.empty(), "with --real"));
  QUIRE_RETURN_IF_ERROR(CheckIdleOptions(app, {"--burst-size"},
                                         arguments.arrivals == "bursts",
                                         "without --arrivals bursts"));
  QUIRE_RETURN_IF_ERROR(
      CheckIdleOptions(app, {"--seed"}, arguments.file.empty(), "with FILE"));
  const bool shares =
      std::find(plan.strategies.begin(), plan.strategies.end(),
                SwitchStrategy::kShared) != plan.strategies.end();
  return CheckIdleOptions(app, {"--pool-minimum"}, shares,
                          "without the strategy shared");
}

nlohmann::json SettingsToJson(const SwitchingArguments& arguments) {
  const GeneratorOptions& generator = arguments.generator;
  const RealOptions& real = arguments.real;
  if (!real.models.empty()) {
    return {{"real", real.models},
            {"device_memory", arguments.device_memory},
            {"page_size", arguments.page_size},
            {"prompt_tokens", real.prompt_tokens},
            {"tokens_per_turn", real.tokens_per_turn},
            {"turns", real.turns},
            {"threads", real.threads},
            {"seed", generator.seed}};
  }
  nlohmann::json settings = {{"file", arguments.file},
                             {"traces", arguments.traces},
                             {"disk_rate", arguments.disk_rate},
                             {"host_rate", arguments.host_rate},
                             {"pool_minimum", arguments.pool_minimum},
                             {"days", arguments.days}};
  if (generator.requests > 0) {
    settings["generate"] = {
        {"requests", generator.requests},
        {"seed", generator.seed},
        {"arrivals", arguments.arrivals},
        {"requests_per_hour", generator.requests_per_hour},
        {"burst_size", generator.burst_size},
        {"mix", arguments.mix},
        {"service_seconds", generator.service_seconds},
        {"keep_alive_seconds", generator.keep_alive_seconds},
        {"device_memory", arguments.device_memory},
        {"fill", generator.fill}};
  }
  return settings;
}

}  // namespace quire
