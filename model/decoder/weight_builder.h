// Builds a ModelWeights from a checkpoint: finds and checks every tensor,
// allocates, streams, and finishes what needs the bytes.
//
// Three passes, so that everything that can be wrong with names and shapes is
// known before the first allocation:
//   1. Describe: each parameter of the model to its tensor, shapes checked.
//   2. Allocate and stream.
//   3. Finish: GPTQ rows are sorted by group and zero points understood.
// Reserve stops in the middle of the second pass, for who wants to know what a
// model takes: it allocates all the same, and loads nothing.

#ifndef QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_
#define QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/family.h"
#include "model/decoder/gptq_weights.h"
#include "quire/loader/gptq.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/model_weights.h"

namespace quire {

class WeightBuilder {
 public:
  // `runtime` is only needed by Build.
  WeightBuilder(Runtime* runtime, const Checkpoint& checkpoint,
                const ModelConfig& config, ModelWeights* weights);

  // All three passes.
  absl::Status Build(const StreamingOptions& options, ThreadPool* pool);
  // The first pass alone: nothing is allocated, no weight is read.
  absl::Status Describe();
  // Describes, allocates what Build allocates, in the same order, and fills in
  // the parts of the weights.
  absl::Status Reserve();

 private:
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
  absl::Status DescribeGptq(const GptqModule& module, uint64_t out_features,
                            uint64_t in_features, Linear* linear);
  absl::Status DescribeBias(const std::string& module, const TensorInfo* tensor,
                            uint64_t size, ParameterVector* bias);
  absl::StatusOr<const TensorInfo*> Require(const std::string& name);

  // What is described from here on belongs to another part of the model.
  void BeginPart(std::string name);
  void Place(const TensorInfo& tensor,
             std::function<void(DeviceAddress)> assign);
  absl::StatusOr<std::vector<TensorPlacement>> AllocateTensors();
  absl::Status Stream(std::span<const TensorPlacement> tensors,
                      const StreamingOptions& options);
  absl::StatusOr<GroupedRows> RowsOf(const GptqModule& module);
  absl::StatusOr<DeviceAddress> AllocateBytes(Bytes size);
  absl::Status FinishGptq(const PendingGptq& pending, ThreadPool* pool);
  // Copies host integers to a device allocation of their own.
  absl::StatusOr<const uint32_t*> Upload(std::span<const uint32_t> values);
  absl::Status ReadRopeFactors();
  void ReportUnused();

  Runtime* const runtime_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ModelWeights* const weights_;
  const TensorNames& names_;
  OwnerId owner_;

  std::vector<GptqModule> modules_;
  std::unordered_map<std::string, const GptqModule*> module_by_name_;
  bool zeros_are_v2_ = false;
  std::vector<Placement> placements_;
  std::vector<PendingGptq> pending_gptq_;
  std::unordered_set<const TensorInfo*> used_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_WEIGHT_BUILDER_H_
