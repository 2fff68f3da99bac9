#include "bench/model_switching/options.h"

#include <iterator>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
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
  app->add_option("--generate", generator.requests,
                  "A day of so many requests at random, instead of FILE")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
  app->add_option("--seed", generator.seed, "Of the day that is generated")
      ->capture_default_str();
  app->add_option("--arrivals", arguments->arrivals,
                  "poisson: each request on its own; bursts: several for one "
                  "model")
      ->check(CLI::IsMember({"poisson", "bursts"}))
      ->capture_default_str();
  app->add_option("--requests-per-hour", generator.requests_per_hour)
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  app->add_option("--burst-size", generator.burst_size,
                  "Requests of a burst, mean")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app->add_option("--mix", arguments->mix,
                  "Workloads and their weights, as a=2,b=1; default: each CSV\n"
                  "of the traces once, except totals.csv");
  app->add_option("--service-seconds", generator.service_seconds,
                  "What a request takes, mean")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  app->add_option("--keep-alive-seconds", generator.keep_alive_seconds,
                  "After so long without a request a model is unloaded")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app->add_option("--device-memory", arguments->device_memory,
                  "Of the day that is generated")
      ->capture_default_str();
  app->add_option(
         "--fill", generator.fill,
         "Models are unloaded until what is asked for is at most this\n"
         "part of it")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app->add_option("--write", arguments->write,
                  "Write the day to this file, for FILE");
}

}  // namespace

void AddArguments(CLI::App* app, SwitchingArguments* arguments) {
  app->add_option("FILE", arguments->file, "Scenarios, JSON");
  app->add_option("--traces", arguments->traces,
                  "Folder of the workloads' traces; default: that of FILE");
  app->add_option("--scenario", arguments->names, "By name; default: all")
      ->delimiter(',');
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
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  AddGeneratorArguments(app, arguments);
  app->add_flag("--json", arguments->json, "Machine-readable output");
}

absl::StatusOr<SwitchingPlan> MakePlan(const SwitchingArguments& arguments) {
  const bool generates = arguments.generator.requests > 0;
  if (generates == !arguments.file.empty()) {
    return absl::InvalidArgumentError(
        "either FILE or --generate says which days to play");
  }
  if (generates && arguments.traces.empty()) {
    return absl::InvalidArgumentError("--generate needs --traces");
  }
  SwitchingPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.policies, ParsePolicySpecs(arguments.policies));
  if (arguments.strategies.empty()) {
    plan.strategies.assign(std::begin(kSwitchStrategies),
                           std::end(kSwitchStrategies));
  } else {
    QUIRE_ASSIGN_OR_RETURN(plan.strategies,
                           ParseSwitchStrategies(arguments.strategies));
  }
  QUIRE_ASSIGN_OR_RETURN(plan.rates.disk,
                         ReadSize("--disk-rate", arguments.disk_rate));
  QUIRE_ASSIGN_OR_RETURN(plan.rates.host,
                         ReadSize("--host-rate", arguments.host_rate));
  plan.generator = arguments.generator;
  QUIRE_ASSIGN_OR_RETURN(plan.generator.usable,
                         ReadSize("--device-memory", arguments.device_memory));
  plan.generator.arrivals = arguments.arrivals == "bursts"
                                ? ArrivalProcess::kBursts
                                : ArrivalProcess::kPoisson;
  if (!arguments.mix.empty()) {
    QUIRE_ASSIGN_OR_RETURN(plan.generator.mix, ParseModelMix(arguments.mix));
  }
  return plan;
}

nlohmann::json SettingsToJson(const SwitchingArguments& arguments) {
  const GeneratorOptions& generator = arguments.generator;
  nlohmann::json settings = {{"file", arguments.file},
                             {"traces", arguments.traces},
                             {"disk_rate", arguments.disk_rate},
                             {"host_rate", arguments.host_rate},
                             {"pool_minimum", arguments.pool_minimum}};
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
