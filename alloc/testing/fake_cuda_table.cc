#include "alloc/testing/fake_cuda_table.h"

#include <array>
#include <atomic>

namespace quire {
namespace {

// Which fake each slot's functions are of.
std::array<std::atomic<FakeCuda*>, FakeCuda::kMaxFakes> slots{};

constexpr const char* kNames[] = {
#define QUIRE_NAME_FAKE_CUDA_CALL(member, name, declaration) name,
    QUIRE_CUDA_FUNCTIONS(QUIRE_NAME_FAKE_CUDA_CALL)
#undef QUIRE_NAME_FAKE_CUDA_CALL
};

}  // namespace

// The function of one slot: a plain one, as a table needs it.
template <int kSlot, FakeCudaCall kCall, typename... Arguments,
          CUresult (FakeCuda::*kFunction)(Arguments...)>
struct FakeCudaTable::Entry<kSlot, kCall, kFunction> {
  static CUresult CUDAAPI Call(Arguments... arguments) {
    FakeCuda* const fake = slots[kSlot];
    // [end-last]
    if (fake == nullptr) return CUDA_ERROR_DEINITIALIZED;
    const CUresult result = fake->Begin(kCall);
    if (result != CUDA_SUCCESS) return result;
    return (fake->*kFunction)(arguments...);
  }
};

template <int kSlot>
CudaFunctionTable FakeCudaTable::Make() {
  CudaFunctionTable table;
#define QUIRE_SET_FAKE_CUDA_FUNCTION(member, name, declaration) \
  table.member =                                                \
      &Entry<kSlot, FakeCudaCall::k##member, &FakeCuda::member>::Call;
  QUIRE_CUDA_FUNCTIONS(QUIRE_SET_FAKE_CUDA_FUNCTION)
#undef QUIRE_SET_FAKE_CUDA_FUNCTION
  return table;
}

template <int... kSlots>
CudaFunctionTable FakeCudaTable::MakeOneOf(
    int slot, std::integer_sequence<int, kSlots...>) {
  constexpr CudaFunctionTable (*kMakers[])() = {&Make<kSlots>...};
  return kMakers[slot]();
}

CudaFunctionTable FakeCudaTable::ForSlot(int slot) {
  return MakeOneOf(slot,
                   std::make_integer_sequence<int, FakeCuda::kMaxFakes>());
}

std::optional<int> FakeCudaTable::TakeSlot(FakeCuda* fake) {
  for (int slot = 0; slot < FakeCuda::kMaxFakes; ++slot) {
    FakeCuda* nobody = nullptr;
    if (slots[slot].compare_exchange_strong(nobody, fake)) return slot;
  }
  return std::nullopt;
}

void FakeCudaTable::LeaveSlot(int slot) { slots[slot] = nullptr; }

const char* FakeCudaTable::NameOf(FakeCudaCall call) {
  return kNames[static_cast<size_t>(call)];
}

std::optional<FakeCudaCall> FakeCudaTable::CallOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<FakeCudaCall>(i);
  }
  return std::nullopt;
}

}  // namespace quire
