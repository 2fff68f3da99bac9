// A model's weights on the devices, as the forward pass reads them.
//
// Every tensor is an allocation of a device's allocator under the owner
// "weights"; packed weights stay packed. Parts that are kept on the host or on
// disk lie in an OffloadStore, at addresses that are backed while they run.
// Loading goes through the streaming loader, so that the host never holds more
// than its ring, and what is to be kept there.

#ifndef QUIRE_MODEL_MODEL_WEIGHTS_H_
#define QUIRE_MODEL_MODEL_WEIGHTS_H_

#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/device_map.h"
#include "quire/loader/offload_store.h"
#include "quire/loader/quantization.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/model_config.h"
#include "quire/model/ops.h"

namespace quire {

// A vector of parameters, as stored.
struct ParameterVector {
  const void* data = nullptr;  // null: absent
  DType dtype = DType::kF32;
};

// One linear layer, of whatever storage.
struct Linear {
  std::variant<DenseMatrix, GptqMatrix, ScaledMatrix> matrix;
  ParameterVector bias;

  size_t out_features() const;
  size_t in_features() const;
  Bytes weight_bytes() const;  // read by one token's pass
};

// output[t] = matrix * input[t].
void ApplyMatrix(const Linear& linear, const float* input, size_t tokens,
                 float* output, ThreadPool* pool);
// output[t] = matrix * input[t] + bias.
void ApplyLinear(const Linear& linear, const float* input, size_t tokens,
                 float* output, ThreadPool* pool);

struct DecoderLayer {
  ParameterVector attention_norm;
  Linear query, key, value, attention_output;
  ParameterVector query_norm,
      key_norm;  // of each head; absent in most families
  ParameterVector ffn_norm;
  Linear gate, up, down;
};

// The embedding, a layer, the last norm or the output head: what is placed as a
// whole.
struct WeightPart {
  std::string name;  // "model.layers.3"
  Bytes size;        // allocated for it
  MemoryPlace place;
};

// One tensor of the checkpoint that the model reads, and what becomes of it.
struct WeightTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  size_t part = 0;  // of ModelWeights::parts()
  Bytes file;       // in the checkpoint
  Bytes memory;     // as it is kept: as it is stored, or quantised at load
  Bytes workspace;  // tables beside it that are made at load: groups, orders
};

// Where the parts go.
struct WeightPlacement {
  std::vector<MemoryPlace> places;  // by part; empty: all on device 0
  OffloadOptions offload;
  // Rows of an embedding on disk are read where they lie, and no pass copies
  // it. False: it comes and goes as other parts do, for who reads it whole.
  bool embedding_by_rows = true;
};

// The most that a load pins to read through: for the parts that stay on
// devices, which come together, and for each of the others.
struct WeightStaging {
  Bytes resident;
  std::vector<Bytes> parts;  // by part; 0 of those that are resident
};

// Where a pass finds a part.
struct PartResidence {
  DeviceId device;                // that it runs on
  OffloadStore* store = nullptr;  // null: it is on the device at all times
  size_t visit = 0;               // in the schedule of the store
};

// What the linears of the layers are rounded to as they are loaded, from F16,
// BF16 or F32: int8 with a scale for each output, or NF4 with one for each 64
// inputs, as bitsandbytes has them. Embedding, head and norms stay as they are.
enum class LoadQuantization : uint8_t { kNone, kInt8, kNf4 };
const char* LoadQuantizationName(LoadQuantization quantization);

struct WeightOptions {
  LoadQuantization quantization = LoadQuantization::kNone;
};

class SharedWeightsEntry;

