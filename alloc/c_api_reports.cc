// The C interface of snapshots, marks, traces and leaks.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/c_api_internal.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/trace_formats.h"

namespace quire::c_api {
namespace {

absl::StatusOr<nlohmann::json> Snapshot(quire_runtime* runtime,
                                        int32_t device) {
  QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
  QUIRE_RETURN_IF_ERROR(CheckDevice(*runtime->runtime, device));
  MemorySnapshotOptions options;
  options.device = DeviceId(device);
  return BuildMemorySnapshot(*runtime->runtime, options);
}

absl::StatusOr<std::string> Render(const nlohmann::json& snapshot,
                                   quire_snapshot_format format) {
  switch (format) {
    case QUIRE_SNAPSHOT_JSON:
      return snapshot.dump();
    case QUIRE_SNAPSHOT_HTML:
      return RenderMemoryHtml(snapshot);
    case QUIRE_SNAPSHOT_PYTORCH:
      return RenderPyTorchSnapshot(snapshot);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          format, " is not one of the values of quire_snapshot_format"));
  }
}

absl::Status WriteFile(const char* path, const std::string& contents) {
  const auto failed = [&] {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  };
  std::FILE* const file = std::fopen(path, "wb");
  if (file == nullptr) return failed();
  const bool written =
      std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  const absl::Status status = written ? absl::OkStatus() : failed();
  if (std::fclose(file) != 0 && written) return failed();
  return status;
}

// Leaks of everybody where there is no owner.
absl::StatusOr<std::vector<LeakReport>> Leaks(quire_runtime* runtime,
                                              uint32_t owner) {
  LeakOptions options;
  if (owner != QUIRE_ALL_OWNERS) {
    if (owner >= runtime->runtime->owners()->Names().size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("owner ", owner, " was never registered"));
    }
    options.owner = OwnerId(owner);
  }
  return FindLeaks(*runtime->runtime, options);
}

absl::StatusOr<std::string> RenderTrace(const AllocationTrace& trace,
                                        quire_trace_format format) {
  switch (format) {
    case QUIRE_TRACE_CSV:
      return WriteQuireCsv(trace);
    case QUIRE_TRACE_RMM:
      return WriteRmmCsv(trace);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          format, " is not one of the values of quire_trace_format"));
  }
}

}  // namespace

quire_leak_totals TotalsOf(const std::vector<LeakReport>& leaks) {
  quire_leak_totals totals = QUIRE_LEAK_TOTALS_INIT;
  Bytes requested, pages;
  for (const LeakReport& leak : leaks) {
    totals.allocations += leak.allocations;
    requested = SaturatingAdd(requested, leak.requested);
    pages = SaturatingAdd(pages, leak.pages);
  }
  totals.owners = leaks.size();
  totals.requested_bytes = requested.value();
  totals.page_bytes = pages.value();
  return totals;
}

}  // namespace quire::c_api

using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::WriteText;

quire_status quire_runtime_get_snapshot_json(quire_runtime* runtime,
                                             int32_t device,
                                             char** json) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"json", json}}));
    QUIRE_ASSIGN_OR_RETURN(const nlohmann::json snapshot,
                           quire::c_api::Snapshot(runtime, device));
    return WriteText(snapshot.dump(), json);
  });
}

quire_status quire_runtime_get_report(quire_runtime* runtime, int32_t device,
                                      char** text) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"text", text}}));
    QUIRE_ASSIGN_OR_RETURN(const nlohmann::json snapshot,
                           quire::c_api::Snapshot(runtime, device));
    return WriteText(quire::FormatMemoryReport(snapshot), text);
  });
}

quire_status quire_runtime_write_snapshot(quire_runtime* runtime,
                                          int32_t device,
                                          quire_snapshot_format format,
                                          const char* path) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"path", path}}));
    QUIRE_ASSIGN_OR_RETURN(const nlohmann::json snapshot,
                           quire::c_api::Snapshot(runtime, device));
    QUIRE_ASSIGN_OR_RETURN(const std::string contents,
                           quire::c_api::Render(snapshot, format));
    return quire::c_api::WriteFile(path, contents);
  });
}

quire_status quire_runtime_mark(quire_runtime* runtime,
                                const char* label) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"label", label}}));
    runtime->runtime->trace()->Mark(label);
    return absl::OkStatus();
  });
}

quire_status quire_runtime_write_trace(quire_runtime* runtime, int32_t device,
                                       quire_trace_format format,
                                       const char* path) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"path", path}}));
    QUIRE_ASSIGN_OR_RETURN(const nlohmann::json snapshot,
                           quire::c_api::Snapshot(runtime, device));
    if (runtime->runtime->trace()->capacity() == 0) {
      return absl::FailedPreconditionError(
          "no trace is kept: disable_trace was set");
    }
    QUIRE_ASSIGN_OR_RETURN(const quire::AllocationTrace trace,
                           quire::ReadSnapshotTrace(snapshot.dump()));
    QUIRE_ASSIGN_OR_RETURN(const std::string contents,
                           quire::c_api::RenderTrace(trace, format));
    return quire::c_api::WriteFile(path, contents);
  });
}

quire_status quire_runtime_find_leaks(quire_runtime* runtime, uint32_t owner,
                                      quire_leak_totals* totals,
                                      char** text) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
    QUIRE_RETURN_IF_ERROR(
        quire::c_api::CheckOptionalResult("quire_leak_totals", totals));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<quire::LeakReport> leaks,
                           quire::c_api::Leaks(runtime, owner));
    if (text != nullptr) {
      QUIRE_RETURN_IF_ERROR(WriteText(quire::FormatLeaks(leaks), text));
    }
    return quire::c_api::WriteOptionalResult(
        "quire_leak_totals", quire::c_api::TotalsOf(leaks), totals);
  });
}
