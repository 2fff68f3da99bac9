// What a model takes on its devices, and what is left for sequences, before a
// weight is read.
//
// Not an estimate: the plan makes every allocation that a session would make,
// in the same order, with the same allocator, on software devices without
// memory, and looks what is mapped. So it agrees with a session by
// construction, tails of pages included.

#ifndef QUIRE_MODEL_PLAN_H_
#define QUIRE_MODEL_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/kv_plan.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/session.h"
#include "quire/paging/kv_layout_choice.h"

namespace quire {

// One device of a plan.
struct DevicePlan {
  Bytes usable;     // in whole pages
  Bytes weights;    // of the parts that stay there
  Bytes workspace;  // asked for
  Bytes buffers;    // pages that weights kept elsewhere are run from
  // Pages under all three.
  Bytes fixed;
  Bytes peak;  // the most pages during the load: fixed, or more
  // The same while one sequence of the longest length runs, too.
  Bytes running_peak;
  uint32_t layers = 0;  // that run there
  Bytes kv_token;       // of these layers
  Bytes kv;             // what is left for keys and values
};

// What another placement would allow, where the one that was asked for does
// not fit.
struct PlannedAlternative {
  std::string description;  // "2 devices", "layers on the host"
  std::vector<MemoryPlace> places;
  bool fits = false;
  Bytes host;
  Bytes disk;
  // Of the weights on disk some do not run as they are in the checkpoint.
  bool needs_folder = false;
  // As --max-memory has them; empty where the policy looks for itself.
  std::vector<MemoryLimit> max_memory;
  uint64_t longest_sequence = 0;
};

// Where there are several devices, sizes without more said are of all together.
struct ModelPlan {
  Bytes device_memory;
  Bytes usable;  // in whole pages: what Quire may take of it
  Bytes page_size;

  std::vector<WeightPart> parts;
  std::vector<WeightTensor> tensors;  // of all parts
  Bytes weights;                      // the sum of the parts, wherever they are
  Bytes workspace;
  std::vector<WeightPart> adapters;
  // Pages under the weights on devices, and under workspaces, buffers and
  // adapters.
  Bytes fixed;
  std::vector<DevicePlan> devices;
  Bytes host;          // of the weights, in host memory
  Bytes disk;          // of the weights, on disk
  Bytes staging_peak;  // pinned for the load, as LoadReport has it
  // Memory of the host at its worst, for weights: what it keeps of them, and
  // the buffers that they are read through.
  Bytes host_peak;
  uint64_t parameters = 0;
  // Parameters * bytes of each * 1.2, as people reckon: of the width that a
  // format is named for, 4 bits or 16, without scales and tables.
  Bytes rule_of_thumb;

  uint32_t layers_per_row = 0;    // of the KV layout
  Bytes kv_token;                 // of all layers
  std::vector<KvKindSize> kinds;  // of the layers, and what each keeps
  KvLayoutChoice layouts;         // that there are, and their waste
  uint64_t max_model_len = 0;
  Bytes kv;                       // what is left for keys and values
  uint64_t kv_tokens = 0;         // of kv / kv_token
  uint64_t longest_sequence = 0;  // alone; at most max_model_len
  // At powers of two up to max_model_len, and there.
  std::vector<KvLengthPlan> batches;

  // Whether the model runs: its weights, its workspace, the adapters, and one
  // sequence of max_model_len.
  bool fits = false;
  // What to change, where it does not; one sentence each.
  std::vector<std::string> advice;
  std::vector<PlannedAlternative> alternatives;
  std::vector<std::string> warnings;
};

// Errors are those of the checkpoint, of the configuration and of the options;
// that a model is too large is none. Where the options leave some part without
// a place, the plan does not fit, its first advice says so, and its parts are
// shown on device 0.
absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_MODEL_PLAN_H_
