// "fp8" and "fbgemm_fp8": F8_E4M3 weights with a scale for each block, each
// row, or the whole.
//
// The scale is a factor, though transformers calls that of blocks
// weight_scale_inv. weight_block_size makes the blocks; without it the shape of
// the scale tells rows from the whole.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/scaled_module_readers.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

absl::StatusOr<std::optional<BlockShape>> ReadBlockSize(
    const JsonFields& config) {
  constexpr std::string_view kField = "weight_block_size";
  if (!config.Has(kField)) return std::nullopt;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes,
                         config.GetUints(kField));
  if (sizes.size() != 2 || sizes[0] == 0 || sizes[1] == 0)
    return config.Error(kField, "is not two numbers above 0");
  return BlockShape{sizes[0], sizes[1]};
}

absl::Status CheckConfig(const JsonFields& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::string format,
                         config.GetStringOr("fmt", "e4m3"));
  if (format != "e4m3")
    return config.Error(
        "fmt", absl::StrCat("is ", Quoted(format),
                            "; only \"e4m3\" is supported: use the "
                            "unquantised model, or an e4m3 checkpoint of it"));
  return absl::OkStatus();
}

absl::StatusOr<const TensorInfo*> FindScales(const Checkpoint& checkpoint,
                                             const std::string& module,
                                             const TensorInfo& weight) {
  for (const char* suffix : {".weight_scale_inv", ".weight_scale"})
    if (const TensorInfo* scales =
            checkpoint.Find(absl::StrCat(module, suffix)))
      return scales;
  return RequireTensor(checkpoint, absl::StrCat(module, ".weight_scale_inv"),
                       weight);
}

// Without weight_block_size: one scale, or one for each row.
BlockShape BlockOf(const TensorInfo& scales, const ScaledModule& module) {
  const uint64_t rows = scales.elements() == 1 ? module.out_features : 1;
  return {rows, module.in_features};
}

}  // namespace

absl::Status FindFp8Modules(const Checkpoint& checkpoint,
                            const JsonFields& config,
                            QuantizedModules* result) {
  QUIRE_RETURN_IF_ERROR(CheckConfig(config));
  QUIRE_ASSIGN_OR_RETURN(const auto block, ReadBlockSize(config));
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!tensor.name.ends_with(kWeightSuffix)) continue;
    if (tensor.dtype == DType::kF8E5M2)
      return TensorError(checkpoint, tensor,
                         "of the float8 types only F8_E4M3 is supported");
    if (tensor.dtype != DType::kF8E4M3) continue;
    ScaledModule module;
    module.kind = CodeKind::kF8E4M3;
    module.name = ModuleOf(tensor, kWeightSuffix);
    QUIRE_RETURN_IF_ERROR(SetPlainCodes(checkpoint, tensor, &module));
    QUIRE_ASSIGN_OR_RETURN(const TensorInfo* const scales,
                           FindScales(checkpoint, module.name, tensor));
    QUIRE_RETURN_IF_ERROR(
        SetScales(checkpoint, *scales, block.value_or(BlockOf(*scales, module)),
                  block ? absl::StrCat(config.where(), ": weight_block_size")
                        : "no weight_block_size",
                  &module));
    result->scaled.push_back(std::move(module));
  }
  SortByName(&result->scaled);
  QUIRE_RETURN_IF_ERROR(CheckScalesAreUsed(checkpoint, *result, "F8_E4M3"));
  IgnoreActivationScales(checkpoint, result);
  return absl::OkStatus();
}

}  // namespace quire
