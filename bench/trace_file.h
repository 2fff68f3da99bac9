// Allocation traces as the programs are given them: by path.

#ifndef QUIRE_BENCH_TRACE_FILE_H_
#define QUIRE_BENCH_TRACE_FILE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/allocation_trace.h"

namespace quire {

// Of any format that is read. `device`: of a snapshot of PyTorch
// (PyTorchTraceOptions). Errors name the file.
absl::StatusOr<AllocationTrace> ReadTraceFile(const std::string& path,
                                              std::optional<int32_t> device);

// The error, with the file before it. REQUIRES: !error.ok().
absl::Status InFile(const std::string& path, const absl::Status& error);

}  // namespace quire

#endif  // QUIRE_BENCH_TRACE_FILE_H_
