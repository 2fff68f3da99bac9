// Messages about tensors: `model.safetensors: tensor "a.qweight" is I32 [8,
// 24]: <problem>`.

#ifndef QUIRE_LOADER_TENSOR_ERRORS_H_
#define QUIRE_LOADER_TENSOR_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/dtype.h"

namespace quire {

// F16, BF16 or F32.
bool IsFloatType(DType dtype);

absl::Status TensorError(const Checkpoint& checkpoint, const TensorInfo& tensor,
                         const std::string& problem);

// The same status, with the tensor that was read when it came about.
absl::Status OfTensor(const TensorInfo& tensor, const absl::Status& status);

// kNotFound, with the tensor that it belongs to, where it is missing.
absl::StatusOr<const TensorInfo*> RequireTensor(const Checkpoint& checkpoint,
                                                std::string_view name,
                                                const TensorInfo& owner);

// An error where `bias`, which may be null, is no vector of floats of this
// size.
absl::Status CheckBiasTensor(const Checkpoint& checkpoint,
                             const TensorInfo* bias, uint64_t out_features);

}  // namespace quire

#endif  // QUIRE_LOADER_TENSOR_ERRORS_H_
