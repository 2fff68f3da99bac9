#include "model/decoder/layer_runner.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {

Workspace::Workspace(Runtime* runtime, DeviceId device)
    : allocator_(runtime->allocator(device)),
      owner_(runtime->RegisterOwner("workspace")) {}

Workspace::~Workspace() {
  // The addresses are this allocator's and nothing uses them: what Free could
  // report, nobody could act on.
  for (const DeviceAddress address : allocations_)
    allocator_->Free(address).IgnoreError();
}

absl::StatusOr<ActivationBuffer> Workspace::Allocate(uint64_t rows,
                                                     uint64_t columns) {
  const auto elements = CheckedMultiply(rows, columns);
  const auto bytes = elements ? CheckedMultiply(Bytes(sizeof(float)), *elements)
                              : std::nullopt;
  if (!bytes)
    return absl::InvalidArgumentError(absl::StrCat(
        "a workspace of ", rows, " x ", columns, " floats does not fit"));
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         allocator_->Allocate(*bytes, {.owner = owner_}));
  allocations_.push_back(address);
  return ActivationBuffer{address.host_pointer<float>(), columns};
}

absl::StatusOr<std::unique_ptr<LayerRunner>> LayerRunner::Create(
    Runtime* runtime, const ModelConfig* config,
    std::span<const float> inverse_frequencies, uint32_t max_tokens,
    ThreadPool* pool, DeviceId device) {
  std::unique_ptr<LayerRunner> runner(
      new LayerRunner(runtime, config, inverse_frequencies, pool, device));
  const uint64_t hidden = config->hidden_size;
  const uint64_t ffn = config->intermediate_size;
  const struct {
    ActivationBuffer* buffer;
    uint64_t columns;
  } buffers[] = {{&runner->normed_, hidden},
                 {&runner->query_, config->query_size()},
                 {&runner->key_, config->kv_size()},
                 {&runner->value_, config->kv_size()},
                 {&runner->attended_, config->query_size()},
                 {&runner->branch_, hidden},
                 {&runner->gate_, ffn},
                 {&runner->up_, ffn}};
  for (const auto& [buffer, columns] : buffers) {
    QUIRE_ASSIGN_OR_RETURN(*buffer,
                           runner->workspace_.Allocate(max_tokens, columns));
  }
  return runner;
}

void LayerRunner::Run(const DecoderLayer& layer,
                      std::span<const TokenPlace> places, KvElements kv,
                      float* residual, const LayerAdapters& adapters,
                      const Observer& observer) {
  const size_t tokens = places.size();
  const size_t hidden = config_->hidden_size;
  const auto observe = [&](LinearInput which, const ActivationBuffer& input) {
    if (observer) observer(which, input.data, tokens, input.columns);
  };
  const auto normalise_rows = [&](ParameterVector DecoderLayer::*norm,
                                  ParameterVector LayerAdapter::*adapted,
                                  size_t features, size_t rows_per_token,
                                  const float* input, float* output) {
    ApplyAdaptedNorm(
        layer.*norm, adapters.runs,
        [&](const AdapterWeights& adapter) -> const ParameterVector& {
          return adapter.layers[adapters.layer].*adapted;
        },
        {config_->norm_epsilon, features, rows_per_token}, input, tokens,
        output, pool_);
  };
  const auto normalise = [&](ParameterVector DecoderLayer::*norm,
                             ParameterVector LayerAdapter::*adapted) {
    normalise_rows(norm, adapted, hidden, 1, residual, normed_.data);
  };
  const auto normalise_heads = [&](ParameterVector DecoderLayer::*norm,
                                   ParameterVector LayerAdapter::*adapted,
                                   size_t heads, float* values) {
    normalise_rows(norm, adapted, config_->head_dim, heads, values, values);
  };
  const auto apply =
      [&](Linear DecoderLayer::*linear, LinearAdapter LayerAdapter::*adapted,
          const ActivationBuffer& input, const ActivationBuffer& output) {
        ApplyAdaptedLinear(
            layer.*linear, adapters.runs,
            [&](const AdapterWeights& adapter) -> const LinearAdapter& {
              return adapter.layers[adapters.layer].*adapted;
            },
            input.data, tokens, output.data, pool_);
      };

  normalise(&DecoderLayer::attention_norm, &LayerAdapter::attention_norm);
  observe(LinearInput::kAttention, normed_);
  apply(&DecoderLayer::query, &LayerAdapter::query, normed_, query_);
  apply(&DecoderLayer::key, &LayerAdapter::key, normed_, key_);
  apply(&DecoderLayer::value, &LayerAdapter::value, normed_, value_);
  if (config_->head_norms) {
    normalise_heads(&DecoderLayer::query_norm, &LayerAdapter::query_norm,
                    config_->heads, query_.data);
    normalise_heads(&DecoderLayer::key_norm, &LayerAdapter::key_norm,
                    config_->kv_heads, key_.data);
  }
  RunAttention(places, kv);
  observe(LinearInput::kAttentionOutput, attended_);
  apply(&DecoderLayer::attention_output, &LayerAdapter::attention_output,
        attended_, branch_);
  AddInPlace(branch_.data, tokens * hidden, residual);

  normalise(&DecoderLayer::ffn_norm, &LayerAdapter::ffn_norm);
  observe(LinearInput::kFfn, normed_);
  apply(&DecoderLayer::gate, &LayerAdapter::gate, normed_, gate_);
  apply(&DecoderLayer::up, &LayerAdapter::up, normed_, up_);
  SiluMultiply(up_.data, tokens * up_.columns, gate_.data, pool_);
  observe(LinearInput::kDown, gate_);
  apply(&DecoderLayer::down, &LayerAdapter::down, gate_, branch_);
  AddInPlace(branch_.data, tokens * hidden, residual);
}

