// What a session allocates before its first sequence, found out by allocating
// it: on software devices without memory, with the same code, in the same
// order. So it is exact, tails of pages included.

#ifndef QUIRE_MODEL_ENGINE_RESERVATION_H_
#define QUIRE_MODEL_ENGINE_RESERVATION_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/engine/cache_factory.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/adapters.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/session.h"

namespace quire {

struct DeviceReservation {
  Bytes workspace;  // asked for
  Bytes buffers;    // pages that weights kept elsewhere are run from
  // Pages under weights, workspace, buffers and adapters.
  Bytes fixed;
  Bytes peak;  // the most pages on the way
};

struct Reservation {
  std::unique_ptr<Runtime> runtime;  // destroyed after the weights
  std::unique_ptr<ModelWeights> weights;
  std::vector<DeviceReservation> devices;
  std::vector<AdapterInfo> adapters;
  // The rows of keys and values, by device.
  std::vector<DeviceLayers> layers;
};

// For `device_count` devices like that of the options, each large enough.
absl::StatusOr<Reservation> ReserveModel(const Checkpoint& checkpoint,
                                         const ModelConfig& config,
                                         const SessionOptions& options,
                                         const WeightPlacement& placement,
                                         int device_count);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_RESERVATION_H_
