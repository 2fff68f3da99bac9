// Weights that several models of one process have in common.
//
// A checkpoint that is loaded a second time on the same devices, from the same
// files, takes no second copy: the weights are those of the first, which nobody
// writes to. The same is what has the same device, inode, size, time of change
// and header in every file, the same configuration, the same placement, and the
// same quantisation at load. A file that has changed since is another one.
//
//   SharedWeights shared(runtime.get());
//   options.runtime = runtime.get();
//   options.shared_weights = &shared;
//   options.owner = "chat";
//   auto chat = Session::Open(path, options);
//   options.owner = "draft";
//   auto draft = Session::Open(path, options);  // reads no weight
//
// The pages belong to no session but to an owner of their own,
// "shared/NAME-NUMBER", so that putting a session to sleep does not take them
// from the others. Each user may drop them for itself (ModelWeights::Drop):
// they go when nobody is left who has not, and the first Reload reads them
// again; that of the others costs nothing. They are freed with the last user.
//
// Thread-safe, for sessions on threads of their own: who comes while another
// one loads the same waits for it.

#ifndef QUIRE_MODEL_SHARED_WEIGHTS_H_
#define QUIRE_MODEL_SHARED_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"

namespace quire {

class SharedWeights {
 public:
  // `runtime` outlives it, and all weights of it.
  explicit SharedWeights(Runtime* runtime) : runtime_(runtime) {}
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  Runtime* runtime() const { return runtime_; }

  // As ModelWeights::Load; the load report of what was there already is empty.
  // Outlives this. Beyond its errors: kInvalidArgument where parts are placed
  // on the host or on disk, since these are run from pages of one model.
  absl::StatusOr<std::unique_ptr<ModelWeights>> Load(
      const Checkpoint& checkpoint, const ModelConfig& config,
      const StreamingOptions& options, ThreadPool* pool,
      const WeightPlacement& placement = {},
      const WeightOptions& weight_options = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // How many different weights there are now, in use or dropped.
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::shared_ptr<SharedWeightsEntry> FindOrMake(
      const Checkpoint& checkpoint, const WeightPlacement& placement,
      const WeightOptions& weight_options) ABSL_LOCKS_EXCLUDED(mutex_);

  Runtime* const runtime_;
  mutable Mutex mutex_;
  // By what tells checkpoints apart.
  std::map<std::string, std::weak_ptr<SharedWeightsEntry>> entries_
      ABSL_GUARDED_BY(mutex_);
  uint64_t made_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_MODEL_SHARED_WEIGHTS_H_
