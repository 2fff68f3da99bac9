// Builds a ModelWeights from a checkpoint: finds and checks every tensor,
// allocates, streams, and finishes what needs the bytes.
//
// Three passes, so that everything that can be wrong with names and shapes is
// known before the first allocation:
//   1. Describe: each parameter of the model to its tensor, shapes checked.
//   2. Allocate and stream, what is quantised at load last and slice by slice.
//   3. Finish: GPTQ rows are sorted by group and zero points understood.
// The last two are made for all parts that stay on devices together, in the
// order of the files, and then for each part that is kept elsewhere.
// Reserve stops in the middle of the second pass, for who wants to know what a
// model takes: it allocates all the same, and loads nothing.

#ifndef QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_
#define QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/family.h"
#include "model/decoder/gptq_weights.h"
#include "model/decoder/weight_defects.h"
#include "quire/loader/quantization.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/model_weights.h"

namespace quire {

class WeightBuilder {
 public:
  // `runtime` is only needed by Build. `quantized`: the modules of the
  // checkpoint, where they are known; else they are found.
  WeightBuilder(Runtime* runtime, const Checkpoint& checkpoint,
                const ModelConfig& config, const WeightOptions& options,
                ModelWeights* weights,
                const QuantizedModules* quantized = nullptr);

  // All three passes.
  absl::Status Build(const WeightPlacement& placement,
                     const StreamingOptions& options, ThreadPool* pool);
  // Fills the memory of `dropped`, which the same checkpoint was built in, as
  // it was filled then: parts that stay on devices, under the same addresses.
  // The weights of this builder describe them, and own nothing.
  absl::Status Refill(const ModelWeights& dropped,
                      const StreamingOptions& options, ThreadPool* pool);
  // The first pass alone: nothing is allocated, no weight is read.
  absl::Status Describe();
  // Describes, and fills in the warnings: what is odd about names and biases.
  // Of the data, only biases that the model has no need of are read.
  absl::Status Check();
  // Describes, allocates what Build allocates, in the same order, and fills in
  // the parts of the weights.
  absl::Status Reserve(const WeightPlacement& placement,
                       const StreamingOptions& options);
  // After Describe.
  std::vector<PlacementBlock> Blocks() const;
  OwnerId owner() const { return owner_; }

 private:
  static constexpr size_t kResidentParts = SIZE_MAX;

  // A tensor to load, and what to do with its address.
  struct Placement {
    const TensorInfo* tensor;
    size_t part;
    std::function<void(DeviceAddress)> assign;
  };
  struct PendingGptq {
    const GptqModule* module;
    GptqMatrix* matrix;
    size_t part;
  };
  // One that the model has no need of.
  struct PendingBias {
    std::string module;
    const ParameterVector* bias;
    uint64_t size;
    size_t part;
  };
  struct PendingScaled {
    const ScaledModule* module;
    ScaledMatrix* matrix;
    size_t part;
  };
  // A linear that is quantised at load, and rows of it that are on the way:
  // slice is these rows as a tensor, `offset` their place in the landing.
  struct PendingAtLoad {
    const TensorInfo* tensor;
    ScaledMatrix* matrix;
    size_t part;
  };
  struct LandedRows {
    const PendingAtLoad* pending;
    TensorInfo slice;
    uint64_t first_row;
    uint64_t offset;
  };

  absl::Status ReadQuantization();
  absl::Status DescribeLayer(uint32_t index, DecoderLayer* layer);
  absl::Status DescribeEmbedding();
  absl::Status DescribeOutput();
  absl::Status DescribeVector(const std::string& module, uint64_t size,
                              ParameterVector* vector);
  // `needs_bias`: the model has one there. One that is there without need is
  // taken as well.
  absl::Status DescribeLinear(const std::string& module, uint64_t out_features,
                              uint64_t in_features, bool needs_bias,
                              Linear* linear);
  absl::Status DescribeDense(const TensorInfo& tensor, uint64_t out_features,
                             uint64_t in_features, DenseMatrix* matrix);
  absl::Status DescribeQuantized(GptqModule* module, uint64_t out_features,
                                 uint64_t in_features, Linear* linear);
  absl::Status DescribeQuantized(const ScaledModule* module,
                                 uint64_t out_features, uint64_t in_features,
                                 Linear* linear);
  absl::Status DescribeAtLoad(const TensorInfo& tensor, uint64_t out_features,
                              uint64_t in_features, Linear* linear);
  absl::Status RefuseAtLoad(const TensorInfo& tensor) const;
  absl::Status CheckShape(const TensorInfo& tensor,
                          const std::vector<uint64_t>& expected) const;
  absl::Status DescribeBias(const std::string& module, const TensorInfo* tensor,
                            uint64_t size, ParameterVector* bias);
  absl::StatusOr<const TensorInfo*> Require(const std::string& name);

