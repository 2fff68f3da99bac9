// allocator_replay: allocation traces through the allocator, on a software
// device without memory.
//
// Each file is played twice on a fresh device: once looking at the pool after
// each allocation, for the peaks, and once without, for the time. The ratio is
// peak mapped to peak requested: 1 is what no allocator can better.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "bench/run_description.h"
#include "bench/trace_file.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_replay.h"

namespace quire {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string device_memory = "80GiB";
  std::string page_size = "2MiB";
  std::string limit = "0";
  bool threads = false;
  bool try_failures = false;
  std::optional<int32_t> device;
  bool json = false;
};

struct Result {
  std::string file;
  size_t events = 0;
  AllocationTraceSummary recorded;
  TraceReplayResult replay;              // of the pass that measured peaks
  double nanoseconds_per_operation = 0;  // of the other one

  double Ratio(Bytes part) const {
    const auto whole = static_cast<double>(replay.peak_requested.value());
    return whole > 0 ? static_cast<double>(part.value()) / whole : 0;
  }
  uint64_t DriverCalls() const {
    uint64_t sum = 0;
    for (const auto& [name, count] : replay.driver_calls) sum += count;
    return sum;
  }
};

absl::StatusOr<TraceReplayResult> PlayOnce(const Options& options,
                                           const AllocationTrace& trace,
                                           bool measure_peak) {
  HostDriverOptions device;
  device.memory_per_device = *ParseBytes(options.device_memory);
  device.backing = HostDriverOptions::Backing::kNone;
  device.costs = DriverCostTable::Free();
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<HostDriver> driver,
                         HostDriver::Create(device));
  OwnerRegistry owners;
  DeviceMemoryOptions memory_options;
  memory_options.page_size = *ParseBytes(options.page_size);
  memory_options.limit = *ParseBytes(options.limit);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceMemory> memory,
      DeviceMemory::Create(driver.get(), &owners, memory_options));
  const std::unique_ptr<DeviceAllocator> allocator =
      DeviceAllocator::Create(memory.get());
  TraceReplayOptions replay;
  replay.measure_peak = measure_peak;
  replay.use_threads = options.threads;
  replay.try_failures = options.try_failures;
  replay.owners = &owners;
  absl::StatusOr<TraceReplayResult> result =
      ReplayTrace(trace, memory.get(), allocator.get(), replay);
  QUIRE_RETURN_IF_ERROR(allocator->CheckInvariants());
  QUIRE_RETURN_IF_ERROR(memory->CheckInvariants());
  return result;
}

// `timing` is called before the second pass.
absl::StatusOr<Result> Play(const Options& options, const std::string& path,
                            const AllocationTrace& trace,
                            const std::function<void()>& timing) {
  Result result;
  result.file = path;
  result.events = trace.events.size();
  result.recorded = SummarizeAllocationTrace(trace);
  QUIRE_ASSIGN_OR_RETURN(result.replay, PlayOnce(options, trace, true));
  timing();
  QUIRE_ASSIGN_OR_RETURN(const TraceReplayResult timed,
                         PlayOnce(options, trace, false));
  result.nanoseconds_per_operation =
      static_cast<double>(timed.nanoseconds) /
      static_cast<double>(std::max<uint64_t>(timed.operations, 1));
  return result;
}

// Errors name the file.
absl::StatusOr<Result> PlayFile(const Options& options, const std::string& path,
                                const std::function<void()>& timing) {
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace trace,
                         ReadTraceFile(path, options.device));
  absl::StatusOr<Result> result = Play(options, path, trace, timing);
  if (!result.ok()) return InFile(path, result.status());
  return result;
}

// `run` is of DescribeRun.
nlohmann::json ToJson(const Result& result, const nlohmann::json& run) {
  nlohmann::json calls = nlohmann::json::object();
  for (const auto& [name, count] : result.replay.driver_calls) {
    calls[name] = count;
  }
  return {
      {"file", result.file},
      {"events", result.events},
      {"streams", result.recorded.streams},
      {"threads", result.recorded.threads},
      {"peak_requested", result.replay.peak_requested.value()},
      {"peak_mapped", result.replay.peak_mapped.value()},
      {"peak_in_use", result.replay.peak_in_use.value()},
      {"mapped_per_requested", result.Ratio(result.replay.peak_mapped)},
      {"peak_reserved_when_recorded", result.recorded.peak_reserved.value()},
      {"failures", result.replay.failures},
      {"failures_when_recorded", result.recorded.failures},
      {"failures_served", result.replay.failures_served},
      {"driver_calls", calls},
      {"nanoseconds_per_operation", result.nanoseconds_per_operation},
      {"settings", run}};
}

