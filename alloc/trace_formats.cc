#include "quire/alloc/trace_formats.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// An object or a list as protocols 0 and 1 begin: text, and so is CSV.
bool IsOldPickle(std::string_view contents) {
  for (const std::string_view beginning : {"(dp", "(lp", "}q", "]q"}) {
    if (contents.starts_with(beginning)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<AllocationTrace> ReadAllocationTrace(
    std::string_view contents, const PyTorchTraceOptions& options) {
  if (!contents.empty() && static_cast<uint8_t>(contents[0]) == 0x80) {
    return ReadPyTorchSnapshot(contents, options);
  }
  if (IsOldPickle(contents)) {
    return absl::InvalidArgumentError(
        "it looks like a pickle of protocol 0 or 1: only those from 2 on are "
        "read, as PyTorch writes them");
  }
  if (options.device) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", options.device->value(),
                     " cannot be chosen: this is no snapshot of PyTorch, and "
                     "of one device"));
  }
  if (!contents.empty() && contents[0] == '{') {
    return ReadSnapshotTrace(contents);
  }
  const std::string_view header = contents.substr(0, contents.find('\n'));
  if (header.find("Pointer") != header.npos) return ReadRmmCsv(contents);
  return ReadQuireCsv(contents);
}

}  // namespace quire
