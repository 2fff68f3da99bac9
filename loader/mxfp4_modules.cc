// MXFP4 as gpt-oss has it: for E experts of N outputs and K inputs
//   X_blocks U8 [E, N, K/32, 16]   two E2M1 codes a byte, the low nibble first
//   X_scales U8 [E, N, K/32]       E8M0: 2^(stored - 127)
//   X_bias   [E, N]
// (OCP Microscaling Formats v1.0; transformers' integrations/mxfp4.py.)

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/scaled_module_readers.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr std::string_view kBlocksSuffix = "_blocks";
constexpr uint64_t kBlockElements = 32;
constexpr uint64_t kBlockBytes = 16;

absl::StatusOr<ScaledModule> ReadExperts(const Checkpoint& checkpoint,
                                         const TensorInfo& blocks) {
  if (blocks.dtype != DType::kU8 || blocks.shape.size() != 4 ||
      blocks.shape[3] != kBlockBytes || blocks.elements() == 0)
    return TensorError(checkpoint, blocks,
                       "MXFP4 blocks are U8 [experts, outputs, inputs / 32, "
                       "16], none of them zero");
  ScaledModule module;
  module.kind = CodeKind::kF4E2M1;
  module.name = ModuleOf(blocks, kBlocksSuffix);
  module.codes = &blocks;
  module.count = blocks.shape[0];
  module.out_features = blocks.shape[1];
  module.in_features = blocks.shape[2] * kBlockElements;
  module.row_bytes = blocks.shape[2] * kBlockBytes;
  module.scales_dtype = DType::kF8E8M0;
  module.block_rows = 1;
  module.block_columns = kBlockElements;
  QUIRE_ASSIGN_OR_RETURN(
      module.scales,
      RequireTensor(checkpoint, absl::StrCat(module.name, "_scales"), blocks));
  const std::vector<uint64_t> grid(blocks.shape.begin(),
                                   blocks.shape.end() - 1);
  if (module.scales->dtype != DType::kU8 || module.scales->shape != grid)
    return TensorError(checkpoint, *module.scales,
                       absl::StrCat("the blocks need scales U8 [",
                                    absl::StrJoin(grid, ", "), "]"));
  module.bias = checkpoint.Find(absl::StrCat(module.name, "_bias"));
  if (module.bias != nullptr &&
      (!IsFloatType(module.bias->dtype) ||
       module.bias->shape !=
           std::vector<uint64_t>{module.count, module.out_features}))
    return TensorError(
        checkpoint, *module.bias,
        absl::StrCat("the blocks need biases of F16, BF16 or "
                     "F32 [",
                     module.count, ", ", module.out_features, "]"));
  return module;
}

}  // namespace

absl::Status FindMxfp4Modules(const Checkpoint& checkpoint,
                              QuantizedModules* result) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!tensor.name.ends_with(kBlocksSuffix)) continue;
    QUIRE_ASSIGN_OR_RETURN(ScaledModule module,
                           ReadExperts(checkpoint, tensor));
    result->scaled.push_back(std::move(module));
  }
  SortByName(&result->scaled);
  return absl::OkStatus();
}

}  // namespace quire
