// LoRA adapters that are resident beside a model's weights, and which of them a
// sequence is decoded with.
//
// Any number of adapters of one model are resident at once, each an owner of
// device memory by itself ("adapters/<name>", below the runtime's owner where it
// has one). Sequences of one batch may use different ones, or none: the base's
// products are computed over all rows together, each adapter's over its own
// rows. So a sequence gets bit for bit what it gets alone (ops.h).
//
//   QUIRE_ASSIGN_OR_RETURN(const AdapterId poet,
//                          session->adapters().Load("poet", "adapters/poet"));
//   request.adapter = poet;
//   ...
//   QUIRE_RETURN_IF_ERROR(session->adapters().Unload(poet));
//
// Cost per token of a module: rank * (inputs + outputs) multiplications beside
// the base's inputs * outputs. Device memory: the adapter's tensors as they are
// stored, and (rank + 256) floats for each token of a batch.

#ifndef QUIRE_MODEL_ADAPTERS_H_
#define QUIRE_MODEL_ADAPTERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/units.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/model_config.h"

namespace quire {

// Of one load: an id never comes back, also where the same adapter does.
using AdapterId = Id<struct AdapterIdTag, uint64_t>;  // 0: none, the base model

// What the forward pass reads. Immutable; whoever holds it keeps its memory.
class Adapter;
using AdapterRef = std::shared_ptr<const Adapter>;

struct AdapterInfo {
  AdapterId id;
  std::string name;
  std::string folder;
  Bytes bytes;           // of device memory
  uint64_t modules = 0;  // of the base model that it changes
  uint64_t rank = 0;     // the largest
  bool in_use = false;
  std::vector<std::string> warnings;  // oddities that change nothing
};

// Not thread-safe: between the steps of the engine that uses it.
class AdapterSet {
 public:
  // `runtime` must outlive the set, and adapters that are still in use then.
  // `tied_head`: of the model's weights. Batches have at most
  // `max_batch_tokens` tokens (DecoderOptions).
  AdapterSet(Runtime* runtime, const ModelConfig& config, bool tied_head,
             uint32_t max_batch_tokens);

  // Loads the adapter in `folder` (quire/loader/lora.h) under a name of its
  // own, without a slash. All or nothing. Errors: kAlreadyExists for a name
  // that is resident; kInvalidArgument that names the tensor, where the adapter
  // is not one of this model or does not do what its configuration says;
  // kUnimplemented for kinds of adapters that are not supported, by name;
  // kResourceExhausted where the device is full.
  absl::StatusOr<AdapterId> Load(const std::string& name,
                                 const std::string& folder,
                                 const StreamingOptions& streaming = {});
  // Allocates what Load would and reads no weight: to plan with, on a device
  // without memory. Nothing may be computed with it.
  absl::StatusOr<AdapterId> Reserve(const std::string& name,
                                    const std::string& folder);
  // Gives the memory back. kFailedPrecondition while a sequence uses it.
  absl::Status Unload(AdapterId id);

  // kNotFound where there is none.
  absl::StatusOr<AdapterId> Find(std::string_view name) const;
  // To compute with, and resident as long as the reference is held. Null for
  // the base model; kNotFound for an id that is not resident.
  absl::StatusOr<AdapterRef> Use(AdapterId id) const;
  // In the order of loading.
  std::vector<AdapterInfo> List() const;

 private:
  // Null streaming options: only reserved.
  absl::StatusOr<AdapterId> Add(const std::string& name,
                                const std::string& folder,
                                const StreamingOptions* streaming);
  static absl::Status NotResident(AdapterId id);

  Runtime* const runtime_;
  const ModelConfig config_;
  const bool tied_head_;
  const uint32_t max_batch_tokens_;
  uint64_t last_id_ = 0;
  std::map<AdapterId, AdapterRef> adapters_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_ADAPTERS_H_
