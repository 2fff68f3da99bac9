#include "model/cli/ledger_output.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <CLI/Validators.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/cli/output.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/model/session.h"

namespace quire {
namespace {

// Of a name in the table, without the dots of one that is longer.
constexpr size_t kNameWidth = 21;

std::string OrDash(Bytes bytes) {
  return bytes.zero() ? "-" : FormatBytes(bytes);
}

std::string Line(const LedgerEntry& entry) {
  const std::string name =
      absl::StrCat(entry.parent ? "  " : "", Printable(entry.name, kNameWidth));
  return absl::StrFormat(
      "%-26s %8d %11s %11s %11s %11s %11s %11s %9.1f\n", name, entry.pid,
      FormatBytes(entry.claim), FormatBytes(entry.used),
      FormatBytes(entry.peak), OrDash(entry.min), OrDash(entry.limit),
      OrDash(entry.wanted), static_cast<double>(entry.idle.count()) / 1000);
}

// Blocks SIGINT and SIGTERM for as long as it lives, so that they are waited
// for and end nothing.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // Whether one comes within `seconds`.
  bool Await(double seconds) const {
    timespec duration;
    duration.tv_sec = static_cast<time_t>(seconds);
    duration.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
    return sigtimedwait(&set_, nullptr, &duration) > 0;
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

}  // namespace

void AddLedgerChoice(CLI::App* app, LedgerChoice* choice) {
  app->add_option("--ledger", choice->name,
                  "Name of the ledger [quire-UID-DEVICE]")
      ->envname("QUIRE_LEDGER");
  app->add_option("--device", choice->device, "Device whose memory it is of")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
}

void AddWatchOptions(CLI::App* app, double* interval,
                     std::optional<uint64_t>* count) {
  app->add_option("--interval", *interval, "Seconds between two")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app->add_option("--count", *count, "So many times; 0: until Ctrl-C");
}

absl::StatusOr<std::unique_ptr<MemoryLedger>> OpenLedger(
    const LedgerChoice& choice) {
  MemoryLedgerOptions options;
  if (choice.name != kDefaultLedger) options.name = choice.name;
  options.device = DeviceId(choice.device);
  options.create = false;
  return MemoryLedger::Open(options);
}

nlohmann::json LedgerJson(const LedgerSnapshot& snapshot) {
  nlohmann::json entries = nlohmann::json::array();
  for (const LedgerEntry& entry : snapshot.entries) {
    entries.push_back(
        {{"id", entry.id.value()},
         {"parent", entry.parent ? nlohmann::json(entry.parent->value())
                                 : nlohmann::json()},
         {"pid", entry.pid},
         {"name", entry.name},
         {"claim", entry.claim.value()},
         {"used", entry.used.value()},
         {"peak", entry.peak.value()},
         {"min", entry.min.value()},
         {"max", entry.max.value()},
         {"limit", entry.limit.zero() ? nlohmann::json()
                                      : nlohmann::json(entry.limit.value())},
         {"most", entry.most.value()},
         {"wanted", entry.wanted.value()},
         {"idle_milliseconds", entry.idle.count()}});
  }
  return {{"ledger", snapshot.name},
          {"device", snapshot.device.value()},
          {"budget", snapshot.budget.value()},
          {"claimed", snapshot.claimed.value()},
          {"entries", entries}};
}

std::string LedgerJsonLine(const LedgerSnapshot& snapshot) {
  return LedgerJson(snapshot).dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string FormatLedger(const LedgerSnapshot& snapshot) {
  std::string text =
      absl::StrFormat("%s, device %d: %s of %s claimed\n", snapshot.name,
                      snapshot.device.value(), FormatBytes(snapshot.claimed),
                      FormatBytes(snapshot.budget));
  absl::StrAppend(
      &text, absl::StrFormat("%-26s %8s %11s %11s %11s %11s %11s %11s %9s\n",
                             "NAME", "PID", "CLAIM", "USED", "PEAK", "MIN",
                             "LIMIT", "WANTED", "IDLE s"));
  for (const LedgerEntry& entry : snapshot.entries) {
    if (entry.parent) continue;
    absl::StrAppend(&text, Line(entry));
    for (const LedgerEntry& owner : snapshot.entries) {
      if (owner.parent == entry.id) absl::StrAppend(&text, Line(owner));
    }
  }
  return text;
}

absl::Status Watch(double seconds, uint64_t count,
                   const std::function<absl::StatusOr<std::string>()>& frame) {
  const BlockedSignals signals;
  const bool in_place = isatty(STDOUT_FILENO) == 1;
  size_t lines = 0;
  for (uint64_t shown = 1;; ++shown) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text, frame());
    std::string output;
    if (in_place && lines > 0)
      output = absl::StrCat("\033[", lines, "A\r\033[J");
    lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    QUIRE_RETURN_IF_ERROR(PrintText(output + text));
    if (shown == count || signals.Await(seconds)) return absl::OkStatus();
  }
}

}  // namespace quire