  // What is described from here on belongs to another part of the model.
  void BeginPart(std::string name);
  void Place(const TensorInfo& tensor,
             std::function<void(DeviceAddress)> assign);
  // Settles on which device each part runs, and makes the stores for what is
  // kept elsewhere.
  absl::Status PlaceParts(const WeightPlacement& placement);
  absl::Status MakeStores(const OffloadOptions& options);
  // Whether parts on disk can be kept without a folder.
  absl::Status CheckDiskParts(const OffloadOptions& options);
  DeviceId ExecutionDevice(size_t part) const;
  bool IsResident(size_t part) const {
    return weights_->parts_[part].place.tier == MemoryTier::kDevice;
  }
  // Whether `part` is among those in hand: one that is kept elsewhere, or
  // kResidentParts.
  bool IsInHand(size_t part) const {
    return in_hand_ == kResidentParts ? IsResident(part) : in_hand_ == part;
  }
  // Whether rows of the embedding are read from the host or the disk, where it
  // is kept.
  bool ReadsRowsElsewhere() const;
  // The same, where it is never run from the device.
  bool IsOnlyReadByRows() const;
  // Where rows of an embedding that is kept elsewhere are read from.
  void ConnectEmbedding(const OffloadStore* store);
  // Takes the parts one after another in hand, and calls `make`: an embedding
  // whose rows are read elsewhere, before anything else needs the memory that
  // it comes through; then the resident ones.
  absl::Status ForEachInHand(const std::function<absl::Status()>& make);
  absl::Status BuildInHand(const StreamingOptions& options, ThreadPool* pool);
  absl::Status ReserveInHand(const StreamingOptions& options);
  // The bytes of a part, as they are kept.
  Bytes TensorBytes(size_t part) const;
  absl::StatusOr<std::vector<TensorPlacement>> AllocateTensors();
  // Calls `load` for each device with what goes there, as a ring belongs to
  // one.
  absl::Status ForEachDevice(
      std::span<const TensorPlacement> tensors,
      const std::function<absl::Status(
          DeviceId device, std::span<const TensorPlacement> here)>& load) const;
  absl::Status Stream(std::span<const TensorPlacement> tensors,
                      const StreamingOptions& options);
  // Of a tensor, or of the next slice of one.
  void AddChecksum(const TensorInfo& tensor, uint32_t crc32);
  // Counts what Stream would pin.
  absl::Status ReserveStaging(std::span<const TensorPlacement> tensors,
                              const StreamingOptions& options);
  // Keeps the part in hand where it is to be kept.
  absl::Status Keep(std::span<const TensorPlacement> tensors);
  // Once all parts are built, or reserved and not `loaded`.
  absl::Status ConnectParts(bool loaded);
  // `oddity`, where it is given, is set to what is odd in its group index.
  absl::StatusOr<GroupedRows> RowsOf(const GptqModule& module,
                                     GroupIndexOddity* oddity = nullptr) const;
  // For the part that is being built.
  absl::StatusOr<DeviceAddress> AllocateBytes(Bytes size);
  absl::StatusOr<DeviceAddress> AllocateAgain(Bytes size);
  absl::Status AllocationsDiffer() const;
  // Room in the part that is being built for an index that Build makes on the
  // way.
  absl::Status ReserveIndex(const TensorInfo& of,
                            const std::vector<uint32_t>& index);
  // Fills in what Reserve says of every tensor.
  void ListTensors();
  absl::Status AllocateAtLoad();
  // Of what is quantised at load and in hand.
  std::vector<const PendingAtLoad*> AtLoadInHand() const;
  absl::StatusOr<DeviceAddress> AllocateLanding(
      std::span<const PendingAtLoad* const> pending, Bytes* size);
  absl::Status FreeLanding(DeviceAddress landing);
  absl::Status ReserveLanding(const StreamingOptions& options);
  // Calls `load` with what lands at once: rows of `pending`, in order, as many
  // as fit.
  static absl::Status ForEachLanding(
      std::span<const PendingAtLoad* const> pending, Bytes landing_size,
      const std::function<absl::Status(std::span<const LandedRows>)>& load);
  // Where the rows land, in their order.
  static std::vector<TensorPlacement> PlacementsIn(
      DeviceAddress landing, std::span<const LandedRows> landed);
  absl::Status StreamAtLoad(const StreamingOptions& options, ThreadPool* pool);
  absl::Status LoadAndRound(DeviceAddress landing,
                            std::span<const LandedRows> landed,
                            const StreamingOptions& options, ThreadPool* pool);
  absl::Status Round(const LandedRows& part, const void* rows,
                     ThreadPool* pool);
  absl::Status FinishQuantized(ThreadPool* pool);
  void CheckBiases();
  void CheckBias(const PendingBias& pending, const void* data);
  absl::Status FinishGptq(const PendingGptq& pending, ThreadPool* pool);
  absl::Status FinishScaled(const PendingScaled& pending, ThreadPool* pool);
  // Copies host integers to a device allocation of their own.
  absl::StatusOr<const uint32_t*> Upload(std::span<const uint32_t> values);
  absl::Status ReadRopeFactors();
  void ReportUnused();

  Runtime* const runtime_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const WeightOptions options_;
  ModelWeights* const weights_;
  const TensorNames& names_;
  OwnerId owner_;
  // Of Refill: allocations are those of these weights, in the same order.
  const ModelWeights* dropped_ = nullptr;
  size_t next_allocation_ = 0;

  const QuantizedModules* const known_quantized_;
  QuantizedModules quantized_;  // with the sizes that the model settles
  std::unordered_map<std::string,
                     std::variant<GptqModule*, const ScaledModule*>>
      module_by_name_;
  bool embedding_by_rows_ = true;  // of one on disk
  size_t in_hand_ = kResidentParts;
  size_t part_ = 0;            // that is being built
  std::vector<size_t> units_;  // by part, in its store
  Bytes streamed_;             // of all parts, so far
  std::vector<Placement> placements_;
  std::vector<PendingGptq> pending_gptq_;
  std::vector<PendingScaled> pending_scaled_;
  std::vector<PendingBias> pending_biases_;
  std::vector<PendingAtLoad> pending_at_load_;
  std::unordered_map<const TensorInfo*, Bytes> tables_;  // beside it
  WeightDefects defects_;
  std::unordered_set<const TensorInfo*> used_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_
