#include "bench/serving/model_table.h"

#include <algorithm>
#include <utility>

#include "quire/model/kv_config.h"
#include "quire/model/published_models.h"

namespace quire {
namespace {

uint64_t TokenBytes(const KvLayerKind& kind, KvDType dtype) {
  KvModelShape one;
  one.layers = {kind};
  const auto layout = KvLayout::Create(WithElements(std::move(one), dtype), 1);
  return layout.ok() ? layout->TokenBytes().value() : 0;
}

uint64_t KeptRows(const KvLayerKind& kind, uint64_t tokens) {
  const KvKeptTokens kept = KeptTokens(kind, tokens);
  return kept.sinks + (tokens - std::max(kept.first, kept.sinks));
}

}  // namespace

StressModel::StressModel(std::string name, KvModelShape shape,
                         uint32_t query_heads, uint64_t max_positions)
    : name_(std::move(name)),
      shape_(std::move(shape)),
      query_heads_(query_heads),
      max_positions_(max_positions) {
  for (const KvLayerKind& layer : shape_.layers) {
    auto kind =
        std::find_if(kinds_.begin(), kinds_.end(),
                     [&](const Kind& known) { return known.kind == layer; });
    if (kind == kinds_.end()) {
      kind = kinds_.insert(kind, {.kind = layer});
      for (size_t i = 0; i < kDTypes; ++i) {
        kind->token_bytes[i] = TokenBytes(layer, static_cast<KvDType>(i));
      }
    }
    ++kind->layers;
  }
}

KvModelShape StressModel::Shape(KvDType dtype) const {
  return WithElements(shape_, dtype);
}

Bytes StressModel::KvBytes(uint64_t tokens, KvDType dtype) const {
  uint64_t bytes = 0;
  for (const Kind& kind : kinds_) {
    bytes += kind.layers * KeptRows(kind.kind, tokens) *
             kind.token_bytes[static_cast<size_t>(dtype)];
  }
  return Bytes(bytes);
}

double StressModel::AttentionFlops(uint64_t context) const {
  double elements = 0;
  for (const Kind& kind : kinds_) {
    const uint64_t value_dim =
        kind.kind.value_dim > 0 ? kind.kind.value_dim : kind.kind.key_dim;
    elements += static_cast<double>(kind.layers * KeptRows(kind.kind, context) *
                                    (kind.kind.key_dim + value_dim));
  }
  return 2.0 * query_heads_ * elements;  // q*k and p*v, two each
}

std::span<const StressModel> StressModels() {
  static const std::vector<StressModel>* const models = [] {
    auto* const all = new std::vector<StressModel>;
    for (const PublishedModel& published : PublishedModels()) {
      // A table of constants, every entry of which its test reads.
      const absl::StatusOr<KvConfig> config = published.ParseKv();
      if (!config.ok()) continue;
      StressModel& model =
          all->emplace_back(published.name, config->shape, config->query_heads,
                            config->max_positions);
      model.weights = published.weights;
      model.active_parameters = published.active_parameters;
    }
    return all;
  }();
  return *models;
}

const StressModel* FindStressModel(const std::string& name) {
  const std::span<const StressModel> models = StressModels();
  const auto found = std::find_if(
      models.begin(), models.end(),
      [&](const StressModel& model) { return model.name() == name; });
  return found == models.end() ? nullptr : &*found;
}

}  // namespace quire
