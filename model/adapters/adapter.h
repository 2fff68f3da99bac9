// A LoRA adapter in device memory, as the forward pass reads it.

#ifndef QUIRE_MODEL_ADAPTERS_ADAPTER_H_
#define QUIRE_MODEL_ADAPTERS_ADAPTER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/lora.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/adapters.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/ops.h"
#include "quire/model/tokenizer.h"

namespace quire {

// y += scale * (b (a x) + bias).
struct LowRankProduct {
  DenseMatrix a;  // [rank, inputs]; without data there is no product
  DenseMatrix b;  // [outputs, rank]
  ParameterVector bias;
  float scale = 0;
};

// What an adapter does to a linear, or to the embedding, of which a row is an
// output and the token's number the input.
struct LinearAdapter {
  // In place of the base's; without data the base's counts.
  DenseMatrix weight;
  ParameterVector bias;
  LowRankProduct product;
};

struct LayerAdapter {
  LinearAdapter query, key, value, attention_output, gate, up, down;
  // In place of the base's.
  ParameterVector attention_norm, query_norm, key_norm, ffn_norm;
};

struct AdapterWeights {
  LinearAdapter embedding;
  std::vector<LayerAdapter> layers;
  ParameterVector output_norm;
  LinearAdapter output;
};

// Where products are computed; one at a time.
struct ProductScratch {
  // Outputs of `b` that are computed at once.
  static constexpr size_t kColumns = 256;

  float* low_rank = nullptr;  // [tokens, rank]
  float* part = nullptr;      // [tokens, kColumns]
};

class Adapter {
 public:
  // `name` is that of the owner below "adapters". The memory goes back with the
  // adapter; `runtime` must outlive it.
  Adapter(Runtime* runtime, std::string name, std::string folder,
          uint32_t max_tokens);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  const std::string& name() const { return name_; }
  const std::string& folder() const { return folder_; }
  const AdapterWeights& weights() const { return weights_; }
  // For batches of max_tokens tokens at most.
  const ProductScratch& scratch() const { return scratch_; }
  uint32_t max_tokens() const { return max_tokens_; }
  Bytes bytes() const { return bytes_; }
  uint64_t modules() const { return modules_; }
  uint64_t rank() const { return rank_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Stands for the first token of a sequence in what caches share rows by:
  // below 0, so no token, and of no other first token or adapter of this
  // process, while it lives or after.
  TokenId PrefixKey(TokenId first_token) const;

 private:
  friend class AdapterBuilder;

  // Once.
  absl::StatusOr<DeviceAddress> Allocate(Bytes size);

  Runtime* const runtime_;
  const std::string name_;
  const std::string folder_;
  const uint32_t max_tokens_;
  const OwnerId owner_;
  AdapterWeights weights_;
  ProductScratch scratch_;
  DeviceAddress memory_;  // null: none yet
  Bytes bytes_;
  uint64_t modules_ = 0;
  uint64_t rank_ = 0;
  std::vector<std::string> warnings_;

  mutable Mutex mutex_;
  mutable absl::flat_hash_map<TokenId, TokenId> prefix_keys_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_MODEL_ADAPTERS_ADAPTER_H_
