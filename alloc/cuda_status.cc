#include "alloc/cuda_status.h"

#include <string>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::StatusCode::kInvalidArgument;
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
      return absl::StatusCode::kNotFound;
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_NOT_MAPPED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
      return absl::StatusCode::kFailedPrecondition;
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_DEVICE_NOT_LICENSED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(const CudaFunctionTable& cuda, const char* function,
                        CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  // Both leave null for results that this driver does not know.
  (void)cuda.GetErrorName(result, &name);
  (void)cuda.GetErrorString(result, &text);
  std::string message = absl::StrFormat(
      "%s: %s: %s", function,
      name != nullptr ? std::string(name)
                      : absl::StrFormat("error %d", static_cast<int>(result)),
      text != nullptr ? text : "no description");
  if (!what.empty()) message += absl::StrFormat(" (%s)", what);
  return absl::Status(CodeOf(result), message);
}

}  // namespace quire
