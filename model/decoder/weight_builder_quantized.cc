// The quantised linears of a WeightBuilder.

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/decoder/gptq_weights.h"
#include "model/decoder/weight_builder.h"
#include "model/ops/planar_repack.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kPlanarBlock = 32;  // codes that are cut into planes together

struct MatrixSize {
  uint64_t out_features;
  uint64_t in_features;
  bool operator==(const MatrixSize&) const = default;
};

absl::Status CheckSize(const Checkpoint& checkpoint, const TensorInfo& codes,
                       MatrixSize actual, MatrixSize expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      checkpoint.files()[codes.file].path, ": ", Printable(codes.name),
      " is for ", actual.in_features, " inputs and ", actual.out_features,
      " outputs, the configuration says ", expected.in_features, " and ",
      expected.out_features));
}

}  // namespace

absl::Status WeightBuilder::ReadQuantization() {
  if (known_quantized_ != nullptr) {
    quantized_ = *known_quantized_;
  } else {
    QUIRE_ASSIGN_OR_RETURN(quantized_, FindQuantizedModules(checkpoint_));
  }
  if (options_.quantization != LoadQuantization::kNone &&
      !(quantized_.gptq.empty() && quantized_.scaled.empty()))
    return absl::FailedPreconditionError(absl::StrCat(
        checkpoint_.folder(), ": its linears are quantised already (",
        QuantizationMethodName(quantized_.method), "), so they cannot be to ",
        LoadQuantizationName(options_.quantization), " at load"));
  for (GptqModule& module : quantized_.gptq)
    module_by_name_.emplace(module.name, &module);
  for (const ScaledModule& module : quantized_.scaled)
    module_by_name_.emplace(module.name, &module);
  used_.insert(quantized_.ignored.begin(), quantized_.ignored.end());
  weights_->warnings_.insert(weights_->warnings_.end(),
                             quantized_.notes.begin(), quantized_.notes.end());
  return absl::OkStatus();
}

absl::Status WeightBuilder::DescribeQuantized(GptqModule* quantized,
                                              uint64_t out_features,
                                              uint64_t in_features,
                                              Linear* linear) {
  quantized->SetInFeatures(in_features);
  const GptqModule& module = *quantized;
  QUIRE_RETURN_IF_ERROR(CheckSize(checkpoint_, *module.qweight,
                                  {module.out_features, module.in_features},
                                  {out_features, in_features}));
  linear->matrix = GptqMatrix{
      .bits = module.settings.bits,
      .in_features = in_features,
      .out_features = out_features,
      .groups = module.groups,
      .scales_dtype = module.scales->dtype,
  };
  GptqMatrix* matrix = &std::get<GptqMatrix>(linear->matrix);
  for (const TensorInfo* tensor :
       {module.qweight, module.qzeros, module.scales, module.g_idx})
    used_.insert(tensor);
  Place(*module.qweight, [matrix](DeviceAddress address) {
    matrix->qweight = address.host_pointer<uint32_t>();
  });
  Place(*module.qzeros, [matrix](DeviceAddress address) {
    matrix->qzeros = address.host_pointer<uint32_t>();
  });
  Place(*module.scales, [matrix](DeviceAddress address) {
    matrix->scales = address.host_pointer<void>();
  });
  pending_gptq_.push_back({&module, matrix, weights_->parts_.size() - 1});
  return DescribeBias(module.name, module.bias, out_features, &linear->bias);
}

absl::Status WeightBuilder::DescribeQuantized(const ScaledModule* quantized,
                                              uint64_t out_features,
                                              uint64_t in_features,
                                              Linear* linear) {
  const ScaledModule& module = *quantized;
  if (module.count != 1)
    return absl::UnimplementedError(absl::StrCat(
        checkpoint_.files()[module.codes->file].path, ": ",
        Printable(module.codes->name), " holds ", module.count,
        " experts, which a ", config_.family, " model has no place for"));
  QUIRE_RETURN_IF_ERROR(CheckSize(checkpoint_, *module.codes,
                                  {module.out_features, module.in_features},
                                  {out_features, in_features}));
  linear->matrix = ScaledMatrix{
      .kind = module.kind,
      .in_features = in_features,
      .out_features = out_features,
      .row_bytes = module.row_bytes,
      .scales_dtype = module.scales_dtype,
      .block_rows = module.block_rows,
      .block_columns = module.block_columns,
      .zeros_dtype = module.zeros == nullptr ? DType::kI8 : module.zeros->dtype,
  };
  ScaledMatrix* matrix = &std::get<ScaledMatrix>(linear->matrix);
  for (const TensorInfo* tensor :
       {module.codes, module.scales, module.zeros, module.g_idx})
    used_.insert(tensor);
  Place(*module.codes, [matrix](DeviceAddress address) {
    matrix->codes = address.host_pointer<uint8_t>();
  });
  Place(*module.scales, [matrix](DeviceAddress address) {
    matrix->scales = address.host_pointer<void>();
  });
  if (module.zeros != nullptr) {
    Place(*module.zeros, [matrix](DeviceAddress address) {
      matrix->zeros = address.host_pointer<void>();
    });
  }
  pending_scaled_.push_back({&module, matrix, weights_->parts_.size() - 1});
  return DescribeBias(module.name, module.bias, out_features, &linear->bias);
}

