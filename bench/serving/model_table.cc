#include "bench/serving/model_table.h"

#include <algorithm>

namespace quire {
namespace {

// gpt-oss is published with MXFP4 experts, the others are in bf16. Layers with
// windows alternate with full ones in gpt-oss and Gemma 2, and are five of six
// in Gemma 3.
constexpr StressModel kModels[] = {
    {"qwen3-0.6b", 28, 16, 8, 128, 0, 0, 40960, Bytes(1'192'099'840), 0.596e9},
    {"qwen3-8b", 36, 32, 8, 128, 0, 0, 40960, Bytes(16'381'470'720), 8.19e9},
    {"llama2-7b", 32, 32, 32, 128, 0, 0, 4096, Bytes(13'476'831'232), 6.74e9},
    {"llama3-8b", 32, 32, 8, 128, 0, 0, 131072, Bytes(16'060'522'496), 8.03e9},
    {"mistral-7b", 32, 32, 8, 128, 0, 0, 32768, Bytes(14'496'047'104), 7.25e9},
    {"gemma2-9b", 42, 16, 8, 256, 21, 4096, 8192, Bytes(18'483'411'968),
     9.24e9},
    {"gemma3-12b", 48, 16, 8, 256, 40, 1024, 131072, Bytes(24'374'650'080),
     11.8e9},
    {"gpt-oss-20b", 24, 64, 8, 64, 12, 128, 131072, Bytes(13'761'264'768),
     3.6e9},
};

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

std::span<const StressModel> StressModels() { return kModels; }

const StressModel* FindStressModel(const std::string& name) {
  const auto found = std::find_if(
      std::begin(kModels), std::end(kModels),
      [&](const StressModel& model) { return model.name == name; });
  return found == std::end(kModels) ? nullptr : &*found;
}

}  // namespace quire
