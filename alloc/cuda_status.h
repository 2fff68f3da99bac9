// Results of NVIDIA's driver as statuses.

#ifndef QUIRE_ALLOC_CUDA_STATUS_H_
#define QUIRE_ALLOC_CUDA_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include "alloc/cuda_function_table.h"

namespace quire {

// OK for CUDA_SUCCESS, else the code that driver.h gives to such an error and
// "cuMemMap: CUDA_ERROR_OUT_OF_MEMORY: out of memory", with `what` behind it
// where there is something to say about the call.
absl::Status CudaStatus(const CudaFunctionTable& cuda, const char* function,
                        CUresult result, std::string_view what = {});

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_STATUS_H_
