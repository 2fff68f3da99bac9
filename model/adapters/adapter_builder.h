// Builds an Adapter: gives every tensor of a LoRA adapter its place in a model,
// allocates, streams, and finishes what needs the bytes.
//
// As with a model's weights (weight_builder.h), everything that can be wrong
// with names and shapes is known before the first allocation.

#ifndef QUIRE_MODEL_ADAPTERS_ADAPTER_BUILDER_H_
#define QUIRE_MODEL_ADAPTERS_ADAPTER_BUILDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/adapters/adapter.h"
#include "model/config/family.h"
#include "quire/loader/lora.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/model_config.h"

namespace quire {

class AdapterBuilder {
 public:
  // All must outlive the builder. `tied_head`: the model's output head is its
  // embedding.
  AdapterBuilder(const ModelConfig& config, bool tied_head,
                 const LoraAdapter& source, Adapter* adapter);

  // Null: allocates all the same, and loads nothing.
  absl::Status Build(const StreamingOptions* streaming);

 private:
  // A module of the base model: a linear or the embedding, else a vector.
  struct Slot {
    LinearAdapter* linear = nullptr;
    ParameterVector* vector = nullptr;
    // Of the weight; a vector has one column.
    uint64_t rows = 0;
    uint64_t columns = 0;
    LoraTarget target = LoraTarget::kLinear;
    bool rotary = false;  // its outputs are rotated
  };
  // A tensor to load, and what to do with its address.
  struct Placement {
    const TensorInfo* tensor;
    std::function<void(void*)> assign;
    bool rotary;  // its rows are those of a query or key
  };

  void AddSlots();
  void AddLinear(std::string name, LinearAdapter* linear, uint64_t rows,
                 uint64_t columns, bool rotary = false);
  void AddVector(std::string name, ParameterVector* vector, uint64_t size);

  absl::Status Describe();
  absl::Status DescribeModule(const LoraModule& module);
  absl::Status DescribeProduct(const LoraModule& module, const Slot& slot);
  absl::Status DescribeVector(const TensorInfo& tensor, uint64_t size,
                              bool rotary, ParameterVector* vector);
  absl::Status DescribeMatrix(const TensorInfo& tensor, uint64_t rows,
                              uint64_t columns, bool rotary,
                              std::vector<DenseMatrix*> matrices);
  absl::Status CheckTying() const;
  // The matrices that a module's own weight takes the place of.
  std::vector<DenseMatrix*> Replaced(const LoraModule& module,
                                     const Slot& slot) const;

  absl::Status Allocate(std::vector<TensorPlacement>* tensors);
  absl::Status Finish(const TensorPlacement& placed, bool rotary);
  // From Hugging Face's order to the model's.
  void PermuteRows(const TensorInfo& tensor, std::byte* data) const;
  absl::Status CheckFinite(const TensorInfo& tensor, const void* data) const;

  const ModelConfig& config_;
  const bool tied_head_;
  const LoraAdapter& source_;
  const TensorNames& names_;  // of the modules of source_
  Adapter* const adapter_;
  std::map<std::string, Slot, std::less<>> slots_;
  std::vector<Placement> placements_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_ADAPTERS_ADAPTER_BUILDER_H_
