// model_switching: days on a small server, on which models come and go.
//
// Plays the scenarios of a file, or days drawn at random, against the policies
// of several systems, with the strategies that there are to share a device in
// turns. Says which switches were survived, why the others failed, and what was
// held, called, moved and waited for. docs/experiments.md tells how far that is
// true.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/model_switching/generator.h"
#include "bench/model_switching/options.h"
#include "bench/model_switching/player.h"
#include "bench/model_switching/real_models.h"
#include "bench/model_switching/real_report.h"
#include "bench/model_switching/report.h"
#include "bench/model_switching/scenario.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/loader/output_file.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

using Workloads = std::map<std::string, Workload>;

absl::Status InFile(const absl::Status& status,
                    const std::filesystem::path& path) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(path.string(), ": ", std::string(status.message())));
}

absl::StatusOr<std::vector<Scenario>> ReadFile(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string contents, ReadRegularFile(path));
  absl::StatusOr<std::vector<Scenario>> scenarios = ReadScenarios(contents);
  QUIRE_RETURN_IF_ERROR(InFile(scenarios.status(), path));
  return scenarios;
}

// Leaves those that were asked for by name, in that order; all, where none was.
absl::Status Choose(const std::vector<std::string>& names,
                    std::vector<Scenario>* scenarios) {
  std::vector<Scenario> chosen;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(scenarios->begin(), scenarios->end(),
                     [&](const Scenario& known) { return known.name == name; });
    if (found == scenarios->end())
      return absl::InvalidArgumentError(absl::StrCat(
          "--scenario ", name, ": there is none of that name; there are ",
          absl::StrJoin(*scenarios, ", ",
                        [](std::string* text, const Scenario& known) {
                          absl::StrAppend(text, known.name);
                        })));
    chosen.push_back(*found);
  }
  if (!names.empty()) *scenarios = std::move(chosen);
  return absl::OkStatus();
}

std::filesystem::path TraceFolder(const SwitchingArguments& arguments) {
  return arguments.traces.empty()
             ? std::filesystem::path(arguments.file).parent_path()
             : std::filesystem::path(arguments.traces);
}

absl::Status ReadWorkloadInto(const std::filesystem::path& folder,
                              const std::string& name, Workloads* workloads) {
  if (workloads->contains(name)) return absl::OkStatus();
  const std::filesystem::path path = folder / (name + ".csv");
  QUIRE_ASSIGN_OR_RETURN(const std::string contents,
                         ReadRegularFile(path.string()));
  absl::StatusOr<Workload> workload = ReadWorkload(contents);
  QUIRE_RETURN_IF_ERROR(InFile(workload.status(), path));
  (*workloads)[name] = *std::move(workload);
  return absl::OkStatus();
}

// Every trace of a folder, once.
absl::StatusOr<std::map<std::string, double>> MixOfFolder(
    const std::filesystem::path& folder) {
  std::map<std::string, double> mix;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".csv" && path.stem() != "totals") {
      mix[path.stem().string()] = 1;
    }
  }
  if (!mix.empty()) return mix;
  return absl::NotFoundError(
      absl::StrCat(folder.string(), ": there are no traces"));
}

// The days to play, where there are none yet, and what they play.
absl::Status MakeDays(const SwitchingArguments& arguments,
                      GeneratorOptions generator,
                      std::vector<Scenario>* scenarios, Workloads* workloads) {
  const std::filesystem::path folder = TraceFolder(arguments);
  if (!scenarios->empty()) {
    for (const Scenario& scenario : *scenarios) {
      for (const std::string& name : WorkloadsOf(scenario)) {
        QUIRE_RETURN_IF_ERROR(ReadWorkloadInto(folder, name, workloads));
      }
    }
    return absl::OkStatus();
  }
  if (generator.mix.empty()) {
    QUIRE_ASSIGN_OR_RETURN(generator.mix, MixOfFolder(folder));
  }
  for (const auto& [name, weight] : generator.mix) {
    QUIRE_RETURN_IF_ERROR(ReadWorkloadInto(folder, name, workloads));
  }
  QUIRE_ASSIGN_OR_RETURN(scenarios->emplace_back(),
                         GenerateScenario(generator, *workloads));
  return absl::OkStatus();
}

absl::Status InScenario(const absl::Status& status, const Scenario& scenario) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("scenario ", scenario.name, ": ",
                                   std::string(status.message())));
}

// What the file says of itself must be so.
absl::Status CheckMinima(const Scenario& scenario,
                         const std::vector<Bytes>& counted) {
  const std::vector<Bytes>& told = scenario.minimum_peak_of_steps;
  for (size_t i = 0; i < told.size(); ++i) {
    if (told[i] == counted[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", i, ": minimum_peak_bytes_of_each_step says ", told[i].value(),
        ", where ", counted[i].value(), " are live at the most"));
  }
  return absl::OkStatus();
}

// `counting` is called before each.
absl::StatusOr<std::map<SwitchStrategy, std::vector<Bytes>>> CountAllMinima(
    const Scenario& scenario, const Workloads& workloads,
    const SwitchingPlan& plan, double pool_minimum,
    const std::function<void()>& counting) {
  std::map<SwitchStrategy, std::vector<Bytes>> minima;
  for (const SwitchStrategy strategy : plan.strategies) {
    counting();
    QUIRE_ASSIGN_OR_RETURN(
        minima[strategy],
        CountMinima(scenario, workloads, strategy, pool_minimum));
    if (strategy == SwitchStrategy::kKeep) {
      QUIRE_RETURN_IF_ERROR(CheckMinima(scenario, minima[strategy]));
    }
  }
  return minima;
}

