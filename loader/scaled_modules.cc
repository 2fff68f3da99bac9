// What the formats with scales share.

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "loader/packed_words.h"
#include "loader/scaled_module_readers.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr std::string_view kScaleSuffixes[] = {".weight_scale_inv",
                                               ".weight_scale"};

// A scale for everything may be a scalar, and one for each row a vector.
bool IsGrid(const std::vector<uint64_t>& shape, uint64_t rows,
            uint64_t columns) {
  if (shape == std::vector<uint64_t>{rows, columns}) return true;
  if (columns == 1 && shape == std::vector<uint64_t>{rows}) return true;
  return rows == 1 && columns == 1 && shape.empty();
}

}  // namespace

const char* CodeKindName(CodeKind kind) {
  switch (kind) {
    case CodeKind::kF8E4M3:
      return "F8_E4M3";
    case CodeKind::kInt8:
    case CodeKind::kUint8:
      return "INT8";
    case CodeKind::kUint4:
      return "INT4";
    case CodeKind::kNf4:
      return "NF4";
    case CodeKind::kF4E2M1:
      return "F4_E2M1";
  }
  return "?";
}

int CodeBits(CodeKind kind) {
  return kind == CodeKind::kUint4 || kind == CodeKind::kNf4 ||
                 kind == CodeKind::kF4E2M1
             ? 4
             : 8;
}

uint64_t ScaledModule::scale_rows() const {
  return CeilDivide(out_features, block_rows);
}

uint64_t ScaledModule::scale_columns() const {
  return CeilDivide(in_features, block_columns);
}

absl::StatusOr<std::vector<uint32_t>> ReadScaleColumns(
    const Checkpoint& checkpoint, const ScaledModule& module) {
  std::vector<uint32_t> columns;
  if (module.g_idx == nullptr) return columns;
  std::vector<std::byte> bytes;
  QUIRE_RETURN_IF_ERROR(checkpoint.ReadSmallTensor(*module.g_idx, &bytes));
  std::vector<int32_t> stored(module.in_features);
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  if (std::all_of(stored.begin(), stored.end(),
                  [](int32_t group) { return group == -1; }))
    return columns;
  columns.resize(stored.size());
  for (size_t row = 0; row < stored.size(); ++row) {
    if (stored[row] < 0 ||
        static_cast<uint64_t>(stored[row]) >= module.scale_columns())
      return TensorError(checkpoint, *module.g_idx,
                         absl::StrCat("input ", row, " is in group ",
                                      stored[row], ", but the module has ",
                                      module.scale_columns(), " groups"));
    columns[row] = static_cast<uint32_t>(stored[row]);
  }
  return columns;
}

std::string_view ModuleOf(const TensorInfo& tensor, std::string_view suffix) {
  const std::string_view name = tensor.name;
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size())
                                : std::string_view();
}

absl::Status SetPlainCodes(const Checkpoint& checkpoint,
                           const TensorInfo& weight, ScaledModule* module) {
  if (weight.shape.size() != 2 || weight.elements() == 0)
    return TensorError(checkpoint, weight,
                       "two dimensions are needed, none of them zero");
  module->codes = &weight;
  module->out_features = weight.shape[0];
  module->in_features = weight.shape[1];
  module->row_bytes = weight.shape[1];
  module->bias = checkpoint.Find(absl::StrCat(module->name, ".bias"));
  return CheckBiasTensor(checkpoint, module->bias, module->out_features);
}

absl::Status SetScales(const Checkpoint& checkpoint, const TensorInfo& scales,
                       BlockShape block, const std::string& rule,
                       ScaledModule* module) {
  const bool microscaling = module->kind == CodeKind::kF4E2M1;
  if (microscaling
          ? scales.dtype != DType::kU8 && scales.dtype != DType::kF8E8M0
          : !IsFloatType(scales.dtype) && scales.dtype != DType::kF8E8M0)
    return TensorError(checkpoint, scales,
                       microscaling ? "scales of MXFP4 are U8 or F8_E8M0"
                                    : "scales are F16, BF16, F32 or F8_E8M0");
  module->scales = &scales;
  module->scales_dtype = microscaling ? DType::kF8E8M0 : scales.dtype;
  module->block_rows = block.rows;
  module->block_columns = block.columns;
  if (!IsGrid(scales.shape, module->scale_rows(), module->scale_columns()))
    return TensorError(
        checkpoint, scales,
        absl::StrCat("a weight [", module->out_features, ", ",
                     module->in_features, "] in blocks of ", block.rows, " by ",
                     block.columns, " (", rule, ") needs scales [",
                     module->scale_rows(), ", ", module->scale_columns(), "]"));
  return absl::OkStatus();
}

absl::Status CheckScalesAreUsed(const Checkpoint& checkpoint,
                                const QuantizedModules& result,
                                const std::string& wanted) {
  std::unordered_set<const TensorInfo*> used;
  for (const ScaledModule& module : result.scaled) used.insert(module.scales);
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (used.contains(&tensor)) continue;
    std::string_view module;
    for (const std::string_view suffix : kScaleSuffixes)
      if (module.empty()) module = ModuleOf(tensor, suffix);
    if (module.empty()) continue;
    QUIRE_ASSIGN_OR_RETURN(
        const TensorInfo* const weight,
        RequireTensor(checkpoint, std::string(module) + ".weight", tensor));
    return TensorError(checkpoint, *weight,
                       absl::StrCat("it has scales, ", Quoted(tensor.name),
                                    ", so it should be ", wanted));
  }
  return absl::OkStatus();
}

void IgnoreActivationScales(const Checkpoint& checkpoint,
                            QuantizedModules* result) {
  constexpr std::string_view kSuffixes[] = {
      ".input_scale",      ".activation_scale",
      ".input_zero_point", ".input_scale_ub",
      ".output_scale",     ".k_scale",
      ".v_scale",          ".kv_scale",
      ".q_scale",          ".input_global_scale",
  };
  uint64_t count = 0;
  const TensorInfo* first = nullptr;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (std::none_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](std::string_view suffix) {
                       return tensor.name.ends_with(suffix);
                     }))
      continue;
    if (first == nullptr) first = &tensor;
    ++count;
    result->ignored.push_back(&tensor);
  }
  if (count > 0)
    result->notes.push_back(absl::StrCat(
        count,
        " scale(s) of activations or of the KV cache are not used, the "
        "first is ",
        Quoted(first->name), ": activations are never quantised here"));
}

void SortByName(std::vector<ScaledModule>* modules) {
  std::sort(modules->begin(), modules->end(),
            [](const ScaledModule& a, const ScaledModule& b) {
              return a.name < b.name;
            });
}

}  // namespace quire
