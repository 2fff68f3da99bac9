// fragmentation_stress: which policy would have survived a trace?
//
// Plays allocation traces, or loads made up from a seed, against the policies
// of several systems on software devices without memory, and says what each
// held, called and cost, and what it could not serve. docs/experiments.md tells
// how far that is true.

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/fragmentation_stress/loads.h"
#include "bench/fragmentation_stress/report.h"
#include "bench/option_checks.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_run.h"
#include "bench/policies/simulated_device.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"
#include "bench/trace_file.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {
namespace {

// Of a load: its trace is held as a whole, at 64 bytes an event.
constexpr uint64_t kMostEvents = 10000000;

struct Options {
  std::vector<std::string> traces;
  std::vector<std::string> loads;
  uint64_t seed = 1;
  uint64_t events = 100000;
  std::string live = "8GiB";
  std::string policies = "quire,pytorch,pytorch-expandable";
  std::string device_memory = "24GiB";
  uint64_t repeat = 1;
  uint64_t timeline = 0;
  uint64_t page_maps = 0;
  std::optional<int32_t> device;
  bool json = false;
  nlohmann::json run;  // of DescribeRun
};

struct NamedTrace {
  std::string name;
  nlohmann::json settings;  // what it is read or made from
  AllocationTrace trace;
};

absl::StatusOr<Bytes> ParseSize(const char* option, const std::string& text) {
  const std::optional<Bytes> size = ParseBytes(text);
  if (size && *size >= SimulatedDevice::kPage && *size <= kLargestRequest) {
    return *size;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " \"", text, "\" is no size from ",
                   FormatBytes(SimulatedDevice::kPage), " to ",
                   FormatBytes(kLargestRequest)));
}

absl::StatusOr<NamedTrace> ReadTrace(const std::string& path,
                                     std::optional<int32_t> device) {
  QUIRE_ASSIGN_OR_RETURN(AllocationTrace trace, ReadTraceFile(path, device));
  if (trace.events.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": there are no events"));
  }
  nlohmann::json settings = {{"trace", path}};
  if (device) settings["device"] = *device;
  return NamedTrace{path, std::move(settings), std::move(trace)};
}

absl::StatusOr<NamedTrace> MakeTrace(const Options& options,
                                     const std::string& load) {
  QUIRE_ASSIGN_OR_RETURN(const Bytes live, ParseSize("--live", options.live));
  QUIRE_ASSIGN_OR_RETURN(AllocationTrace trace,
                         MakeLoad(load, {options.seed, options.events, live}));
  return NamedTrace{absl::StrCat(load, ", seed ", options.seed, ", ",
                                 FormatBytes(live), " live"),
                    {{"load", load},
                     {"seed", options.seed},
                     {"events", options.events},
                     {"live", live.value()}},
                    std::move(trace)};
}

absl::StatusOr<StressRun> RunOne(const Options& options, Bytes device_memory,
                                 const NamedTrace& trace,
                                 const PolicySpec& spec,
                                 const PolicyRunOptions& how) {
  StressRun run;
  run.trace = trace.name;
  run.policy = spec.text;
  run.kind = spec.kind;
  run.device_memory = device_memory;
  run.events = trace.trace.events.size();
  run.iterations = options.repeat;
  run.settings = trace.settings;
  run.settings.update({{"policy", spec.text},
                       {"device_memory", device_memory.value()},
                       {"repeat", options.repeat},
                       {"timeline", options.timeline},
                       {"page_maps", options.page_maps},
                       {"driver_costs", "A100"}});
  run.settings.update(options.run);
  run.asked = SummarizeAllocationTrace(trace.trace);
  QUIRE_ASSIGN_OR_RETURN(PolicyRun played,
                         RunPolicy(trace.trace, device_memory, spec, how));
  run.result = std::move(played.result);
  run.looks = std::move(played.looks);
  if (run.result.first_failure) {
    run.before_failure = DescribeWorkloadOrder(
        trace.trace, run.result.first_failure->moment.event);
  }
  return run;
}

// All policies, one after the other, on one trace.
absl::Status RunPolicies(const Options& options, Bytes device_memory,
                         const NamedTrace& trace,
                         const std::vector<PolicySpec>& specs, double total,
                         ProgressLine* progress, std::vector<StressRun>* runs) {
  for (const PolicySpec& spec : specs) {
    PolicyRunOptions how;
    how.iterations = options.repeat;
    how.timeline_points = options.timeline;
    how.page_map_points = options.page_maps;
    const auto before = static_cast<double>(runs->size());
    how.progress = [&](uint64_t done, uint64_t all) {
      progress->Update(
          absl::StrCat(trace.name, ", ", spec.text),
          before + static_cast<double>(done) / static_cast<double>(all), total);
    };
    absl::StatusOr<StressRun> run =
        RunOne(options, device_memory, trace, spec, how);
    if (!run.ok()) {
      return absl::Status(run.status().code(),
                          absl::StrCat(trace.name, ", ", spec.text, ": ",
                                       std::string(run.status().message())));
    }
    runs->push_back(*std::move(run));
  }
  return absl::OkStatus();
}

