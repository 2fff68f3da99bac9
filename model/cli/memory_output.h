// The memory report at the end of a verb that runs a model.

#ifndef QUIRE_MODEL_CLI_MEMORY_OUTPUT_H_
#define QUIRE_MODEL_CLI_MEMORY_OUTPUT_H_

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/leak_report.h"
#include "quire/model/session.h"

namespace quire {

struct MemoryOutputOptions {
  bool report = false;
  std::string snapshot;  // a file for the JSON snapshot; empty: none
};

// --memory-report, --memory-snapshot.
void AddMemoryOutputOptions(CLI::App* app, MemoryOutputOptions* options);

// The report goes to stderr: stdout is the verb's own.
absl::Status WriteMemoryOutput(const MemoryOutputOptions& options,
                               Session& session);

// What the session has used so far of each device, and of its offloaded weights
// how many were there in time: {"devices": [...], "staging_peak": ...,
// "offload": {...}}.
nlohmann::json MemoryJson(const Session& session);

// How the weights were read: {"bytes", "seconds", "direct_io", "read_retries"}.
nlohmann::json LoadJson(const Session& session);

// On stderr.
void WarnOfLeaks(const std::vector<LeakReport>& leaks);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_MEMORY_OUTPUT_H_
