// A memory ledger as people and programs read it.

#ifndef QUIRE_MODEL_CLI_LEDGER_OUTPUT_H_
#define QUIRE_MODEL_CLI_LEDGER_OUTPUT_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

// Which ledger a verb looks at.
struct LedgerChoice {
  std::string name;  // empty or kDefaultLedger: the device's
  int32_t device = 0;
};
// --ledger, --device.
void AddLedgerChoice(CLI::App* app, LedgerChoice* choice);
// kNotFound where there is none: it is not made.
absl::StatusOr<std::unique_ptr<MemoryLedger>> OpenLedger(
    const LedgerChoice& choice);

// --interval, --count.
void AddWatchOptions(CLI::App* app, double* interval,
                     std::optional<uint64_t>* count);

nlohmann::json LedgerJson(const LedgerSnapshot& snapshot);
// The same on one line, for those who read as it comes.
std::string LedgerJsonLine(const LedgerSnapshot& snapshot);
// The sum, and a line for each process with its owners below it; names from the
// ledger cannot forge lines.
std::string FormatLedger(const LedgerSnapshot& snapshot);

// Shows `frame` every `seconds` until Ctrl-C or, where that is not 0, so many
// times: in place on a terminal, one below the other elsewhere. OK at the end,
// and an error of `frame` or of writing.
absl::Status Watch(double seconds, uint64_t count,
                   const std::function<absl::StatusOr<std::string>()>& frame);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_LEDGER_OUTPUT_H_
