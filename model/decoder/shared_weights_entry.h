// One set of weights of a SharedWeights, and who uses it.
//
// The entry owns the memory; its users are ModelWeights that point to it and
// own nothing. A user is in or out: it comes in with Join, and leaves with
// Leave, which the last one in pays for with the pages.
//
// Locking: mutex_ guards the count and the mark that somebody loads or drops;
// neither is done under it. Who wants to come or go meanwhile waits.

#ifndef QUIRE_MODEL_DECODER_SHARED_WEIGHTS_ENTRY_H_
#define QUIRE_MODEL_DECODER_SHARED_WEIGHTS_ENTRY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/runtime.h"
#include "quire/model/model_weights.h"

namespace quire {

// What it takes to fill weights.
struct WeightSource {
  const Checkpoint& checkpoint;
  const ModelConfig& config;
  const StreamingOptions& options;
  ThreadPool* pool;
};

class SharedWeightsEntry {
 public:
  SharedWeightsEntry(Runtime* runtime, const std::string& owner,
                     const WeightPlacement& placement,
                     const WeightOptions& options);

  // A new user, in. `entry` is this.
  absl::StatusOr<std::unique_ptr<ModelWeights>> MakeUser(
      const std::shared_ptr<SharedWeightsEntry>& entry,
      const WeightSource& source);
  // `user` is in afterwards, with weights that are in place: loaded by this
  // call where nobody was in. kCancelled where the options say so while another
  // one loads.
  absl::StatusOr<LoadReport> Join(ModelWeights* user,
                                  const WeightSource& source)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `user` is out afterwards, and the pages with the last one: as
  // ModelWeights::Drop, whose errors leave it in where nothing was dropped. One
  // that is out stays so. `for_good`: it is out whatever fails, and the pages
  // stay for those that come, or until the end.
  absl::StatusOr<Bytes> Leave(ModelWeights* user, bool for_good = false)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Of who has set busy_.
  absl::StatusOr<LoadReport> Fill(const WeightSource& source);

  const std::unique_ptr<Runtime> view_;  // destroyed after the weights
  const WeightPlacement placement_;
  const WeightOptions options_;
  Mutex mutex_;
  CondVar idle_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  size_t users_ ABSL_GUARDED_BY(mutex_) = 0;  // that are in
  // Changed by who has set busy_; read by users that are in.
  std::unique_ptr<ModelWeights> weights_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_SHARED_WEIGHTS_ENTRY_H_
