// In place of cuda_driver.cc where the CUDA headers were missing at build time.

#include "absl/status/status.h"
#include "quire/alloc/cuda_driver.h"

namespace quire {

absl::StatusOr<std::unique_ptr<Driver>> CreateCudaDriver() {
  return absl::UnavailableError(
      "this build has no CUDA backend: it was configured without cuda.h or "
      "with QUIRE_CUDA=OFF");
}

}  // namespace quire
