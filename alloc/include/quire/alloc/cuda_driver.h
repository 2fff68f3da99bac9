// NVIDIA's driver, loaded at run time: a program starts where there is none.

#ifndef QUIRE_ALLOC_CUDA_DRIVER_H_
#define QUIRE_ALLOC_CUDA_DRIVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"

namespace quire {

// kUnavailable with the reason where there is no driver, no device, or where
// this build has no CUDA backend.
absl::StatusOr<std::unique_ptr<Driver>> CreateCudaDriver();

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_DRIVER_H_