absl::Status WeightBuilder::ReserveIndex(const TensorInfo& of,
                                         const std::vector<uint32_t>& index) {
  if (index.empty()) return absl::OkStatus();
  const Bytes size(index.size() * sizeof(uint32_t));
  QUIRE_RETURN_IF_ERROR(AllocateBytes(size).status());
  for (Bytes* const total : {&weights_->parts_[part_].size, &tables_[&of]})
    *total = SaturatingAdd(*total, size);
  return absl::OkStatus();
}

absl::Status WeightBuilder::FinishQuantized(ThreadPool* pool) {
  for (const PendingGptq& pending : pending_gptq_) {
    if (!IsInHand(pending.part)) continue;
    part_ = pending.part;
    QUIRE_RETURN_IF_ERROR(FinishGptq(pending, pool));
  }
  for (const PendingScaled& pending : pending_scaled_) {
    if (!IsInHand(pending.part)) continue;
    part_ = pending.part;
    QUIRE_RETURN_IF_ERROR(FinishScaled(pending, pool));
  }
  return absl::OkStatus();
}

absl::Status WeightBuilder::FinishGptq(const PendingGptq& pending,
                                       ThreadPool* pool) {
  const GptqModule& module = *pending.module;
  GptqMatrix* matrix = pending.matrix;
  GroupIndexOddity oddity;
  QUIRE_ASSIGN_OR_RETURN(const GroupedRows rows, RowsOf(module, &oddity));
  defects_.AddGroupIndex(module, oddity);
  QUIRE_ASSIGN_OR_RETURN(matrix->group_begin, Upload(rows.begin));
  if (module.packing == GptqPacking::kAwq) {
    RepackAwqCodes(const_cast<uint32_t*>(matrix->qweight), matrix->in_features,
                   matrix->out_features, pool);
    RepackAwqZeros(const_cast<uint32_t*>(matrix->qzeros),
                   module.qzeros->elements());
  } else if (module.packing == GptqPacking::kPlanar) {
    RepackPlanar(const_cast<uint32_t*>(matrix->qweight), matrix->bits,
                 matrix->in_features / kPlanarBlock, matrix->out_features,
                 pool);
    RepackPlanar(const_cast<uint32_t*>(matrix->qzeros), matrix->bits,
                 matrix->groups * matrix->out_features / kPlanarBlock, 1, pool);
  }
  if (!rows.order.empty()) {
    QUIRE_ASSIGN_OR_RETURN(matrix->input_order, Upload(rows.order));
    PermutePackedRows(const_cast<uint32_t*>(matrix->qweight), matrix->bits,
                      matrix->in_features, matrix->out_features,
                      matrix->input_order, pool);
  }
  const ZeroReading zeros =
      ReadZeros(module, quantized_.gptq_config->zeros_are_v2(),
                DetectZeroConvention(matrix->qzeros, module.groups,
                                     module.out_features, matrix->bits));
  matrix->zero_offset = zeros.offset;
  defects_.AddGptq(module, *matrix, zeros.label);
  return absl::OkStatus();
}

absl::StatusOr<GroupedRows> WeightBuilder::RowsOf(
    const GptqModule& module, GroupIndexOddity* oddity) const {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> group_of_row,
                         ReadGroupIndex(checkpoint_, module, oddity));
  return SortRowsByGroup(group_of_row, module.groups);
}

absl::Status WeightBuilder::FinishScaled(const PendingScaled& pending,
                                         ThreadPool* pool) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> columns,
                         ReadScaleColumns(checkpoint_, *pending.module));
  if (!columns.empty()) {
    QUIRE_ASSIGN_OR_RETURN(pending.matrix->scale_column, Upload(columns));
  }
  defects_.AddNonFinite(pending.module->name,
                        CountNonFinite(*pending.matrix, pool));
  return absl::OkStatus();
}

}  // namespace quire
