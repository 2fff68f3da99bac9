#include "alloc/cuda_function_table.h"

#include <dlfcn.h>

#include "absl/strings/str_format.h"

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

class Resolver {
 public:
  explicit Resolver(void* library)
      : v1_(reinterpret_cast<GetProcAddressV1>(
            dlsym(library, "cuGetProcAddress"))),
        v2_(reinterpret_cast<GetProcAddressV2>(
            dlsym(library, "cuGetProcAddress_v2"))) {}

  bool usable() const { return v1_ != nullptr || v2_ != nullptr; }

  // Null where the driver has no such function.
  void* Find(const char* name) const {
    void* function = nullptr;
    const CUresult result = v2_ != nullptr
                                ? v2_(name, &function, kInterfaceVersion,
                                      CU_GET_PROC_ADDRESS_DEFAULT, nullptr)
                                : v1_(name, &function, kInterfaceVersion,
                                      CU_GET_PROC_ADDRESS_DEFAULT);
    return result == CUDA_SUCCESS ? function : nullptr;
  }

 private:
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
  const Resolver resolver(handle);
  if (!resolver.usable()) {
    return absl::UnavailableError(absl::StrFormat(
        "no usable CUDA driver: %s has no cuGetProcAddress; CUDA 11.3 or later "
        "is needed",
        library));
  }
  CudaFunctionTable table;
#define QUIRE_RESOLVE_CUDA_FUNCTION(member, name, declaration)           \
  table.member =                                                         \
      reinterpret_cast<decltype(&::declaration)>(resolver.Find(name));   \
  if (table.member == nullptr) {                                         \
    return absl::UnavailableError(absl::StrFormat(                       \
        "no usable CUDA driver: %s has no function %s", library, name)); \
  }
  QUIRE_CUDA_FUNCTIONS(QUIRE_RESOLVE_CUDA_FUNCTION)
#undef QUIRE_RESOLVE_CUDA_FUNCTION
  return table;
}

}  // namespace quire
