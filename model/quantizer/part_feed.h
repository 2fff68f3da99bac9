// Brings the parts of a model to the device in the order in which they run,
// once, wherever they are kept: the next part is on its way while one is used.

#ifndef QUIRE_MODEL_QUANTIZER_PART_FEED_H_
#define QUIRE_MODEL_QUANTIZER_PART_FEED_H_

#include <cstddef>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/model/model_weights.h"

namespace quire {

class PartFeed {
 public:
  // Both must outlive the feed, and nothing else runs the weights meanwhile.
  PartFeed(Runtime* runtime, const ModelWeights* weights);
  ~PartFeed();
  PartFeed(const PartFeed&) = delete;
  PartFeed& operator=(const PartFeed&) = delete;

  // The pointers of the part may be read until it is released. REQUIRES: parts
  // come in order, each released before the next one. Errors: those of reading
  // it.
  absl::Status Acquire(size_t part);
  absl::Status Release(size_t part);

 private:
  absl::StatusOr<StreamId> StreamOf(DeviceId device);

  Driver* const driver_;
  const ModelWeights& weights_;
  std::map<DeviceId, StreamId> streams_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_PART_FEED_H_