std::string FileName(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

void PrintTable(const std::vector<Result>& results) {
  size_t width = 4;
  for (const Result& result : results) {
    width = std::max(width, FileName(result.file).size());
  }
  const int column = static_cast<int>(width);
  std::printf("%-*s %8s %11s %11s %7s %11s %7s %11s %6s %8s %7s\n", column,
              "file", "events", "requested", "mapped", "ratio", "in use",
              "ratio", "recorded", "failed", "calls", "ns/op");
  for (const Result& result : results) {
    const Bytes recorded = result.recorded.peak_reserved;
    std::printf("%-*s %8zu %11s %11s %7.4f %11s %7.4f %11s %6s %8s %7.1f\n",
                column, FileName(result.file).c_str(), result.events,
                FormatBytes(result.replay.peak_requested).c_str(),
                FormatBytes(result.replay.peak_mapped).c_str(),
                result.Ratio(result.replay.peak_mapped),
                FormatBytes(result.replay.peak_in_use).c_str(),
                result.Ratio(result.replay.peak_in_use),
                recorded.zero() ? "-" : FormatBytes(recorded).c_str(),
                absl::StrCat(result.replay.failures).c_str(),
                absl::StrCat(result.DriverCalls()).c_str(),
                result.nanoseconds_per_operation);
  }
}

// Whether there is room for a page.
absl::Status CheckSizes(const Options& options) {
  const Bytes page = *ParseBytes(options.page_size);
  const auto check = [&](const char* option, const std::string& text) {
    return *ParseBytes(text) >= page
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(option, " ", text,
                                                         " holds no page of ",
                                                         options.page_size));
  };
  QUIRE_RETURN_IF_ERROR(check("--device-memory", options.device_memory));
  if (ParseBytes(options.limit)->zero()) return absl::OkStatus();
  return check("--limit", options.limit);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Plays allocation traces and says what memory they took");
  app.add_option("FILE", options.files,
                 "Traces: Quire's CSV and snapshots, RMM's log, PyTorch's "
                 "snapshots")
      ->required();
  app.add_option("--device-memory", options.device_memory,
                 "Of the software device")
      ->check(ByteSize())
      ->capture_default_str();
  app.add_option("--page-size", options.page_size, "Of a physical page")
      ->check(PageSize())
      ->capture_default_str();
  app.add_option("--limit", options.limit,
                 "The most that may be used; 0: the whole device")
      ->check(ByteSize())
      ->capture_default_str();
  app.add_flag("--threads", options.threads,
               "A thread for each one of the trace");
  app.add_flag("--try-failures", options.try_failures,
               "Try what failed when it was recorded");
  app.add_option("--device", options.device,
                 "Of snapshots of PyTorch; default: the only one that has "
                 "events")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--json", options.json, "Machine-readable output");
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  if (const absl::Status usage = CheckSizes(options); !usage.ok()) {
    std::cerr << "allocator_replay: " << usage.message() << "\n";
    return kWrongUsage;
  }
  std::vector<Result> results;
  // Two passes of each file.
  ProgressLine progress;
  const auto tell = [&](const std::string& path, size_t pass) {
    progress.Update(FileName(path),
                    static_cast<double>(2 * results.size() + pass),
                    static_cast<double>(2 * options.files.size()));
  };
  for (const std::string& path : options.files) {
    tell(path, 0);
    const absl::StatusOr<Result> result =
        PlayFile(options, path, [&] { tell(path, 1); });
    if (!result.ok()) {
      std::cerr << "allocator_replay: " << result.status().message() << "\n";
      return kFailed;
    }
    results.push_back(*result);
  }
  progress.Clear();
  if (options.json) {
    nlohmann::json json = nlohmann::json::array();
    const nlohmann::json run = DescribeRun(app, argc, argv);
    for (const Result& result : results) json.push_back(ToJson(result, run));
    std::cout << json.dump(2) << "\n";
  } else {
    PrintTable(results);
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("allocator_replay", quire::Main(argc, argv));
}
