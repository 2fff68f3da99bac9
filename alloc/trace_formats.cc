#include "quire/alloc/trace_formats.h"

namespace quire {

absl::StatusOr<AllocationTrace> ReadAllocationTrace(std::string_view contents) {
  if (!contents.empty() && static_cast<uint8_t>(contents[0]) == 0x80) {
    return ReadPyTorchSnapshot(contents);
  }
  if (!contents.empty() && contents[0] == '{') {
    return ReadSnapshotTrace(contents);
  }
  const std::string_view header = contents.substr(0, contents.find('\n'));
  if (header.find("Pointer") != header.npos) return ReadRmmCsv(contents);
  return ReadQuireCsv(contents);
}

}  // namespace quire