void LayerRunner::StoreRow(KvElements kv, const float* values,
                           DeviceAddress row, DeviceAddress scales) const {
  const size_t heads = config_->kv_heads;
  const size_t head_dim = config_->head_dim;
  if (KvElementSize(kv.dtype) == Bytes(1)) {
    StoreScaledKvRow(values, heads, head_dim, kv, row.host_pointer<void>(),
                     scales.host_pointer<void>());
  } else {
    StoreKvRow(values, heads * head_dim, kv.dtype, row.host_pointer<void>());
  }
}

void LayerRunner::RunAttention(std::span<const TokenPlace> places,
                               KvElements kv) {
  const size_t tokens = places.size();
  positions_.clear();
  for (const TokenPlace& place : places) positions_.push_back(place.position);
  const auto rotate = [&](const ActivationBuffer& heads, uint32_t count) {
    Rope(positions_.data(), inverse_frequencies_.data(), config_->head_dim,
         config_->rope.pairing, static_cast<float>(config_->rope.magnitude),
         tokens, count, config_->head_dim, heads.data, pool_);
  };
  rotate(query_, config_->heads);
  rotate(key_, config_->kv_heads);

  queries_.clear();
  for (size_t t = 0; t < tokens; ++t) {
    const KvLayerView& view = *places[t].view;
    const uint64_t position = places[t].position;
    StoreRow(kv, key_.row(t), view.KeyRow(position), view.KeyScales(position));
    StoreRow(kv, value_.row(t), view.ValueRow(position),
             view.ValueScales(position));
    queries_.push_back(
        {.query = query_.row(t),
         .keys = view.keys.host_pointer<const void>(),
         .values = view.values.host_pointer<const void>(),
         .row_stride = view.row_stride.value(),
         .length = position + 1,
         .output = attended_.row(t),
         .blocks = view.block_table,
         .block_shift = view.block_shift,
         .block_stride = view.block_stride.value(),
         .key_scales = view.key_scales.host_pointer<const void>(),
         .value_scales = view.value_scales.host_pointer<const void>(),
         .value_stride = view.value_stride.value(),
         .value_block_stride = view.value_block_stride.value(),
         .window = view.window,
         .sinks = view.sinks});
  }
  Attention(queries_, kv, config_->heads, config_->kv_heads, config_->head_dim,
            1.0f / std::sqrt(static_cast<float>(config_->head_dim)), pool_);
}

}  // namespace quire
