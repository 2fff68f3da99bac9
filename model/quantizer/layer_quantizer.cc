#include "model/quantizer/layer_quantizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config/rotary_rows.h"
#include "model/quantizer/checkpoint_export.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

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

// `factor` is null for round-to-nearest.
absl::StatusOr<PackedLinear> QuantizeLinear(const Linear& linear, bool rotary,
                                            const ModelConfig& config,
                                            const HessianFactor* factor,
                                            const std::string& name,
                                            const QuantizeOptions& options,
                                            ThreadPool* pool) {
  const size_t in = linear.in_features();
  const size_t out = linear.out_features();
  QUIRE_ASSIGN_OR_RETURN(std::vector<float> weight,
                         ReadWeight(linear, rotary, config, name));
  const SolverOptions solver = {
      .grid = {.bits = options.bits, .sym = options.sym, .mse = options.mse},
      .group_size = GroupSize(options, in),
      .static_groups = options.static_groups};
  const QuantizedLinear quantized =
      factor != nullptr ? SolveGptq(weight, out, in, *factor, solver, pool)
                        : RoundToNearest(weight, out, in, solver, pool);
  weight = {};
  return PackLinear(quantized, options.bits, ExportedZeroOffset(options));
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
  static constexpr auto kQuery = [](const ModelConfig& config) {
    return config.query_size();
  };
  static constexpr auto kKv = [](const ModelConfig& config) {
    return config.kv_size();
  };
  static constexpr auto kHidden = [](const ModelConfig& config) {
    return uint64_t{config.hidden_size};
  };
  static constexpr auto kIntermediate = [](const ModelConfig& config) {
    return uint64_t{config.intermediate_size};
  };
  static constexpr std::array<LayerLinear, kLayerLinears> kLinears = {{
      {&TensorNames::query, &DecoderLayer::query, LinearInput::kAttention,
       kQuery, true},
      {&TensorNames::key, &DecoderLayer::key, LinearInput::kAttention, kKv,
       true},
      {&TensorNames::value, &DecoderLayer::value, LinearInput::kAttention, kKv,
       false},
      {&TensorNames::attention_output, &DecoderLayer::attention_output,
       LinearInput::kAttentionOutput, kHidden, false},
      {&TensorNames::gate, &DecoderLayer::gate, LinearInput::kFfn,
       kIntermediate, false},
      {&TensorNames::up, &DecoderLayer::up, LinearInput::kFfn, kIntermediate,
       false},
      {&TensorNames::down, &DecoderLayer::down, LinearInput::kDown, kHidden,
       false},
  }};
  return kLinears;
}

std::array<uint64_t, kLinearInputs> InputSizes(const ModelConfig& config) {
  return {config.hidden_size, config.query_size(), config.hidden_size,
          config.intermediate_size};
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

LayerCalibration::LayerCalibration(const ModelConfig& config,
                                   const QuantizeOptions& options)
    : options_(options) {
  for (const uint64_t features : InputSizes(config))
    accumulators_.emplace_back(features);
}

LayerRunner::Observer LayerCalibration::Observer(ThreadPool* pool) {
  return [this, pool](LinearInput which, const float* input, size_t tokens,
                      size_t) {
    accumulators_[static_cast<size_t>(which)].Add(input, tokens, &scratch_,
                                                  pool);
  };
}

absl::StatusOr<HessianFactor> LayerCalibration::TakeFactor(
    LinearInput input, const std::string& layer) {
  scratch_ = {};
  HessianAccumulator& accumulator = accumulators_[static_cast<size_t>(input)];
  return FactorHessian(std::move(accumulator).TakeMean(),
                       accumulator.features(), options_.damping,
                       options_.act_order, layer);
}

uint32_t ExportedZeroOffset(const QuantizeOptions& options) {
  // A symmetric zero minus one never wraps, so every reader understands v1. An
  // asymmetric zero of 0 would wrap, and readers disagree on what that means:
  // those are written as v2.
  return options.sym ? 1 : 0;
}

absl::StatusOr<std::unique_ptr<QuantizedLayer>> QuantizedLayer::Create(
    const DecoderLayer& source, const ModelConfig& config,
    LayerCalibration* calibration, const std::string& prefix,
    const QuantizeOptions& options, SafetensorsWriter* writer,
    ThreadPool* pool) {
  const TensorNames& names = NamesFor(CheckpointFormat::kSafetensors);
  std::unique_ptr<QuantizedLayer> result(new QuantizedLayer());
  result->layer_ = source;
  // Of the inputs that the linears at hand share: one at a time.
  std::optional<LinearInput> factored;
  HessianFactor factor;
  for (const LayerLinear& entry : LayerLinears()) {
    const Linear& linear = source.*entry.linear;
    const std::string name = prefix + names.*entry.module;
    if (calibration != nullptr && factored != entry.input) {
      factor = {};
      QUIRE_ASSIGN_OR_RETURN(factor,
                             calibration->TakeFactor(entry.input, prefix));
      factored = entry.input;
    }
    QUIRE_ASSIGN_OR_RETURN(
        PackedLinear packed,
        QuantizeLinear(linear, entry.rotary, config,
                       factored.has_value() ? &factor : nullptr, name, options,
                       pool));
    QUIRE_RETURN_IF_ERROR(WritePacked(packed, name, writer));
    Linear& target = result->layer_.*entry.linear;
    if (linear.bias.data != nullptr) {
      result->biases_.push_back(ReadBias(linear, entry.rotary, config));
      target.bias = {result->biases_.back().data(), DType::kF32};
      QUIRE_RETURN_IF_ERROR(ExportVector(target.bias, linear.out_features(),
                                         name + ".bias", writer));
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
    const uint64_t in = linear.in_features();
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
