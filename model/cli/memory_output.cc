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
  const nlohmann::json snapshot = BuildMemorySnapshot(session.runtime());
  if (!options.snapshot.empty())
    QUIRE_RETURN_IF_ERROR(WriteFile(options.snapshot, snapshot.dump(1)));
  if (options.report) PrintMessage(FormatMemoryReport(snapshot));
  return absl::OkStatus();
}

}  // namespace quire
