#include "quire/model/model_weights.h"

#include "model/decoder/gptq_weights.h"
#include "model/decoder/shared_weights_entry.h"
#include "model/decoder/weight_builder.h"
#include "quire/alloc/status_macros.h"

namespace quire {

size_t Linear::out_features() const {
  return std::visit([](const auto& m) { return m.out_features; }, matrix);
}

size_t Linear::in_features() const {
  return std::visit([](const auto& m) { return m.in_features; }, matrix);
}

Bytes Linear::weight_bytes() const {
  if (const auto* dense = std::get_if<DenseMatrix>(&matrix)) {
    return BytesOf(dense->dtype, dense->in_features * dense->out_features)
        .value_or(Bytes(0));
  }
  if (const auto* scaled = std::get_if<ScaledMatrix>(&matrix))
    return SaturatingAdd(CodeBytes(*scaled), ScaleBytes(*scaled));
  const auto& gptq = std::get<GptqMatrix>(matrix);
  const uint64_t words =
      PackedWords(gptq.in_features, gptq.bits) * gptq.out_features;
  const uint64_t zero_words =
      gptq.groups * PackedWords(gptq.out_features, gptq.bits);
  const uint64_t scale_bits =
      gptq.groups * gptq.out_features * BlockBits(gptq.scales_dtype);
  return Bytes(4 * (words + zero_words) + scale_bits / 8);
}

void ApplyMatrix(const Linear& linear, const float* input, size_t tokens,
                 float* output, ThreadPool* pool) {
  std::visit([&](const auto& m) { MatMul(m, input, tokens, output, pool); },
             linear.matrix);
}

void ApplyLinear(const Linear& linear, const float* input, size_t tokens,
                 float* output, ThreadPool* pool) {
  ApplyMatrix(linear, input, tokens, output, pool);
  if (linear.bias.data != nullptr)
    AddBias(linear.bias.data, linear.bias.dtype, tokens, linear.out_features(),
            output);
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(
    Runtime* runtime, const Checkpoint& checkpoint, const ModelConfig& config,
    const StreamingOptions& options, ThreadPool* pool,
    const WeightPlacement& placement, const WeightOptions& weight_options) {
  std::unique_ptr<ModelWeights> weights(new ModelWeights(runtime));
  WeightBuilder builder(runtime, checkpoint, config, weight_options,
                        weights.get());
  QUIRE_RETURN_IF_ERROR(builder.Build(placement, options, pool));
  weights->owner_ = builder.owner();
  weights->files_ = checkpoint.files();
  weights->options_ = weight_options;
  weights->resident_ = true;
  return weights;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Reserve(
    Runtime* runtime, const Checkpoint& checkpoint, const ModelConfig& config,
    const StreamingOptions& options, const WeightPlacement& placement,
    const WeightOptions& weight_options) {
  std::unique_ptr<ModelWeights> weights(new ModelWeights(runtime));
  WeightBuilder builder(runtime, checkpoint, config, weight_options,
                        weights.get());
  QUIRE_RETURN_IF_ERROR(builder.Reserve(placement, options));
  return weights;
}

absl::StatusOr<std::vector<std::string>> ModelWeights::Check(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const QuantizedModules* quantized) {
  ModelWeights weights(nullptr);
  QUIRE_RETURN_IF_ERROR(
      WeightBuilder(nullptr, checkpoint, config, {}, &weights, quantized)
          .Check());
  return std::move(weights.warnings_);
}

absl::StatusOr<std::vector<PlacementBlock>> ModelWeights::Blocks(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const WeightOptions& weight_options) {
  ModelWeights weights(nullptr);
  WeightBuilder builder(nullptr, checkpoint, config, weight_options, &weights);
  QUIRE_RETURN_IF_ERROR(builder.Describe());
  return builder.Blocks();
}

ModelWeights::~ModelWeights() {
  // Others may sleep, and leave this one the last that used what is shared.
  if (shared_ != nullptr) shared_->Leave(this, /*for_good=*/true).IgnoreError();
  for (const Allocation& allocation : allocations_) {
    // Every use is over, and the address came from this allocator: it cannot
    // fail in a way that a destructor could mend.
    runtime_->allocator(allocation.device)
        ->Free(allocation.address)
        .IgnoreError();
  }
}

absl::Status ModelWeights::ReadEmbeddingRow(size_t row,
                                            std::span<std::byte> out) const {
  return disk_rows_.store->ReadFromDisk(
      disk_rows_.unit,
      DeviceAddress(disk_rows_.first.value() + row * out.size()), out);
}

OffloadStore* ModelWeights::store(DeviceId device) const {
  return stores_[static_cast<size_t>(device.value())].get();
}

std::vector<OffloadStore*> ModelWeights::stores() const {
  std::vector<OffloadStore*> stores;
  for (const std::unique_ptr<OffloadStore>& store : stores_) {
    if (store != nullptr) stores.push_back(store.get());
  }
  return stores;
}

OffloadStatistics ModelWeights::GetOffloadStatistics() const {
  OffloadStatistics total;
  for (const OffloadStore* const store : stores()) {
    const OffloadStatistics one = store->GetStatistics();
    total.acquired += one.acquired;
    total.hits += one.hits;
    total.stall_seconds += one.stall_seconds;
    total.streamed = SaturatingAdd(total.streamed, one.streamed);
    total.device = SaturatingAdd(total.device, one.device);
    total.host = SaturatingAdd(total.host, one.host);
    total.pinned = SaturatingAdd(total.pinned, one.pinned);
    total.disk = SaturatingAdd(total.disk, one.disk);
  }
  return total;
}

std::vector<const Linear*> ModelWeights::Linears() const {
  std::vector<const Linear*> linears;
  for (const DecoderLayer& layer : layers_)
    for (const Linear* linear :
         {&layer.query, &layer.key, &layer.value, &layer.attention_output,
          &layer.gate, &layer.up, &layer.down})
      linears.push_back(linear);
  linears.push_back(&output_);
  return linears;
}

Bytes ModelWeights::BytesPerToken() const {
  uint64_t total = 0;
  for (const Linear* linear : Linears())
    total += linear->weight_bytes().value();
  return Bytes(total);
}

uint64_t ModelWeights::Parameters() const {
  uint64_t total = 0;
  for (const Linear* linear : Linears())
    total += linear->in_features() * linear->out_features();
  return tied_head() ? total
                     : total + embedding_.in_features * embedding_.out_features;
}

}  // namespace quire
