#include "model/quantizer/layer_quantizer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config/rotary_rows.h"
#include "model/quantizer/checkpoint_export.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

size_t InFeatures(const Linear& linear) {
  return std::visit([](const auto& m) { return m.in_features; }, linear.matrix);
}

size_t GroupSize(const QuantizeOptions& options, size_t in_features) {
  return options.group_size < 0
             ? in_features
             : std::min(static_cast<size_t>(options.group_size), in_features);
}

// Rows of `linear` in Hugging Face's order, as float32.
absl::StatusOr<std::vector<float>> ReadWeight(const Linear& linear, bool rotary,
                                              const ModelConfig& config,
                                              const std::string& name) {
  const auto* dense = std::get_if<DenseMatrix>(&linear.matrix);
  if (dense == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": is quantised already"));
  std::vector<float> weight(dense->out_features * dense->in_features);
  for (size_t row = 0; row < dense->out_features; ++row)
    DequantizeRow(*dense,
                  rotary ? SourceRow(config.rope, config.head_dim, row) : row,
                  &weight[row * dense->in_features]);
  float largest = 0;
  for (const float value : weight) {
    if (!std::isfinite(value))
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": has weights that are not finite"));
    largest = std::max(largest, std::fabs(value));
  }
  // Scales are stored in half precision.
  if (largest > 65504)
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has a weight of magnitude ", largest,
                     ", beyond half precision"));
  return weight;
}

std::vector<float> ReadBias(const Linear& linear, bool rotary,
                            const ModelConfig& config) {
  const size_t size = linear.out_features();
  std::vector<float> stored(size);
  DequantizeRow({.data = linear.bias.data,
                 .dtype = linear.bias.dtype,
                 .out_features = 1,
                 .in_features = size},
                0, stored.data());
  if (!rotary) return stored;
  std::vector<float> bias(size);
  for (size_t i = 0; i < size; ++i)
    bias[i] = stored[SourceRow(config.rope, config.head_dim, i)];
  return bias;
}

absl::Status WritePacked(const PackedLinear& packed, const std::string& name,
                         SafetensorsWriter* writer) {
  QUIRE_RETURN_IF_ERROR(writer->Append(
      name + ".qweight", std::as_bytes(std::span(packed.qweight))));
  QUIRE_RETURN_IF_ERROR(writer->Append(
      name + ".qzeros", std::as_bytes(std::span(packed.qzeros))));
  QUIRE_RETURN_IF_ERROR(writer->Append(
      name + ".scales", std::as_bytes(std::span(packed.scales))));
  return writer->Append(name + ".g_idx",
                        std::as_bytes(std::span(packed.g_idx)));
}

}  // namespace

const std::array<LayerLinear, kLayerLinears>& LayerLinears() {
  static constexpr std::array<LayerLinear, kLayerLinears> kLinears = {{
      {&TensorNames::query, &DecoderLayer::query, LinearInput::kAttention,
       true},
      {&TensorNames::key, &DecoderLayer::key, LinearInput::kAttention, true},
      {&TensorNames::value, &DecoderLayer::value, LinearInput::kAttention,
       false},
      {&TensorNames::attention_output, &DecoderLayer::attention_output,
       LinearInput::kAttentionOutput, false},
      {&TensorNames::gate, &DecoderLayer::gate, LinearInput::kFfn, false},
      {&TensorNames::up, &DecoderLayer::up, LinearInput::kFfn, false},
      {&TensorNames::down, &DecoderLayer::down, LinearInput::kDown, false},
  }};
  return kLinears;
}

std::vector<LayerNorm> LayerNorms(const DecoderLayer& layer,
                                  const ModelConfig& config) {
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  std::vector<LayerNorm> norms = {
      {names.attention_norm, &layer.attention_norm, config.hidden_size},
      {names.ffn_norm, &layer.ffn_norm, config.hidden_size}};
  if (config.head_norms) {
    norms.push_back({names.query_norm, &layer.query_norm, config.head_dim});
    norms.push_back({names.key_norm, &layer.key_norm, config.head_dim});
  }
  return norms;
}

LayerCalibration::LayerCalibration(const ModelConfig& config) {
  // In the order of LinearInput.
  for (const uint64_t features :
       {uint64_t{config.hidden_size}, config.query_size(),
        uint64_t{config.hidden_size}, uint64_t{config.intermediate_size}})
    accumulators_.emplace_back(features);
}

