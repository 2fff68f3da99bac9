// quire top: who uses most of a device, live.

#include <unistd.h>

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/ledger_output.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/memory_ledger.h"

namespace quire {
namespace {

constexpr size_t kBarWidth = 40;

struct TopOptions {
  LedgerChoice ledger;
  int32_t pid = 0;  // 0: all
  double interval = 1;
  std::optional<uint64_t> count;
  bool json = false;
};

// '#' is used, '+' claimed beyond that, '.' free.
std::string Bar(const LedgerSnapshot& snapshot) {
  double used = 0;
  for (const LedgerEntry& entry : snapshot.entries) {
    if (!entry.parent) used += static_cast<double>(entry.used.value());
  }
  const auto budget = static_cast<double>(snapshot.budget.value());
  const auto cells = [&](double bytes) {
    return static_cast<size_t>(std::clamp(bytes / budget, 0.0, 1.0) *
                               kBarWidth);
  };
  const size_t claimed_cells =
      cells(static_cast<double>(snapshot.claimed.value()));
  const size_t used_cells = std::min(cells(used), claimed_cells);
  return absl::StrCat("[", std::string(used_cells, '#'),
                      std::string(claimed_cells - used_cells, '+'),
                      std::string(kBarWidth - claimed_cells, '.'), "]");
}

// Largest claim first, and those of one process alone where one was named.
absl::StatusOr<LedgerSnapshot> ReadSorted(const TopOptions& options,
                                          MemoryLedger* ledger) {
  QUIRE_ASSIGN_OR_RETURN(LedgerSnapshot snapshot, ledger->Read());
  std::stable_sort(snapshot.entries.begin(), snapshot.entries.end(),
                   [](const LedgerEntry& a, const LedgerEntry& b) {
                     return a.claim > b.claim;
                   });
  if (options.pid == 0) return snapshot;
  std::erase_if(snapshot.entries, [&](const LedgerEntry& entry) {
    return entry.pid != options.pid;
  });
  if (snapshot.entries.empty())
    return absl::NotFoundError(absl::StrCat("memory ledger ", snapshot.name,
                                            ": process ", options.pid,
                                            " is not in it"));
  return snapshot;
}

absl::Status Top(const TopOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto ledger, OpenLedger(options.ledger));
  // Whoever reads it from a pipe wants to know how it is now.
  const uint64_t count =
      options.count.value_or(isatty(STDOUT_FILENO) == 1 ? 0 : 1);
  return Watch(options.interval, count, [&]() -> absl::StatusOr<std::string> {
    QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot snapshot,
                           ReadSorted(options, ledger.get()));
    if (options.json) return LedgerJsonLine(snapshot);
    return absl::StrCat(Bar(snapshot), " # used  + claimed\n",
                        FormatLedger(snapshot));
  });
}

}  // namespace

void AddTopVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* verb = app->add_subcommand(
      "top", "Who uses most of a device, live; once where nobody watches");
  verb->add_option("PID", options->pid, "This process alone")
      ->check(CLI::PositiveNumber);
  AddLedgerChoice(verb, &options->ledger);
  AddWatchOptions(verb, &options->interval, &options->count);
  verb->add_flag("--json", options->json, "An object per line");
  verb->callback([=] { *chosen = [=] { return Top(*options); }; });
}

}  // namespace quire