// `ended` is told of each run.
absl::StatusOr<std::vector<SwitchingRun>> RunAll(
    const std::vector<Scenario>& scenarios, const Workloads& workloads,
    const SwitchingArguments& arguments, const SwitchingPlan& plan,
    const std::function<void(const SwitchingRun&)>& ended) {
  const double pool_minimum = arguments.pool_minimum;
  ProgressLine progress;
  const auto total = static_cast<double>(
      scenarios.size() * plan.policies.size() * plan.strategies.size());
  std::vector<SwitchingRun> runs;
  for (const Scenario& scenario : scenarios) {
    const auto minima =
        CountAllMinima(scenario, workloads, plan, pool_minimum, [&] {
          progress.Update(absl::StrCat(scenario.name, ", least memory"),
                          static_cast<double>(runs.size()), total);
        });
    QUIRE_RETURN_IF_ERROR(InScenario(minima.status(), scenario));
    for (const PolicySpec& policy : plan.policies) {
      for (const SwitchStrategy strategy : plan.strategies) {
        const auto before = static_cast<double>(runs.size());
        SwitchingRun run{
            &scenario,    policy.text, policy.kind,          strategy,
            pool_minimum, plan.rates,  minima->at(strategy), ScenarioResult()};
        SwitchingOptions options;
        options.strategy = strategy;
        options.pool_minimum = pool_minimum;
        options.days = arguments.days;
        options.progress = [&](uint64_t done) {
          progress.Update(
              absl::StrCat(scenario.name, ", ", policy.text),
              before + static_cast<double>(done) /
                           static_cast<double>(arguments.days *
                                               scenario.steps.size()),
              total);
        };
        absl::StatusOr<ScenarioResult> result =
            PlayScenario(scenario, workloads, policy, options);
        QUIRE_RETURN_IF_ERROR(InScenario(result.status(), scenario));
        run.result = *std::move(result);
        progress.Clear();
        ended(run);
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

// `scenarios` of a file; empty: a day is generated.
absl::Status PlayDays(const SwitchingArguments& arguments,
                      const SwitchingPlan& plan, const nlohmann::json& settings,
                      std::vector<Scenario> scenarios) {
  Workloads workloads;
  QUIRE_RETURN_IF_ERROR(
      MakeDays(arguments, plan.generator, &scenarios, &workloads));
  if (!arguments.write.empty()) {
    QUIRE_RETURN_IF_ERROR(
        WriteFile(arguments.write, WriteScenarios(scenarios)));
  }
  // Line by line: who stops a long run keeps what it has said.
  const char* before = "[\n";
  const auto print = [&](const SwitchingRun& run) {
    if (!arguments.json) return;
    std::cout << before << ToJson(run, settings) << std::flush;
    before = ",\n";
  };
  QUIRE_ASSIGN_OR_RETURN(const std::vector<SwitchingRun> runs,
                         RunAll(scenarios, workloads, arguments, plan, print));
  std::cout << (arguments.json ? (runs.empty() ? "[\n]\n" : "\n]\n")
                               : ToTable(runs));
  return absl::OkStatus();
}

// False where a model has said something else than alone.
absl::StatusOr<bool> PlayRealModels(const SwitchingArguments& arguments,
                                    const SwitchingPlan& plan,
                                    const nlohmann::json& settings) {
  ProgressLine progress;
  RealOptions options = plan.real;
  options.progress = [&](const std::string& what, double done, double total) {
    progress.Update(what, done, total);
  };
  QUIRE_ASSIGN_OR_RETURN(const std::vector<RealModel> models,
                         RunAlone(options));
  std::vector<RealResult> results;
  bool right = true;
  for (const SwitchStrategy strategy : plan.strategies) {
    QUIRE_ASSIGN_OR_RETURN(RealResult result,
                           RunInTurns(options, models, strategy));
    right = right && (result.failure || AllEqual(models, result));
    results.push_back(std::move(result));
  }
  progress.Clear();
  std::cout << (arguments.json ? RealToJson(models, results, settings)
                               : RealToTable(models, results));
  return right;
}

int Fail(int exit_status, const absl::Status& error) {
  std::cerr << "model_switching: " << error.message() << "\n";
  return exit_status;
}

int Main(int argc, char** argv) {
  SwitchingArguments arguments;
  CLI::App app("Plays days on which models come and go on one device");
  AddArguments(&app, &arguments);
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  const absl::StatusOr<SwitchingPlan> plan = MakePlan(arguments);
  if (!plan.ok()) return Fail(kWrongUsage, plan.status());
  const absl::Status idle = CheckIdle(app, arguments, *plan);
  if (!idle.ok()) return Fail(kWrongUsage, idle);
  nlohmann::json settings = SettingsToJson(arguments);
  settings.update(DescribeRun(app, argc, argv));
  if (plan->real.models.empty()) {
    absl::StatusOr<std::vector<Scenario>> scenarios = std::vector<Scenario>();
    if (plan->generator.requests == 0) {
      scenarios = ReadFile(arguments.file);
      if (!scenarios.ok()) return Fail(kFailed, scenarios.status());
      const absl::Status named = Choose(arguments.names, &*scenarios);
      if (!named.ok()) return Fail(kWrongUsage, named);
    }
    const absl::Status played =
        PlayDays(arguments, *plan, settings, *std::move(scenarios));
    return played.ok() ? 0 : Fail(kFailed, played);
  }
  const absl::StatusOr<bool> right = PlayRealModels(arguments, *plan, settings);
  if (!right.ok()) return Fail(kFailed, right.status());
  return *right ? 0 : kFailed;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("model_switching", quire::Main(argc, argv));
}
