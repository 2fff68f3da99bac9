// allocator_bench: what the device allocator costs, and how much memory it
// holds.
//
// Times are of the host: the device is HostDriver without memory. mimalloc runs
// the same sequences in the same run, in turn with Quire, so that the state of
// the machine is the same for both.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/allocator_bench/contender.h"
#include "bench/allocator_bench/report.h"
#include "bench/allocator_bench/sections.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"

namespace quire {
namespace {

struct NamedSection {
  const char* name;
  absl::StatusOr<Section> (*measure)(const BenchOptions&);
};
constexpr NamedSection kSections[] = {{"hit", MeasureHits},
                                      {"few", MeasureFew},
                                      {"threads", MeasureTwoThreads},
                                      {"handoff", MeasureHandoff},
                                      {"reuse", MeasureReuse},
                                      {"scaling", MeasureScaling},
                                      {"footprint", MeasureFootprint},
                                      {"compaction", MeasureCompaction}};

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures the device allocator on a software device, beside mimalloc");
  BenchOptions options;
  std::vector<std::string> wanted;
  std::set<std::string> names;
  for (const NamedSection& section : kSections) names.insert(section.name);
  bool quick = false;
  bool json = false;
  app.add_option("--section", wanted, "Only these (default: all)")
      ->check(CLI::IsMember(names));
  app.add_option("--repetitions", options.repetitions, "Of which medians are")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed, "Of the random sequences")
      ->check(WholeNumber())
      ->capture_default_str();
  app.add_flag("--quick", quick, "A hundredth of the work, once: does it run?");
  app.add_flag("--json", json, "Machine-readable output");
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  if (quick) {
    options.divisor = 100;
    options.repetitions = 1;
  }

  Circumstances circumstances = DescribeCircumstances();
  circumstances.mimalloc = Mimalloc::Version();
  circumstances.seed = options.seed;
  circumstances.repetitions = options.repetitions;
  std::vector<Section> sections;
  ProgressLine progress;
  const size_t total = wanted.empty() ? std::size(kSections) : wanted.size();
  for (const NamedSection& section : kSections) {
    if (!wanted.empty() &&
        std::find(wanted.begin(), wanted.end(), section.name) == wanted.end()) {
      continue;
    }
    progress.Update(section.name, static_cast<double>(sections.size()),
                    static_cast<double>(total));
    auto measured = section.measure(options);
    if (!measured.ok()) {
      std::fprintf(stderr, "allocator_bench: section %s: %s\n", section.name,
                   std::string(measured.status().message()).c_str());
      return kFailed;
    }
    sections.push_back(*std::move(measured));
  }
  progress.Clear();
  if (json) {
    nlohmann::json report = ReportToJson(circumstances, sections);
    report["settings"] = DescribeRun(app, argc, argv);
    std::cout << report.dump(2) << "\n";
  } else {
    std::cout << FormatReport(circumstances, sections);
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("allocator_bench", quire::Main(argc, argv));
}