LayerRunner::Observer LayerCalibration::Observer(ThreadPool* pool) {
  return [this, pool](LinearInput which, const float* input, size_t tokens,
                      size_t) {
    accumulators_[static_cast<size_t>(which)].Add(input, tokens, pool);
  };
}

absl::Status LayerCalibration::Factor(const QuantizeOptions& options,
                                      const std::string& layer,
                                      ThreadPool* pool) {
  std::array<absl::Status, kInputs> statuses;
  pool->ParallelFor(kInputs, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      absl::StatusOr<HessianFactor> factor =
          FactorHessian(accumulators_[i].Mean(), accumulators_[i].features(),
                        options.damping, options.act_order, layer);
      if (factor.ok())
        factors_[i] = *std::move(factor);
      else
        statuses[i] = factor.status();
    }
  });
  for (const absl::Status& status : statuses) QUIRE_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

uint32_t ExportedZeroOffset(const QuantizeOptions& options) {
  // A symmetric zero minus one never wraps, so every reader understands v1. An
  // asymmetric zero of 0 would wrap, and readers disagree on what that means:
  // those are written as v2.
  return options.sym ? 1 : 0;
}

absl::StatusOr<std::unique_ptr<QuantizedLayer>> QuantizedLayer::Create(
    const DecoderLayer& source, const ModelConfig& config,
    const LayerCalibration* calibration, const std::string& prefix,
    const QuantizeOptions& options, SafetensorsWriter* writer,
    ThreadPool* pool) {
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  std::unique_ptr<QuantizedLayer> result(new QuantizedLayer());
  result->layer_ = source;
  for (const LayerLinear& entry : LayerLinears()) {
    const Linear& linear = source.*entry.linear;
    const std::string name = prefix + names.*entry.module;
    const size_t in = InFeatures(linear);
    const size_t out = linear.out_features();
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> weight,
                           ReadWeight(linear, entry.rotary, config, name));
    const SolverOptions solver = {
        .grid = {.bits = options.bits, .sym = options.sym, .mse = options.mse},
        .group_size = GroupSize(options, in),
        .static_groups = options.static_groups};
    const QuantizedLinear quantized =
        calibration != nullptr
            ? SolveGptq(weight, out, in, calibration->factor(entry.input),
                        solver, pool)
            : RoundToNearest(weight, out, in, solver, pool);
    PackedLinear packed =
        PackLinear(quantized, options.bits, ExportedZeroOffset(options));
    QUIRE_RETURN_IF_ERROR(WritePacked(packed, name, writer));
    Linear& target = result->layer_.*entry.linear;
    if (linear.bias.data != nullptr) {
      result->biases_.push_back(ReadBias(linear, entry.rotary, config));
      target.bias = {result->biases_.back().data(), DType::kF32};
      QUIRE_RETURN_IF_ERROR(
          ExportVector(target.bias, out, name + ".bias", writer));
    }
    result->packed_.push_back(std::make_unique<PackedLinearView>(
        std::move(packed), ExportedZeroOffset(options), pool));
    target.matrix = result->packed_.back()->matrix();
  }
  return result;
}

void AppendLayerEntries(const DecoderLayer& source, const ModelConfig& config,
                        const std::string& prefix,
                        const QuantizeOptions& options,
                        std::vector<SafetensorsEntry>* entries) {
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  for (const LayerLinear& entry : LayerLinears()) {
    const Linear& linear = source.*entry.linear;
    const std::string name = prefix + names.*entry.module;
    const uint64_t in = InFeatures(linear);
    const uint64_t out = linear.out_features();
    const uint64_t group = GroupSize(options, in);
    const uint64_t groups = (in + group - 1) / group;
    entries->push_back(
        {name + ".qweight", DType::kI32, {PackedWords(in, options.bits), out}});
    entries->push_back({name + ".qzeros",
                        DType::kI32,
                        {groups, PackedWords(out, options.bits)}});
    entries->push_back({name + ".scales", DType::kF16, {groups, out}});
    entries->push_back({name + ".g_idx", DType::kI32, {in}});
    if (linear.bias.data != nullptr)
      entries->push_back({name + ".bias", DType::kF32, {out}});
  }
  for (const LayerNorm& norm : LayerNorms(source, config))
    entries->push_back({absl::StrCat(prefix, norm.module, ".weight"),
                        ExportedType(norm.vector->dtype),
                        {norm.size}});
}

}  // namespace quire
