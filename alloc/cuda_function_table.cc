#include "alloc/cuda_function_table.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// CUDA 11.3: the first with cuGetProcAddress. It also fixes which variant of
// every function a newer driver hands out.
constexpr int kInterfaceVersion = 11030;

// The two variants of cuGetProcAddress, which later headers declare under one
// name.
using GetProcAddressV1 = CUresult (*)(const char* symbol, void** function,
                                      int version, cuuint64_t flags);
using GetProcAddressV2 = CUresult (*)(const char* symbol, void** function,
                                      int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult* status);

absl::Status Unusable(const char* library, const std::string& reason) {
  return absl::UnavailableError(
      absl::StrFormat("no usable CUDA driver: %s %s", library, reason));
}

class Resolver {
 public:
  // `library` is the name of `handle`, for messages.
  Resolver(const char* library, void* handle)
      : library_(library),
        v1_(reinterpret_cast<GetProcAddressV1>(
            dlsym(handle, "cuGetProcAddress"))),
        v2_(reinterpret_cast<GetProcAddressV2>(
            dlsym(handle, "cuGetProcAddress_v2"))) {}

  absl::StatusOr<void*> Find(const char* name) const {
    if (v1_ == nullptr && v2_ == nullptr) {
      return Unusable(library_,
                      "has no cuGetProcAddress; CUDA 11.3 or later is needed");
    }
    void* function = nullptr;
    const CUresult result = v2_ != nullptr
                                ? v2_(name, &function, kInterfaceVersion,
                                      CU_GET_PROC_ADDRESS_DEFAULT, nullptr)
                                : v1_(name, &function, kInterfaceVersion,
                                      CU_GET_PROC_ADDRESS_DEFAULT);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
      return Unusable(library_, "is the toolkit's stub for linking");
    }
    if (result != CUDA_SUCCESS || function == nullptr) {
      return Unusable(library_,
                      absl::StrFormat("has no function %s (error %d)", name,
                                      static_cast<int>(result)));
    }
    return function;
  }

 private:
  const char* const library_;
  const GetProcAddressV1 v1_;
  const GetProcAddressV2 v2_;
};

}  // namespace

absl::StatusOr<CudaFunctionTable> LoadCudaFunctionTable(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return absl::UnavailableError(absl::StrFormat(
        "no CUDA driver: %s", reason != nullptr ? reason : "dlopen failed"));
  }
  const Resolver resolver(library, handle);
  CudaFunctionTable table;
#define QUIRE_RESOLVE_CUDA_FUNCTION(member, name, declaration)           \
  {                                                                      \
    QUIRE_ASSIGN_OR_RETURN(void* const function, resolver.Find(name));   \
    table.member = reinterpret_cast<decltype(&::declaration)>(function); \
  }
  QUIRE_CUDA_FUNCTIONS(QUIRE_RESOLVE_CUDA_FUNCTION)
#undef QUIRE_RESOLVE_CUDA_FUNCTION
  return table;
}

}  // namespace quire