// `traces`, then the loads, each of which is made when it is its turn.
absl::Status RunAll(const Options& options, Bytes device_memory,
                    const std::vector<NamedTrace>& traces,
                    const std::vector<PolicySpec>& specs,
                    std::vector<StressRun>* runs) {
  ProgressLine progress;
  const auto total = static_cast<double>(
      (traces.size() + options.loads.size()) * specs.size());
  for (const NamedTrace& trace : traces) {
    QUIRE_RETURN_IF_ERROR(RunPolicies(options, device_memory, trace, specs,
                                      total, &progress, runs));
  }
  for (const std::string& load : options.loads) {
    QUIRE_ASSIGN_OR_RETURN(const NamedTrace trace, MakeTrace(options, load));
    QUIRE_RETURN_IF_ERROR(RunPolicies(options, device_memory, trace, specs,
                                      total, &progress, runs));
  }
  return absl::OkStatus();
}

void Print(const Options& options, size_t policies,
           const std::vector<StressRun>& runs) {
  if (options.json) {
    std::cout << ToJson(runs, RankRuns(runs));
    return;
  }
  for (size_t first = 0; first < runs.size(); first += policies) {
    const std::vector<StressRun> of_trace(runs.begin() + first,
                                          runs.begin() + first + policies);
    if (first > 0) std::cout << "\n";
    std::cout << ToTable(of_trace, RankRuns(of_trace));
  }
}

int Fail(int status, const absl::Status& error) {
  std::cerr << "fragmentation_stress: " << error.message() << "\n";
  return status;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Plays allocation traces against the policies of several systems");
  app.add_option("--trace", options.traces,
                 "Traces: Quire's CSV and snapshots, RMM's log, PyTorch's "
                 "snapshots")
      ->check(NotEmpty());
  app.add_option("--device", options.device,
                 "Of the traces that are snapshots of PyTorch; default: the "
                 "only one that has events")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--load", options.loads,
                 absl::StrCat("Made-up loads:\n", DescribeLoads()))
      ->delimiter(',');
  app.add_option("--seed", options.seed, "Of the loads")
      ->check(WholeNumber())
      ->capture_default_str();
  app.add_option("--events", options.events,
                 "Of each load, about; for more, --repeat")
      ->check(CLI::Range(uint64_t{1}, kMostEvents))
      ->capture_default_str();
  app.add_option("--live", options.live, "Of each load at its peak, about")
      ->capture_default_str();
  app.add_option("--policies", options.policies,
                 absl::StrCat("Separated by commas, each with its settings "
                              "behind colons, as in "
                              "pytorch:max_split_size_mb=128. There are ",
                              KnownPolicies()))
      ->capture_default_str();
  app.add_option("--device-memory", options.device_memory,
                 "Of the software device")
      ->capture_default_str();
  app.add_option("--repeat", options.repeat,
                 "Play the trace so often; from the second time on it is a "
                 "steady state")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}))
      ->capture_default_str();
  app.add_option("--timeline", options.timeline,
                 "So many looks at the memory over time, in the JSON")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1000000}))
      ->capture_default_str();
  app.add_option("--page-maps", options.page_maps,
                 "So many looks at how full each page is, in the JSON, and "
                 "one at the peak, at the first failure and at the end")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1000}))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Machine-readable output");
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  options.run = DescribeRun(app, argc, argv);
  if (options.traces.empty() && options.loads.empty()) {
    return Fail(kWrongUsage, absl::InvalidArgumentError(
                                 "nothing to play: give --trace or --load"));
  }
  for (const absl::Status& idle :
       {CheckIdleOptions(app, {"--seed", "--events", "--live"},
                         !options.loads.empty(), "without --load"),
        CheckIdleOptions(app, {"--device"}, !options.traces.empty(),
                         "without --trace"),
        CheckIdleOptions(app, {"--timeline", "--page-maps"}, options.json,
                         "without --json")}) {
    if (!idle.ok()) return Fail(kWrongUsage, idle);
  }
  const auto device_memory =
      ParseSize("--device-memory", options.device_memory);
  if (!device_memory.ok()) return Fail(kWrongUsage, device_memory.status());
  const auto live = ParseSize("--live", options.live);
  if (!live.ok()) return Fail(kWrongUsage, live.status());
  const auto specs = ParsePolicySpecs(options.policies);
  if (!specs.ok()) return Fail(kWrongUsage, specs.status());
  for (const std::string& load : options.loads) {
    const absl::Status known = CheckLoad(load);
    if (!known.ok()) return Fail(kWrongUsage, known);
  }
  std::vector<NamedTrace> traces;
  for (const std::string& path : options.traces) {
    absl::StatusOr<NamedTrace> trace = ReadTrace(path, options.device);
    if (!trace.ok()) return Fail(kFailed, trace.status());
    traces.push_back(*std::move(trace));
  }
  std::vector<StressRun> runs;
  const absl::Status played =
      RunAll(options, *device_memory, traces, *specs, &runs);
  if (!played.ok()) return Fail(kFailed, played);
  Print(options, specs->size(), runs);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("fragmentation_stress", quire::Main(argc, argv));
}
