// LoRA adapters in PEFT's format, by their index only: which modules of a base
// model an adapter changes, and with which tensors. No weight is read.
//
// Format (PEFT's tuners/lora/config.py, utils/save_and_load.py): a folder with
// adapter_config.json and adapter_model.safetensors, whose tensors are, for a
// linear of K inputs and N outputs and a rank r,
//   base_model.model.<module>.lora_A.weight      [r, K]
//   base_model.model.<module>.lora_B.weight      [N, r]
//   base_model.model.<module>.lora_B.bias        [N], with lora_bias
//   base_model.model.<module>.lora_embedding_A   [r, V], of an embedding
//   base_model.model.<module>.lora_embedding_B   [N, r]
//   base_model.model.<module>.base_layer.weight, .bias    in place of the
//   base's base_model.model.<module>.weight, .bias (modules_to_save, bias)
// and the module gives y = W x + scale * (B (A x) + bias), with scale alpha /
// r, or alpha / sqrt(r) with use_rslora.
//
// An adapter that is only partly understood would silently give other tokens.
// So what this does not support is refused by name, and every tensor has a
// place or is an error.

#ifndef QUIRE_LOADER_LORA_H_
#define QUIRE_LOADER_LORA_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"

namespace quire {

class LoraConfig;

// What an adapter does to one module of the base model. The tensors belong to
// the adapter's checkpoint; null: absent.
struct LoraModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  // The product: both or none.
  const TensorInfo* a = nullptr;       // [rank, inputs]
  const TensorInfo* b = nullptr;       // [outputs, rank]
  const TensorInfo* b_bias = nullptr;  // [outputs]
  bool embedding = false;              // lora_embedding_A, lora_embedding_B
  uint64_t rank = 0;
  float scale = 0;
  // In place of the base's own.
  const TensorInfo* weight = nullptr;
  const TensorInfo* bias = nullptr;
  // `weight` is a copy for this module alone (modules_to_save), not for a
  // module that is tied to it as well.
  bool copied = false;

  // Any of its tensors, for messages.
  const TensorInfo& tensor() const;
};

// The modules of a base model that can have a product; "all-linear" means the
// first kind.
enum class LoraTarget : uint8_t { kLinear, kOutputHead, kEmbedding };

class LoraAdapter {
 public:
  // `folder` has the two files. Errors name the file and the field or tensor.
  static absl::StatusOr<std::unique_ptr<LoraAdapter>> Open(
      const std::string& folder);
  ~LoraAdapter();

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // In the order of names.
  const std::vector<LoraModule>& modules() const { return modules_; }
  // Null where the adapter leaves the module alone.
  const LoraModule* Find(std::string_view module) const;
  // Whether the module of the base model has a product where, and only where,
  // the configuration says so.
  absl::Status CheckTarget(std::string_view module, LoraTarget target) const;
  // Modules that are tied in the base model must stay so (ensure_weight_tying).
  bool ties_weights() const;
  const std::vector<std::string>& warnings() const { return warnings_; }

  // `<file>: tensor "<name>" <problem>`.
  absl::Status Error(const TensorInfo& tensor, std::string_view problem) const;

 private:
  LoraAdapter();

  using Modules = std::map<std::string, LoraModule, std::less<>>;

  absl::Status ReadTensors();
  absl::Status AddTensor(const TensorInfo& tensor, Modules* modules) const;
  absl::Status CheckModule(LoraModule* module) const;
  absl::Status CheckSavedModules() const;

  std::unique_ptr<LoraConfig> config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<LoraModule> modules_;
  std::vector<std::string> warnings_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_LORA_H_
