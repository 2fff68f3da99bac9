// A part of a tensor's bytes: equal runs at equal distances.

#ifndef QUIRE_LOADER_TENSOR_SLICE_H_
#define QUIRE_LOADER_TENSOR_SLICE_H_

#include <cstdint>

#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// `count` runs of `run` bytes of a tensor, the first one at `offset` in it,
// each `stride` behind the one before.
struct TensorSlice {
  const TensorInfo* tensor = nullptr;  // null: nothing
  uint64_t offset = 0;
  uint64_t run = 0;
  uint64_t stride = 0;
  uint64_t count = 0;

  // REQUIRES: the slice lies in its tensor.
  Bytes size() const { return Bytes(run * count); }
};

// All of it.
inline TensorSlice WholeTensor(const TensorInfo* tensor) {
  if (tensor == nullptr) return {};
  return {.tensor = tensor,
          .offset = 0,
          .run = tensor->size.value(),
          .stride = tensor->size.value(),
          .count = 1};
}

}  // namespace quire

#endif  // QUIRE_LOADER_TENSOR_SLICE_H_
