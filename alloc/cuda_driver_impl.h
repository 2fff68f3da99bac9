// CudaDriver on any table of driver functions: NVIDIA's, or a test's own.

#ifndef QUIRE_ALLOC_CUDA_DRIVER_IMPL_H_
#define QUIRE_ALLOC_CUDA_DRIVER_IMPL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "alloc/cuda_function_table.h"
#include "quire/alloc/driver.h"

namespace quire {

// kUnavailable with the reason where there is no device that can be used.
absl::StatusOr<std::unique_ptr<Driver>> CreateCudaDriverOn(
    const CudaFunctionTable& cuda);

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_DRIVER_IMPL_H_
