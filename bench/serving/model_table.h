// Published models (quire/model/published_models.h) as simulations use them.

#ifndef QUIRE_BENCH_SERVING_MODEL_TABLE_H_
#define QUIRE_BENCH_SERVING_MODEL_TABLE_H_

#include <cstdint>
#include <span>
#include <string>

#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"

namespace quire {

// What the KV cache and the weights of a model take.
struct StressModel {
  const char* name;
  uint32_t layers;
  uint32_t query_heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  // Of the layers, so many see the last `window` tokens only.
  uint32_t window_layers;
  uint64_t window;
  uint64_t max_positions;
  Bytes weights;             // the checkpoint's tensors
  double active_parameters;  // that one token is multiplied with

  // Of one token in one layer: 2 * kv_heads * head_dim * element bytes.
  Bytes LayerTokenBytes(KvDType dtype) const;
  KvModelShape Shape(KvDType dtype) const;
  // What `tokens` tokens take, to the byte: each layer keeps all of them, or
  // those of its window.
  Bytes KvBytes(uint64_t tokens, KvDType dtype) const;
  // Products and sums of attention of a token that sees `context` tokens.
  double AttentionFlops(uint64_t context) const;
};

std::span<const StressModel> StressModels();
// Null where there is none of that name.
const StressModel* FindStressModel(const std::string& name);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_MODEL_TABLE_H_
