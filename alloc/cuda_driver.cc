#include "quire/alloc/cuda_driver.h"

#include "alloc/cuda_driver_impl.h"
#include "alloc/cuda_function_table.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<Driver>> CreateCudaDriver() {
  QUIRE_ASSIGN_OR_RETURN(const CudaFunctionTable cuda, LoadCudaFunctionTable());
  return CreateCudaDriverOn(cuda);
}

}  // namespace quire
