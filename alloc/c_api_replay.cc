// The C interface of replay.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "alloc/c_api_internal.h"
#include "quire/alloc/trace_formats.h"
#include "quire/alloc/trace_replay.h"

namespace quire::c_api {
namespace {

absl::Status Refused(const char* what, const char* path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message)
                         : absl::FailedPreconditionError(message);
}

absl::StatusOr<std::string> ReadFile(const char* path) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path, "rb"));
  if (file == nullptr) return Refused("open", path);
  std::string contents;
  char part[1 << 16];
  while (const size_t size = std::fread(part, 1, sizeof(part), file.get())) {
    contents.append(part, size);
  }
  if (std::ferror(file.get()) != 0) return Refused("read", path);
  return contents;
}

absl::StatusOr<AllocationTrace> ReadTrace(const char* path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  absl::StatusOr<AllocationTrace> trace = ReadAllocationTrace(contents);
  if (trace.ok()) return trace;
  return absl::Status(trace.status().code(),
                      absl::StrCat(path, ": ", trace.status().message()));
}

quire_replay_result ResultOf(const TraceReplayResult& from) {
  quire_replay_result result{};
  result.version = QUIRE_REPLAY_RESULT_VERSION;
  result.allocations = from.allocations;
  result.frees = from.frees;
  result.failures = from.failures;
  result.failures_served = from.failures_served;
  result.peak_requested = from.peak_requested.value();
  result.peak_mapped = from.peak_mapped.value();
  result.peak_in_use = from.peak_in_use.value();
  for (const auto& [name, count] : from.driver_calls) {
    result.driver_calls += count;
  }
  result.operations = from.operations;
  result.nanoseconds = from.nanoseconds;
  return result;
}

}  // namespace
}  // namespace quire::c_api

using quire::c_api::Call;
using quire::c_api::CheckArguments;

quire_status quire_allocator_replay_trace(
    quire_allocator* allocator, const char* path,
    const quire_replay_options* options, quire_replay_result* result) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"path", path}}));
    QUIRE_RETURN_IF_ERROR(
        quire::c_api::CheckOptionalResult("quire_replay_result", result));
    QUIRE_ASSIGN_OR_RETURN(
        const quire_replay_options known,
        quire::c_api::ReadOptions("quire_replay_options", options));
    QUIRE_ASSIGN_OR_RETURN(const quire::AllocationTrace trace,
                           quire::c_api::ReadTrace(path));
    quire::DeviceMemory* const memory = allocator->allocator->memory();
    QUIRE_ASSIGN_OR_RETURN(
        const quire::TraceReplayResult played,
        quire::ReplayTrace(trace, memory, allocator->allocator.get(),
                           {.use_threads = known.use_threads != 0,
                            .try_failures = known.try_failures != 0,
                            .owners = memory->owners()}));
    return quire::c_api::WriteOptionalResult(
        "quire_replay_result", quire::c_api::ResultOf(played), result);
  });
}
