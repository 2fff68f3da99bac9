// Makes the KV cache of a session: on the devices that layers run on.

#ifndef QUIRE_MODEL_ENGINE_CACHE_FACTORY_H_
#define QUIRE_MODEL_ENGINE_CACHE_FACTORY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/model/decoder.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/session.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

// The layers that run on one device, and the layout of their rows there.
struct DeviceLayers {
  DeviceId device;
  std::vector<uint32_t> layers;
  KvLayout layout;
  std::string why;  // it has so many layers to a row
};
// In the order in which the devices are first used. `devices` is that of each
// layer; with one device, its layout is that of MakeKvLayout.
absl::StatusOr<std::vector<DeviceLayers>> LayersByDevice(
    const ModelConfig& config, const SessionOptions& options,
    std::span<const DeviceId> devices);
// Of loaded or reserved weights.
std::vector<DeviceId> LayerDevices(const ModelConfig& config,
                                   const ModelWeights& weights);

// `devices` are LayersByDevice of the same configuration and options.
absl::StatusOr<std::unique_ptr<SequenceCache>> CreateCache(
    Runtime* runtime, const ModelConfig& config,
    const std::vector<DeviceLayers>& devices, const Decoder& decoder,
    const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_CACHE_FACTORY_H_
