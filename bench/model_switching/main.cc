// model_switching: days on a small server, on which models come and go.
//
// Plays the scenarios of a file against the policies of several systems: either
// one process keeps all models, or a new one is started at every switch, and
// loads again what is to be there. Says which switches were survived, why the
// others failed, and what was held, called and loaded. docs/experiments.md
// tells how far that is true.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/model_switching/player.h"
#include "bench/model_switching/report.h"
#include "bench/model_switching/scenario.h"
#include "bench/policies/policy_registry.h"
#include "bench/progress.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

struct Options {
  std::string file;
  std::string traces;
  std::vector<std::string> names;
  std::string policies = "quire,pytorch,pytorch-expandable";
  std::string disk_rate = "2GB";
  bool json = false;
};

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  if (file) return contents.str();
  return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
}

absl::Status InFile(const absl::Status& status,
                    const std::filesystem::path& path) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(path.string(), ": ", std::string(status.message())));
}

// Those that were asked for by name, or all.
absl::StatusOr<std::vector<Scenario>> ReadChosen(const Options& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::string contents, ReadFile(options.file));
  absl::StatusOr<std::vector<Scenario>> scenarios = ReadScenarios(contents);
  QUIRE_RETURN_IF_ERROR(InFile(scenarios.status(), options.file));
  if (options.names.empty()) return scenarios;
  std::vector<Scenario> chosen;
  for (const std::string& name : options.names) {
    const auto found =
        std::find_if(scenarios->begin(), scenarios->end(),
                     [&](const Scenario& known) { return known.name == name; });
    if (found == scenarios->end()) {
      std::string known;
      for (const Scenario& scenario : *scenarios) {
        absl::StrAppend(&known, known.empty() ? "" : ", ", scenario.name);
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no scenario \"", name, "\"; there are ", known));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

absl::StatusOr<std::map<std::string, Workload>> ReadWorkloads(
    const Options& options, const std::vector<Scenario>& scenarios) {
  const std::filesystem::path folder =
      options.traces.empty() ? std::filesystem::path(options.file).parent_path()
                             : std::filesystem::path(options.traces);
  std::map<std::string, Workload> workloads;
  for (const Scenario& scenario : scenarios) {
    for (const std::string& name : WorkloadsOf(scenario)) {
      if (workloads.contains(name)) continue;
      const std::filesystem::path path = folder / (name + ".csv");
      QUIRE_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
      absl::StatusOr<Workload> workload = ReadWorkload(contents);
      QUIRE_RETURN_IF_ERROR(InFile(workload.status(), path));
      workloads[name] = *std::move(workload);
    }
  }
  return workloads;
}

absl::StatusOr<std::vector<SwitchingRun>> RunAll(
    const std::vector<Scenario>& scenarios,
    const std::map<std::string, Workload>& workloads,
    const std::vector<PolicySpec>& specs, Bytes disk_rate) {
  constexpr SwitchStrategy kStrategies[] = {SwitchStrategy::kKeep,
                                            SwitchStrategy::kRestart};
  ProgressLine progress;
  const auto total = static_cast<double>(scenarios.size() * specs.size() *
                                         std::size(kStrategies));
  std::vector<SwitchingRun> runs;
  for (const Scenario& scenario : scenarios) {
    for (const PolicySpec& spec : specs) {
      for (const SwitchStrategy strategy : kStrategies) {
        const auto before = static_cast<double>(runs.size());
        SwitchingRun run{&scenario, spec.text, spec.kind,
                         strategy,  disk_rate, ScenarioResult()};
        QUIRE_ASSIGN_OR_RETURN(
            run.result,
            PlayScenario(
                scenario, workloads, spec, strategy, [&](uint64_t done) {
                  progress.Update(
                      absl::StrCat(scenario.name, ", ", spec.text),
                      before + static_cast<double>(done) /
                                   static_cast<double>(scenario.steps.size()),
                      total);
                }));
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

int Fail(int status, const absl::Status& error) {
  std::cerr << "model_switching: " << error.message() << "\n";
  return status;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Plays days on which models come and go on one device");
  app.add_option("FILE", options.file, "Scenarios, JSON")->required();
  app.add_option("--traces", options.traces,
                 "Folder of the workloads' traces; default: that of FILE");
  app.add_option("--scenario", options.names, "By name; default: all")
      ->delimiter(',');
  app.add_option("--policies", options.policies,
                 absl::StrCat("Separated by commas, each with its settings "
                              "behind colons. There are ",
                              KnownPolicies()))
      ->capture_default_str();
  app.add_option("--disk-rate", options.disk_rate,
                 "What weights are read at, in a second")
      ->capture_default_str();
  app.add_flag("--json", options.json, "Machine-readable output");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  const std::optional<Bytes> disk_rate = ParseBytes(options.disk_rate);
  if (!disk_rate || disk_rate->zero()) {
    return Fail(kWrongUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    "--disk-rate \"", options.disk_rate, "\" is no size")));
  }
  const auto specs = ParsePolicySpecs(options.policies);
  if (!specs.ok()) return Fail(kWrongUsage, specs.status());
  const auto scenarios = ReadChosen(options);
  if (!scenarios.ok()) return Fail(kFailed, scenarios.status());
  const auto workloads = ReadWorkloads(options, *scenarios);
  if (!workloads.ok()) return Fail(kFailed, workloads.status());
  const auto runs = RunAll(*scenarios, *workloads, *specs, *disk_rate);
  if (!runs.ok()) return Fail(kFailed, runs.status());
  std::cout << (options.json ? ToJson(*runs) : ToTable(*runs));
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
