// One decoder layer over a batch of tokens: what the forward pass repeats and
// the quantiser calibrates on.

#ifndef QUIRE_MODEL_DECODER_LAYER_RUNNER_H_
#define QUIRE_MODEL_DECODER_LAYER_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/adapters/apply_adapter.h"
#include "quire/alloc/runtime.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/kv_view.h"

namespace quire {

// float32 activations [rows, columns] in the memory of a device.
struct ActivationBuffer {
  float* data = nullptr;
  uint64_t columns = 0;

  float* row(uint64_t index) const { return data + index * columns; }
};

// Allocates under the owner "workspace" and frees together.
class Workspace {
 public:
  explicit Workspace(Runtime* runtime, DeviceId device = DeviceId(0));
  // REQUIRES: no stream uses the buffers any more.
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  absl::StatusOr<ActivationBuffer> Allocate(uint64_t rows, uint64_t columns);

 private:
  DeviceAllocator* const allocator_;
  const OwnerId owner_;
  std::vector<DeviceAddress> allocations_;
};

// Where one token of a batch stands.
struct TokenPlace {
  uint64_t position;        // in its sequence
  const KvLayerView* view;  // of its sequence in the layer that runs
};

// The inputs that linears of a layer share.
enum class LinearInput : uint8_t {
  kAttention,  // of query, key and value
  kAttentionOutput,
  kFfn,  // of gate and up
  kDown,
};

// Which rows of a batch are computed with which adapters, in one layer.
struct LayerAdapters {
  uint32_t layer = 0;
  std::span<const AdapterRun> runs;  // none: the base model alone
};

// Thread-compatible: one Run at a time.
class LayerRunner {
 public:
  // `input` is [tokens, features].
  using Observer = std::function<void(LinearInput which, const float* input,
                                      size_t tokens, size_t features)>;

  // Everything given must outlive the runner.
  static absl::StatusOr<std::unique_ptr<LayerRunner>> Create(
      Runtime* runtime, const ModelConfig* config,
      std::span<const float> inverse_frequencies, uint32_t max_tokens,
      ThreadPool* pool, DeviceId device = DeviceId(0));

  // Runs `layer` in place on `residual` [places.size(), hidden_size] and writes
  // the tokens' keys and values to their places. Calls no driver.
  void Run(const DecoderLayer& layer, std::span<const TokenPlace> places,
           KvElements kv, float* residual, const LayerAdapters& adapters = {},
           const Observer& observer = {});

 private:
  LayerRunner(Runtime* runtime, const ModelConfig* config,
              std::span<const float> inverse_frequencies, ThreadPool* pool,
              DeviceId device)
      : config_(config),
        inverse_frequencies_(inverse_frequencies),
        pool_(pool),
        workspace_(runtime, device) {}

  void RunAttention(std::span<const TokenPlace> places, KvElements kv);
  // One half of a KV row.
  void StoreRow(KvElements kv, const float* values, DeviceAddress row,
                DeviceAddress scales) const;

  const ModelConfig* const config_;
  const std::span<const float> inverse_frequencies_;
  ThreadPool* const pool_;
  Workspace workspace_;
  ActivationBuffer normed_, query_, key_, value_, attended_, branch_, gate_,
      up_;
  // Of the current batch; kept to avoid allocations per layer.
  std::vector<uint64_t> positions_;
  std::vector<AttentionQuery> queries_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_LAYER_RUNNER_H_
