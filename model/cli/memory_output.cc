#include "model/cli/memory_output.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "model/cli/output.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/output_file.h"

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

nlohmann::json MemoryJson(const Session& session) {
  const ModelWeights& weights = session.weights();
  nlohmann::json devices = nlohmann::json::array();
  for (int i = 0; i < session.runtime().device_count(); ++i) {
    const DeviceMemoryStatistics pool =
        session.runtime().memory(DeviceId(i))->GetStatistics();
    devices.push_back({{"device", i},
                       {"limit", pool.limit.value()},
                       {"in_use", pool.in_use.value()},
                       {"peak", pool.peak_in_use.value()}});
  }
  nlohmann::json memory = {
      {"devices", std::move(devices)},
      {"staging_peak", weights.load_report().staging_peak.value()}};
  if (weights.stores().empty()) return memory;
  const OffloadStatistics offload = weights.GetOffloadStatistics();
  memory["offload"] = {{"host", offload.host.value()},
                       {"pinned", offload.pinned.value()},
                       {"disk", offload.disk.value()},
                       {"device_buffers", offload.device.value()},
                       {"streamed", offload.streamed.value()},
                       {"acquired", offload.acquired},
                       {"hits", offload.hits},
                       {"hit_rate", offload.hit_rate()},
                       {"stall_seconds", offload.stall_seconds}};
  return memory;
}

nlohmann::json LoadJson(const Session& session) {
  const LoadReport& report = session.weights().load_report();
  return {{"bytes", report.bytes.value()},
          {"seconds", report.seconds},
          {"direct_io", report.direct},
          {"read_retries", report.read_retries}};
}

void WarnOfLeaks(const std::vector<LeakReport>& leaks) {
  PrintMessage(FormatLeaks(leaks));
}

}  // namespace quire
