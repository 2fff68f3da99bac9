#include "model/cli/memory_output.h"

#include <nlohmann/json.hpp>

#include "model/cli/output.h"
#include "model/config/file_io.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/status_macros.h"

namespace quire {

void AddMemoryOutputOptions(CLI::App* app, MemoryOutputOptions* options) {
  app->add_flag("--memory-report", options->report,
                "Print where the device's memory went, on stderr");
  app->add_option("--memory-snapshot", options->snapshot,
                  "File for a snapshot that `quire memory` reads");
}

absl::Status WriteMemoryOutput(const MemoryOutputOptions& options,
                               Session& session) {
  if (!options.report && options.snapshot.empty()) return absl::OkStatus();
  session.runtime().trace()->Mark("end");
  MemorySnapshotOptions snapshot_options;
  // The ring is given back when the weights are loaded; its peak is what a host
  // must be able to spare.
  snapshot_options.host_memory = {
      {.name = "staging ring",
       .bytes = Bytes(0),
       .peak = session.weights().load_report().staging_peak}};
  const nlohmann::json snapshot =
      BuildMemorySnapshot(session.runtime(), snapshot_options);
  if (!options.snapshot.empty())
    QUIRE_RETURN_IF_ERROR(WriteFile(options.snapshot, snapshot.dump(1)));
  if (options.report) PrintMessage(FormatMemoryReport(snapshot));
  return absl::OkStatus();
}

void WarnOfLeaks(const std::vector<LeakReport>& leaks) {
  PrintMessage(FormatLeaks(leaks));
}

}  // namespace quire
