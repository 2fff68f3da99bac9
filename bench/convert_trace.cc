// convert_trace: an allocation trace of any format that is read, in one that is
// written: Quire's CSV, RMM's log, PyTorch's memory snapshot.
//
// Nothing in a file is run: a pickle that names a class or a function is
// refused. What the new format has no place for is left out, and counted.

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/trace_file.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"
#include "quire/loader/output_file.h"

namespace quire {
namespace {

struct Options {
  std::string in;
  std::string out;
  std::string to;
  std::optional<int32_t> device;
  bool json = false;
};

// The format that a file's name asks for; empty: none.
std::string FormatOfName(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension();
  if (extension == ".pickle" || extension == ".pkl") return "pytorch";
  if (extension == ".csv") return "quire";
  return "";
}

absl::StatusOr<std::string> Write(const std::string& format,
                                  const AllocationTrace& trace) {
  if (format == "quire") return WriteQuireCsv(trace);
  if (format == "rmm") return WriteRmmCsv(trace);
  return WritePyTorchSnapshot(trace);
}

// How often each thing is in `trace` that `format` has no place for.
nlohmann::json CountLeftOut(const std::string& format,
                            const AllocationTrace& trace) {
  nlohmann::json left_out = nlohmann::json::object();
  if (format == "quire") return left_out;
  uint64_t recorded_streams = 0, marks = 0, reserves = 0, alignments = 0,
           owners = 0;
  std::set<uint64_t> threads;
  for (const AllocationEvent& event : trace.events) {
    switch (event.action) {
      case AllocationAction::kRecordStream:
        ++recorded_streams;
        break;
      case AllocationAction::kMark:
        ++marks;
        continue;
      case AllocationAction::kReserve:
      case AllocationAction::kRelease:
        ++reserves;
        break;
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
      case AllocationAction::kFree:
      case AllocationAction::kFailure:
        break;
    }
    if (!event.alignment.zero()) ++alignments;
    if (event.label != 0) ++owners;
    threads.insert(event.thread);
  }
  const auto tell = [&](const char* what, uint64_t count) {
    if (count > 0) left_out[what] = count;
  };
  tell("recorded_streams", recorded_streams);
  tell("marks", marks);
  tell("alignments", alignments);
  tell("owners", owners);
  if (format == "rmm") tell("reserves", reserves);
  if (format == "pytorch") {
    tell("threads", threads.size() > 1 ? threads.size() : 0);
  }
  return left_out;
}

absl::Status Convert(const Options& options, const std::string& format) {
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace trace,
                         ReadTraceFile(options.in, options.device));
  const absl::StatusOr<std::string> written = Write(format, trace);
  if (!written.ok()) return InFile(options.in, written.status());
  QUIRE_RETURN_IF_ERROR(WriteFile(options.out, *written));
  const AllocationTraceSummary summary = SummarizeAllocationTrace(trace);
  const nlohmann::json left_out = CountLeftOut(format, trace);
  if (options.json) {
    const nlohmann::json object = {
        {"in", options.in},
        {"out", options.out},
        {"format", format},
        {"events", trace.events.size()},
        {"allocations", summary.allocations},
        {"frees", summary.frees},
        {"failures", summary.failures},
        {"streams", summary.streams},
        {"peak_requested", summary.peak_requested.value()},
        {"left_out", left_out}};
    std::cout << object.dump() << "\n";
    return absl::OkStatus();
  }
  std::cerr << "convert_trace: " << options.in << ": " << trace.events.size()
            << " events, " << summary.allocations << " allocations, at most "
            << FormatBytes(summary.peak_requested) << " at a time\n";
  for (const auto& [what, count] : left_out.items()) {
    std::cerr << "convert_trace: " << format << " has no place for " << what
              << ": " << count << " left out\n";
  }
  return absl::OkStatus();
}

int Fail(int exit_status, const absl::Status& error) {
  std::cerr << "convert_trace: " << error.message() << "\n";
  return exit_status;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Writes an allocation trace in another format. Read are Quire's CSV and\n"
      "memory snapshots, RMM's log and PyTorch's memory snapshots, whichever\n"
      "it is. Example: convert_trace snapshot.pickle trace.csv");
  app.add_option("IN", options.in, "The trace")->required()->check(NotEmpty());
  app.add_option("OUT", options.out, "Where to")->required()->check(NotEmpty());
  app.add_option("--to", options.to,
                 "quire: Quire's CSV; rmm: the log of RMM's\n"
                 "logging_resource_adaptor; pytorch: a memory snapshot.\n"
                 "Default: by OUT, quire for .csv, pytorch for .pickle")
      ->check(CLI::IsMember({"quire", "rmm", "pytorch"}));
  app.add_option("--device", options.device,
                 "Of a snapshot of PyTorch; default: the only one that has\n"
                 "events")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--json", options.json, "Machine-readable summary");
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  const std::string format =
      options.to.empty() ? FormatOfName(options.out) : options.to;
  if (format.empty()) {
    return Fail(kWrongUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    options.out, ": its name tells no format; say --to")));
  }
  const absl::Status converted = Convert(options, format);
  return converted.ok() ? 0 : Fail(kFailed, converted);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("convert_trace", quire::Main(argc, argv));
}
