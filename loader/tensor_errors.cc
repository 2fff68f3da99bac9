#include "loader/tensor_errors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "quire/alloc/quote.h"

namespace quire {

bool IsFloatType(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

absl::Status TensorError(const Checkpoint& checkpoint, const TensorInfo& tensor,
                         const std::string& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(Printable(checkpoint.files()[tensor.file].path), ": tensor ",
                   Quoted(tensor.name), " is ", DTypeName(tensor.dtype), " [",
                   absl::StrJoin(tensor.shape, ", "), "]: ", problem));
}

absl::Status OfTensor(const TensorInfo& tensor, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (tensor ",
                                                  Quoted(tensor.name), ")"));
}

absl::StatusOr<const TensorInfo*> RequireTensor(const Checkpoint& checkpoint,
                                                std::string_view name,
                                                const TensorInfo& owner) {
  if (const TensorInfo* tensor = checkpoint.Find(name)) return tensor;
  return absl::NotFoundError(absl::StrCat(
      Printable(checkpoint.files()[owner.file].path), ": tensor ", Quoted(name),
      " is missing; it belongs to ", Quoted(owner.name)));
}

absl::Status CheckBiasTensor(const Checkpoint& checkpoint,
                             const TensorInfo* bias, uint64_t out_features) {
  if (bias == nullptr) return absl::OkStatus();
  if (!IsFloatType(bias->dtype))
    return TensorError(checkpoint, *bias, "a bias is F16, BF16 or F32");
  if (bias->shape.size() != 1 || bias->shape[0] != out_features)
    return TensorError(
        checkpoint, *bias,
        absl::StrCat("the module has ", out_features, " outputs"));
  return absl::OkStatus();
}

}  // namespace quire
