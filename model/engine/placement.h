// From the options of a session to the place of every part of its model.

#ifndef QUIRE_MODEL_ENGINE_PLACEMENT_H_
#define QUIRE_MODEL_ENGINE_PLACEMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/session.h"

namespace quire {

// The devices that the options name: software devices are made as they are
// wanted, each with its limit.
absl::StatusOr<DeviceOptions> DevicesFor(const Checkpoint& checkpoint,
                                         const ModelConfig& config,
                                         const SessionOptions& options);

// What may be used of each device.
std::vector<Bytes> LimitsOf(const Runtime& runtime);

// The same before there is a runtime, for plans.
struct DeviceView {
  Bytes memory;  // of all together
  std::vector<Bytes> limits;
};
absl::StatusOr<DeviceView> LookAtDevices(DeviceOptions options);

struct PlacedWeights {
  WeightPlacement placement;
  // Why a policy left a device empty, in a sentence for each.
  std::vector<std::string> empty_devices;
};

// Where the parts go, for a device map of the options: of its policy or its
// file. A policy leaves room on each device for workspace, for the pages that
// weights are streamed through, and for one sequence of the longest length, as
// far as that is to be had. `limits` are those of the devices.
absl::StatusOr<PlacedWeights> PlaceWeights(const Checkpoint& checkpoint,
                                           const ModelConfig& config,
                                           const SessionOptions& options,
                                           const std::vector<Bytes>& limits);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_PLACEMENT_H_
