// Published models (quire/model/published_models.h) as simulations use them.

#ifndef QUIRE_BENCH_SERVING_MODEL_TABLE_H_
#define QUIRE_BENCH_SERVING_MODEL_TABLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"

namespace quire {

// What the KV cache and the weights of a model take.
class StressModel {
 public:
  StressModel() = default;
  // `shape` is of f16 elements, and one that KvLayout takes.
  StressModel(std::string name, KvModelShape shape, uint32_t query_heads,
              uint64_t max_positions);

  const std::string& name() const { return name_; }
  uint32_t layers() const {
    return static_cast<uint32_t>(shape_.layers.size());
  }
  // Of the first layer; of a latent vector the one head, and its elements.
  uint32_t kv_heads() const { return shape_.layers.front().kv_heads; }
  uint32_t head_dim() const { return shape_.layers.front().key_dim; }
  uint32_t query_heads() const { return query_heads_; }
  uint64_t max_positions() const { return max_positions_; }

  Bytes weights;                 // the checkpoint's tensors
  double active_parameters = 0;  // that one token is multiplied with

  // Elements of 8 bits have scales (WithElements).
  KvModelShape Shape(KvDType dtype) const;
  // What `tokens` tokens take, to the byte, scales included: each layer keeps
  // all of them, or those of its window.
  Bytes KvBytes(uint64_t tokens, KvDType dtype) const;
  // Products and sums of attention of a token that sees `context` tokens. A
  // latent vector is multiplied with as a key and as a value.
  double AttentionFlops(uint64_t context) const;

 private:
  static constexpr size_t kDTypes = static_cast<size_t>(KvDType::kInt8) + 1;
  // Layers of one kind.
  struct Kind {
    KvLayerKind kind;
    uint64_t layers = 0;
    uint64_t token_bytes[kDTypes] = {};  // of one of them, by type of elements
  };

  std::string name_;
  KvModelShape shape_;
  uint32_t query_heads_ = 0;
  uint64_t max_positions_ = 0;
  std::vector<Kind> kinds_;
};

std::span<const StressModel> StressModels();
// Null where there is none of that name.
const StressModel* FindStressModel(const std::string& name);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_MODEL_TABLE_H_
