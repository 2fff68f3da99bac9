#include "bench/serving/model_table.h"

#include <algorithm>
#include <vector>

#include "quire/model/published_models.h"

namespace quire {
namespace {

// In which all layers have the same heads, and those with windows the same
// window: of such are the published ones.
StressModel MakeStressModel(const PublishedModel& published,
                            const KvConfig& config) {
  StressModel model = {
      .name = published.name,
      .layers = static_cast<uint32_t>(config.shape.layers.size()),
      .query_heads = config.query_heads,
      .max_positions = config.max_positions,
      .weights = published.weights,
      .active_parameters = published.active_parameters};
  for (const KvLayerKind& kind : config.shape.layers) {
    model.kv_heads = kind.kv_heads;
    model.head_dim = kind.key_dim;
    if (kind.window == 0) continue;
    ++model.window_layers;
    model.window = kind.window;
  }
  return model;
}

}  // namespace

Bytes StressModel::LayerTokenBytes(KvDType dtype) const {
  return Bytes(2 * uint64_t{kv_heads} * head_dim *
               KvElementSize(dtype).value());
}

// Which layers have the windows makes no difference to what they take.
KvModelShape StressModel::Shape(KvDType dtype) const {
  KvModelShape shape(KvShape{layers, kv_heads, head_dim, dtype});
  for (uint32_t layer = 0; layer < window_layers; ++layer)
    shape.layers[layer].window = window;
  return shape;
}

Bytes StressModel::KvBytes(uint64_t tokens, KvDType dtype) const {
  const uint64_t rows = (layers - window_layers) * tokens +
                        window_layers * std::min(tokens, window);
  return Bytes(rows * LayerTokenBytes(dtype).value());
}

double StressModel::AttentionFlops(uint64_t context) const {
  const double rows =
      (layers - window_layers) * static_cast<double>(context) +
      window_layers * static_cast<double>(std::min(context, window));
  return 4.0 * query_heads * head_dim * rows;  // q*k and p*v, two each
}

std::span<const StressModel> StressModels() {
  static const std::vector<StressModel>* const models = [] {
    auto* const all = new std::vector<StressModel>;
    for (const PublishedModel& published : PublishedModels()) {
      // A table of constants, every entry of which its test reads.
      const absl::StatusOr<KvConfig> config = published.ParseKv();
      if (config.ok()) all->push_back(MakeStressModel(published, *config));
    }
    return all;
  }();
  return *models;
}

const StressModel* FindStressModel(const std::string& name) {
  const std::span<const StressModel> models = StressModels();
  const auto found = std::find_if(
      models.begin(), models.end(),
      [&](const StressModel& model) { return model.name == name; });
  return found == models.end() ? nullptr : &*found;
}

}  // namespace quire