// What it points to never changes after Load; whether it may be read does, with
// Drop and Reload. The device memory is freed with it: REQUIRES that no stream
// uses it any more. Not thread-safe; reading is.
class ModelWeights {
 public:
  // `runtime` must outlive the weights. Errors name the tensor that is missing,
  // has the wrong shape or holds wrong data.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(
      Runtime* runtime, const Checkpoint& checkpoint, const ModelConfig& config,
      const StreamingOptions& options, ThreadPool* pool,
      const WeightPlacement& placement = {},
      const WeightOptions& weight_options = {});
  // Allocates what Load would, in the same order, and loads nothing: to learn
  // what a model takes, on a device without memory. What it points to must not
  // be read. `runtime` must outlive it.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Reserve(
      Runtime* runtime, const Checkpoint& checkpoint, const ModelConfig& config,
      const StreamingOptions& options, const WeightPlacement& placement = {},
      const WeightOptions& weight_options = {});
  ~ModelWeights();

  // ---- Sleep without a copy ----
  // Gives back the pages of the devices, without saving what is in them: it is
  // in the checkpoint. Addresses stay; until a Reload has succeeded, resident()
  // is false and nothing may run. What the host or the disk keeps stays there.
  // Returns what was given back; nothing, where all is dropped already.
  //
  // REQUIRES: no stream uses the weights, and no other weights have the same
  // owner (Runtime::CreateView gives each model its own). Errors:
  // kFailedPrecondition where a QuiescentSection of a device is open, or where
  // an allocation is pinned; the driver's. After an error the weights are
  // whole, or, where resident() says so, dropped in part: the next Drop gives
  // back the rest. What is shared goes when the last of its users drops it.
  absl::StatusOr<Bytes> Drop();
  // Streams what was dropped back to the same addresses, from `checkpoint`,
  // which must be the one of Load, or one of the same files: a file that has
  // changed is kDataLoss. All or nothing: after an error, or where `options`
  // cancel it, the weights are dropped, as before. Where Load had checksums and
  // `options` want some, they must agree. Nothing is read where resident().
  absl::StatusOr<LoadReport> Reload(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const StreamingOptions& options,
                                    ThreadPool* pool);
  // Whether all of it is in place.
  bool resident() const { return resident_; }

  // Whether the checkpoint has every tensor that Load wants, of the right type
  // and shape; and what is odd all the same: the checkpoint's own warnings,
  // tensors that nothing reads, biases that the model has no need of. Allocates
  // nothing; what the weights hold is not looked at (weight_data.h).
  // `quantized`: those of the checkpoint, where they are known; null: they are
  // found here.
  static absl::StatusOr<std::vector<std::string>> Check(
      const Checkpoint& checkpoint, const ModelConfig& config,
      const QuantizedModules* quantized = nullptr);
  // The parts as a device map places them: the embedding, the layers, the last
  // norm, the head. Same errors; reads no weight.
  static absl::StatusOr<std::vector<PlacementBlock>> Blocks(
      const Checkpoint& checkpoint, const ModelConfig& config,
      const WeightOptions& weight_options = {});

  // Its data is null where rows of it are read from the disk.
  const DenseMatrix& embedding() const { return embedding_; }
  bool embedding_on_disk() const { return disk_rows_.store != nullptr; }
  // One row, as it is stored, of embedding_on_disk().
  absl::Status ReadEmbeddingRow(size_t row, std::span<std::byte> out) const;
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const ParameterVector& output_norm() const { return output_norm_; }
  const Linear& output() const { return output_; }
  const std::vector<float>& inverse_frequencies() const {
    return inverse_frequencies_;
  }

  // In the order of the model, as of Blocks. Sizes are of Reserve only.
  const std::vector<WeightPart>& parts() const { return parts_; }
  // By part, in the order of the model. Of Reserve only.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }
  // What Load would pin. Of Reserve only.
  const WeightStaging& staging() const { return staging_; }
  // By part. The parts that a store has must be acquired before they run.
  const std::vector<PartResidence>& residences() const { return residences_; }
  // Of all stores together.
  OffloadStatistics GetOffloadStatistics() const;
  // Of a device; null where all that runs there stays there.
  OffloadStore* store(DeviceId device) const;
  // Every store, for who ends a pass.
  std::vector<OffloadStore*> stores() const;
  const LoadReport& load_report() const { return load_report_; }
  // Oddities that stop nothing: mislabelled zero points, scales that are NaN,
  // unused tensors. A sentence for each kind. Of Reserve, those that names and
  // group indices tell.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Bytes of weights that one decoded token reads: every linear once.
  Bytes BytesPerToken() const;
  // The output head is the embedding.
  bool tied_head() const { return tied_head_; }
  // Of matrices, however they are stored; a tied head counts once.
  uint64_t Parameters() const;

 private:
  friend class SharedWeightsEntry;
  friend class WeightBuilder;
  // Of every layer, and the head.
  std::vector<const Linear*> Linears() const;
  explicit ModelWeights(Runtime* runtime) : runtime_(runtime) {}

  // In the order in which a WeightBuilder makes them.
  struct Allocation {
    DeviceId device;
    DeviceAddress address;
    Bytes size;
  };
  absl::StatusOr<Bytes> DropPages();
  absl::Status WakePages();
  absl::Status CheckSameFiles(const Checkpoint& checkpoint) const;
  absl::StatusOr<LoadReport> Refill(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const StreamingOptions& options,
                                    ThreadPool* pool);

  Runtime* const runtime_;
  // Of weights that are another's (shared_weights.h): what they point to.
  std::shared_ptr<SharedWeightsEntry> shared_;
  OwnerId owner_;
  bool resident_ = false;
  // Of what was loaded, to load it again.
  std::vector<CheckpointFile> files_;
  WeightOptions options_;
  std::vector<Allocation> allocations_;
  std::vector<std::unique_ptr<OffloadStore>> stores_;  // by device; or null
  std::vector<PartResidence> residences_;
  DenseMatrix embedding_;
  // Where its rows lie, if on disk.
  struct DiskRows {
    const OffloadStore* store = nullptr;
    size_t unit = 0;
    DeviceAddress first;
  };
  DiskRows disk_rows_;
  std::vector<DecoderLayer> layers_;
  ParameterVector output_norm_;
  Linear output_;
  bool tied_head_ = false;  // output_ is the embedding
  std::vector<float> inverse_frequencies_;
  std::vector<WeightPart> parts_;
  std::vector<WeightTensor> tensors_;
  WeightStaging staging_;
  LoadReport load_report_;
  std::vector<std::string> warnings_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_MODEL_WEIGHTS_H_
