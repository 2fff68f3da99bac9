#include "model/engine/cache_factory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/engine/kv_shape.h"
#include "model/engine/split_cache.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/block_table_cache.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/static_cache.h"

namespace quire {
namespace {

// `layers` of them are on the device, of all or of some.
absl::StatusOr<DeviceLayers> LayOut(const ModelConfig& config, DeviceId device,
                                    std::vector<uint32_t> layers,
                                    SessionOptions options) {
  const auto count = static_cast<uint32_t>(layers.size());
  // A device with fewer layers than a row has has them all in one.
  if (options.layers_per_row <= config.layers)
    options.layers_per_row = std::min(options.layers_per_row, count);
  KvShape shape = MakeKvShape(config, options);
  shape.layers = count;
  QUIRE_ASSIGN_OR_RETURN(const uint64_t longest,
                         LongestSequence(config, options));
  QUIRE_ASSIGN_OR_RETURN(LayersInRow row,
                         LayersPerRow(shape, options, longest));
  QUIRE_ASSIGN_OR_RETURN(KvLayout layout, KvLayout::Create(shape, row.layers));
  return DeviceLayers{device, std::move(layers), std::move(layout),
                      std::move(row.why)};
}

// The pages that may stay mapped behind sequences that have ended.
PageCount MaxParked(const DeviceMemory& memory, const SessionOptions& options) {
  const double part =
      options.max_parked.value_or(options.PageAhead() > 0 ? 0 : 1);
  if (part == 1) return kAllParked;
  const Bytes free = memory.GetStatistics().growable;
  return PageCount(static_cast<uint64_t>(
      part * static_cast<double>(free.value() / memory.page_size().value())));
}

absl::StatusOr<std::unique_ptr<SequenceCache>> CreatePart(
    Runtime* runtime, const ModelConfig& config, const DeviceLayers& part,
    StreamId stream, const SessionOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t max_sequence_length,
                         LongestSequence(config, options));
  const OwnerId owner = runtime->RegisterOwner("kv");
  DeviceMemory* const memory = runtime->memory(part.device);
  switch (options.kv_cache) {
    case KvCacheKind::kPaged:
      return BlockTableCache::Create(
          memory, part.layout,
          {.max_sequence_length = max_sequence_length,
           .max_sequences = options.max_sequences,
           .owner = owner,
           .block_tokens = options.block_size,
           .limit = options.kv_limit,
           .stream = stream});
    case KvCacheKind::kStatic:
      return StaticCache::Create(memory, part.layout,
                                 {.max_sequence_length = max_sequence_length,
                                  .max_sequences = options.max_sequences,
                                  .owner = owner,
                                  .limit = options.kv_limit,
                                  .stream = stream});
    case KvCacheKind::kContiguous: {
      const PageCount max_parked = MaxParked(*memory, options);
      return KvCache::Create(
          memory, part.layout,
          {.max_sequence_length = max_sequence_length,
           .max_sequences = options.max_sequences,
           .owner = owner,
           .page_ahead = {.max_steps = options.PageAhead(), .clock = nullptr},
           .limit = options.kv_limit,
           .eager_reclaim = max_parked.zero(),
           .max_parked = max_parked,
           .stream = stream,
           .swap_space = options.swap_space});
    }
  }
  return absl::InvalidArgumentError("no such kind of KV cache");
}

}  // namespace

std::vector<DeviceId> LayerDevices(const ModelConfig& config,
                                   const ModelWeights& weights) {
  std::vector<DeviceId> devices;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    // The embedding is the part before the layers.
    devices.push_back(weights.residences()[layer + 1].device);
  return devices;
}

absl::StatusOr<std::vector<DeviceLayers>> LayersByDevice(
    const ModelConfig& config, const SessionOptions& options,
    std::span<const DeviceId> devices) {
  std::vector<std::pair<DeviceId, std::vector<uint32_t>>> found;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    auto at = std::find_if(found.begin(), found.end(), [&](const auto& one) {
      return one.first == devices[layer];
    });
    if (at == found.end()) {
      found.push_back({devices[layer], {}});
      at = found.end() - 1;
    }
    at->second.push_back(layer);
  }
  std::vector<DeviceLayers> parts;
  for (auto& [device, layers] : found) {
    QUIRE_ASSIGN_OR_RETURN(DeviceLayers part,
                           LayOut(config, device, std::move(layers), options));
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<SequenceCache>> CreateCache(
    Runtime* runtime, const ModelConfig& config,
    const std::vector<DeviceLayers>& devices, const Decoder& decoder,
    const SessionOptions& options) {
  std::vector<std::unique_ptr<SequenceCache>> parts;
  std::vector<SplitLayer> layers(config.layers);
  for (const DeviceLayers& part : devices) {
    // Each device's rows have their share of the swap space.
    SessionOptions of_part = options;
    of_part.swap_space =
        Bytes(options.swap_space.value() / config.layers * part.layers.size());
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache,
                           CreatePart(runtime, config, part,
                                      decoder.stream(part.device), of_part));
    for (size_t i = 0; i < part.layers.size(); ++i)
      layers[part.layers[i]] = {parts.size(), static_cast<uint32_t>(i)};
    parts.push_back(std::move(cache));
  }
  if (parts.size() == 1) return std::move(parts.front());
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(config, options));
  return std::make_unique<SplitCache>(layout, std::move(layers),
                                      std::move(parts));
}

}  // namespace quire
