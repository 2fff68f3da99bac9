// quire kv: what processes have claimed of a device, and limits for them.

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cli/ledger_output.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/paging/memory_ledger.h"

namespace quire {
namespace {

struct KvOptions {
  LedgerChoice ledger;
  std::string target;
  std::string size;
  double interval = 1;
  std::optional<uint64_t> count;
  bool json = false;
};

// "8GiB", "25%" of the budget, or "none".
struct LimitText {
  std::optional<Bytes> bytes;
  std::optional<double> percent;
  bool none = false;
};

std::optional<LimitText> ParseLimit(const std::string& text) {
  if (text == "none") return LimitText{.none = true};
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    const char* const end = text.data() + text.size() - 1;
    const auto [next, error] = std::from_chars(text.data(), end, percent);
    if (error != std::errc() || next != end || !(percent > 0) ||
        !(percent <= 100))
      return std::nullopt;
    return LimitText{.percent = percent};
  }
  const auto bytes = ParseBytes(text);
  if (!bytes || bytes->zero()) return std::nullopt;
  return LimitText{.bytes = bytes};
}

Bytes LimitOf(const LimitText& text, Bytes budget) {
  if (text.none) return Bytes(0);
  if (text.bytes) return *text.bytes;
  const double bytes =
      static_cast<double>(budget.value()) * *text.percent / 100;
  return Bytes(std::max<uint64_t>(1, static_cast<uint64_t>(bytes)));
}

bool IsNamed(const LedgerEntry& entry, const std::string& target) {
  return target == entry.name || target == absl::StrCat(entry.pid) ||
         target == absl::StrCat(entry.pid, "/", entry.name);
}

// The entry of that name, or the process of that number.
absl::StatusOr<LedgerEntry> FindEntry(const LedgerSnapshot& snapshot,
                                      const std::string& target) {
  std::vector<LedgerEntry> found;
  for (const LedgerEntry& entry : snapshot.entries) {
    const bool by_number = target == absl::StrCat(entry.pid);
    if (IsNamed(entry, target) && !(by_number && entry.parent))
      found.push_back(entry);
  }
  if (found.size() == 1) return found[0];
  const bool none = found.empty();
  std::string names;
  for (const LedgerEntry& entry : none ? snapshot.entries : found)
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.pid, "/",
                    entry.name);
  return absl::InvalidArgumentError(absl::StrCat(
      "memory ledger ", snapshot.name, ": '", target,
      none ? "' is nobody's name or process; there are: " : "' is several: ",
      names.empty() ? "none" : names));
}

absl::Status List(const KvOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto ledger, OpenLedger(options.ledger));
  QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot snapshot, ledger->Read());
  if (options.json) return PrintJson(LedgerJson(snapshot));
  return PrintText(FormatLedger(snapshot));
}

absl::Status Limit(const KvOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto ledger, OpenLedger(options.ledger));
  QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot before, ledger->Read());
  QUIRE_ASSIGN_OR_RETURN(const LedgerEntry entry,
                         FindEntry(before, options.target));
  QUIRE_RETURN_IF_ERROR(ledger->SetLimit(
      entry.id, LimitOf(*ParseLimit(options.size), before.budget)));
  QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot after, ledger->Read());
  if (options.json) return PrintJson(LedgerJson(after));
  return PrintText(FormatLedger(after));
}

absl::Status WatchLedger(const KvOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto ledger, OpenLedger(options.ledger));
  return Watch(
      options.interval, options.count.value_or(0),
      [&]() -> absl::StatusOr<std::string> {
        QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot snapshot, ledger->Read());
        return options.json ? LedgerJsonLine(snapshot) : FormatLedger(snapshot);
      });
}

CLI::App* AddPart(CLI::App* verb, const char* name, const char* help,
                  KvOptions* options) {
  CLI::App* part = verb->add_subcommand(name, help);
  AddLedgerChoice(part, &options->ledger);
  part->add_flag("--json", options->json, "Machine-readable");
  return part;
}

}  // namespace

void AddKvVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<KvOptions>();
  CLI::App* verb = app->add_subcommand(
      "kv", "Device memory that processes share: who has claimed what");
  verb->require_subcommand(1);
  AddPart(verb, "list", "Processes, and the models in them", options.get())
      ->callback([=] { *chosen = [=] { return List(*options); }; });

  CLI::App* limit = AddPart(
      verb, "limit", "Limits a process or a model; applied at its next step",
      options.get());
  limit
      ->add_option("TARGET", options->target,
                   "Name, process number, or PROCESS/NAME")
      ->required();
  limit->add_option("SIZE", options->size, "8GiB, 25% of the budget, or none")
      ->required()
      ->check(CLI::Validator(
          [](const std::string& text) {
            return ParseLimit(text)
                       ? std::string()
                       : text +
                             " is no size such as 8GiB, no percentage such "
                             "as 25%, and not none";
          },
          "SIZE"));
  limit->callback([=] { *chosen = [=] { return Limit(*options); }; });

  CLI::App* watch = AddPart(
      verb, "watch", "The list, again and again until Ctrl-C", options.get());
  AddWatchOptions(watch, &options->interval, &options->count);
  watch->callback([=] { *chosen = [=] { return WatchLedger(*options); }; });
}

}  // namespace quire
