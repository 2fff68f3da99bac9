// The table of a FakeCuda: its slot in the process and the functions for it.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_TABLE_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_TABLE_H_

#include <optional>
#include <string_view>
#include <utility>

#include "alloc/cuda_function_table.h"
#include "alloc/testing/fake_cuda.h"

namespace quire {

class FakeCudaTable {
 public:
#define QUIRE_COUNT_FAKE_CUDA_CALL(member, name, declaration) +1
  // How many functions there are.
  static constexpr size_t kCalls =
      0 QUIRE_CUDA_FUNCTIONS(QUIRE_COUNT_FAKE_CUDA_CALL);
#undef QUIRE_COUNT_FAKE_CUDA_CALL

  // Takes a free slot. Nullopt where there is none.
  static std::optional<int> TakeSlot(FakeCuda* fake);
  static void LeaveSlot(int slot);
  static CudaFunctionTable ForSlot(int slot);

  // "cuMemMap".
  static const char* NameOf(FakeCudaCall call);
  // Nullopt where the table has no such function.
  static std::optional<FakeCudaCall> CallOf(std::string_view name);

 private:
  template <int kSlot, FakeCudaCall kCall, auto kFunction>
  struct Entry;
  template <int kSlot>
  static CudaFunctionTable Make();
  template <int... kSlots>
  static CudaFunctionTable MakeOneOf(int slot,
                                     std::integer_sequence<int, kSlots...>);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_TABLE_H_
