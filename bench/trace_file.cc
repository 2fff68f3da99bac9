#include "bench/trace_file.h"

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"
#include "quire/loader/regular_file.h"

namespace quire {

absl::StatusOr<AllocationTrace> ReadTraceFile(const std::string& path,
                                              std::optional<int32_t> device) {
  QUIRE_ASSIGN_OR_RETURN(const std::string contents, ReadRegularFile(path));
  PyTorchTraceOptions options;
  if (device) options.device = DeviceId(*device);
  absl::StatusOr<AllocationTrace> trace =
      ReadAllocationTrace(contents, options);
  if (!trace.ok()) return InFile(path, trace.status());
  return trace;
}

absl::Status InFile(const std::string& path, const absl::Status& error) {
  return absl::Status(error.code(),
                      absl::StrCat(path, ": ", std::string(error.message())));
}

}  // namespace quire
