#include "model/engine/placement.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/engine/placement_fill.h"
#include "model/engine/reservation.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/process_memory.h"

namespace quire {
namespace {

// More devices than a machine has: a map is checked against those that there
// are when it is used.
constexpr int kAnyDevice = 1024;
// Each attempt makes budgets smaller by what was too much; a few suffice.
constexpr int kMaxAttempts = 12;

int DevicesIn(const std::vector<MemoryPlace>& places) {
  int count = 1;
  for (const MemoryPlace& place : places) {
    if (place.tier == MemoryTier::kDevice)
      count = std::max(count, place.device.value() + 1);
  }
  return count;
}

// "auto" where only limits are given; nullopt for a file.
std::optional<PlacementPolicy> PolicyOf(const PlacementOptions& options) {
  return options.device_map.empty() ? PlacementPolicy::kAuto
                                    : ParsePlacementPolicy(options.device_map);
}

// What each place may hold of weights, before what else devices need.
absl::StatusOr<std::vector<MemoryLimit>> PlaceLimits(
    const SessionOptions& options, const std::vector<Bytes>& devices) {
  std::vector<MemoryLimit> limits = options.placement.max_memory;
  if (limits.empty()) {
    for (size_t i = 0; i < devices.size(); ++i)
      limits.push_back({DevicePlace(static_cast<int32_t>(i)), devices[i]});
    QUIRE_ASSIGN_OR_RETURN(const Bytes available, ReadAvailableMemory());
    limits.push_back({kHostPlace, available});
    return limits;
  }
  for (MemoryLimit& limit : limits) {
    if (limit.place.tier != MemoryTier::kDevice) continue;
    const auto device = static_cast<size_t>(limit.place.device.value());
    if (device >= devices.size())
      return absl::InvalidArgumentError(
          absl::StrCat("max memory of device ", device, ": there are ",
                       devices.size(), " devices"));
    limit.limit = std::min(limit.limit, devices[device]);
  }
  return limits;
}

// What each device needs for a map: pages under weights, workspace, slots and
// adapters, and one sequence of the longest length; or the most during the
// load, where that is more.
absl::StatusOr<std::vector<Bytes>> NeededBytes(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const SessionOptions& options, int device_count,
    const std::vector<MemoryPlace>& places) {
  WeightPlacement placement{places, options.placement.offload,
                            options.placement.embedding_by_rows};
  // What the disk cannot keep without a folder is said of the map that is
  // chosen, not of those on the way.
  if (placement.offload.folder.empty()) placement.offload.folder.assign(1, '.');
  QUIRE_ASSIGN_OR_RETURN(
      const Reservation reservation,
      ReserveModel(checkpoint, config, options, placement, device_count));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t tokens,
                         LongestSequence(config, options));
  std::vector<Bytes> needed;
  std::vector<Bytes> sequences(reservation.devices.size());
  for (const DeviceLayers& layers : reservation.layers) {
    const auto pages =
        layers.layout.PagesForTokens(tokens, options.device.page_size);
    sequences[static_cast<size_t>(layers.device.value())] =
        pages ? CheckedBytes(*pages, options.device.page_size)
                    .value_or(Bytes(UINT64_MAX))
              : Bytes(UINT64_MAX);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DeviceReservation& device = reservation.devices[i];
    needed.push_back(
        std::max(device.peak, SaturatingAdd(device.fixed, sequences[i])));
  }
  return needed;
}

// Lowers the limits of devices that would need more than they have; whether
// there was one.
bool Tighten(const std::vector<Bytes>& devices, const DeviceMap& map,
             std::span<const PlacementBlock> blocks,
             const std::vector<Bytes>& needed,
             std::vector<MemoryLimit>* limits) {
  bool tightened = false;
  for (MemoryLimit& limit : *limits) {
    if (limit.place.tier != MemoryTier::kDevice) continue;
    const auto device = static_cast<size_t>(limit.place.device.value());
    const Bytes excess = SaturatingSubtract(needed[device], devices[device]);
    if (excess.zero() || limit.limit.zero()) continue;
    const Bytes placed = map.BytesOn(limit.place, blocks);
    limit.limit = SaturatingSubtract(std::min(limit.limit, placed), excess);
    tightened = true;
  }
  return tightened;
}

// Where no policy has a place for every part: what all of them lack, beside the
// one that was the first without a place.
absl::Status WithSumOfParts(const absl::Status& status,
                            std::span<const PlacementBlock> blocks,
                            const std::vector<MemoryLimit>& limits) {
  if (!absl::IsResourceExhausted(status)) return status;
  const Bytes parts = TotalSize(blocks);
  const Bytes room = TotalRoom(limits);
  if (parts <= room) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; all parts take ", FormatBytes(parts),
      ", and all places hold ", FormatBytes(room), ": ",
      FormatBytes(SaturatingSubtract(parts, room)), " are missing in all"));
}

// The policy's map of devices alone, where they hold all parts beside all else
// that they need.
absl::StatusOr<std::optional<FilledPlaces>> PlanOnDevices(
    const std::vector<Bytes>& devices, std::span<const PlacementBlock> blocks,
    PlacementRules rules, const MeasureMap& measure) {
  std::erase_if(rules.limits, [](const MemoryLimit& limit) {
    return limit.place.tier != MemoryTier::kDevice;
  });
  if (rules.limits.empty()) return std::nullopt;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    absl::StatusOr<DeviceMap> map = PlanDeviceMap(blocks, rules);
    if (absl::IsResourceExhausted(map.status())) return std::nullopt;
    QUIRE_RETURN_IF_ERROR(map.status());
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> needed,
                           measure(map->places));
    if (!Tighten(devices, *map, blocks, needed, &rules.limits))
      return FilledPlaces{*std::move(map), std::move(rules.limits)};
  }
  return std::nullopt;
}

absl::StatusOr<FilledPlaces> PlanWithinDevices(
    const std::vector<Bytes>& devices, std::span<const PlacementBlock> blocks,
    const PlacementRules& rules, const MeasureMap& measure) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<FilledPlaces> whole,
                         PlanOnDevices(devices, blocks, rules, measure));
  if (whole.has_value()) return *std::move(whole);
  QUIRE_ASSIGN_OR_RETURN(std::optional<FilledPlaces> filled,
                         FillPlaces(blocks, rules.limits,
                                    rules.policy == PlacementPolicy::kAuto
                                        ? FillOrder::kFewestCopies
                                        : FillOrder::kAsTheyRun,
                                    measure));
  if (filled.has_value()) return *std::move(filled);
  // Any map is as good as another: who uses it learns what does not fit.
  absl::StatusOr<DeviceMap> map = PlanDeviceMap(blocks, rules);
  if (!map.ok()) return WithSumOfParts(map.status(), blocks, rules.limits);
  return FilledPlaces{*std::move(map), rules.limits};
}

absl::Status CheckLimits(const std::string& path, const DeviceMap& map,
                         std::span<const PlacementBlock> blocks,
                         const std::vector<MemoryLimit>& limits) {
  for (const MemoryLimit& limit : limits) {
    const Bytes placed = map.BytesOn(limit.place, blocks);
    if (placed > limit.limit)
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": places ", placed.value(), " bytes on ",
                       PlaceName(limit.place), ", ",
                       SaturatingSubtract(placed, limit.limit).value(),
                       " more than its limit of ", limit.limit.value()));
  }
  return absl::OkStatus();
}

std::string ExplainEmptyDevice(size_t device, Bytes memory, Bytes limit,
                               const FilledPlaces& policy) {
  const MemoryPlace place = DevicePlace(static_cast<int32_t>(device));
  const std::string begin = absl::StrCat("device ", device, " stays empty: ");
  const auto unused =
      std::find_if(policy.map.unused.begin(), policy.map.unused.end(),
                   [&](const auto& one) { return one.place == place; });
  if (unused == policy.map.unused.end())
    return absl::StrCat(begin, "the devices before it hold all parts");
  return absl::StrCat(
      begin, "the next part takes ", FormatBytes(unused->needed), ", and of ",
      FormatBytes(memory), " it has ", FormatBytes(limit), " for weights",
      limit < memory ? ", beside workspace and a sequence of the longest length"
                     : "");
}

// In a sentence for each, and one for neighbours that no limit names.
std::vector<std::string> ExplainEmptyDevices(
    const std::vector<Bytes>& memory, std::span<const PlacementBlock> blocks,
    const FilledPlaces& policy) {
  const auto limit_of = [&](size_t device) {
    const MemoryPlace place = DevicePlace(static_cast<int32_t>(device));
    return std::find_if(
        policy.limits.begin(), policy.limits.end(),
        [&](const MemoryLimit& limit) { return limit.place == place; });
  };
  std::vector<std::string> reasons;
  for (size_t device = 0; device < memory.size(); ++device) {
    if (const auto limit = limit_of(device); limit != policy.limits.end()) {
      if (policy.map.BytesOn(limit->place, blocks).zero())
        reasons.push_back(
            ExplainEmptyDevice(device, memory[device], limit->limit, policy));
      continue;
    }
    const size_t first = device;
    while (device + 1 < memory.size() &&
           limit_of(device + 1) == policy.limits.end())
      ++device;
    reasons.push_back(
        first == device
            ? absl::StrCat("device ", first,
                           " stays empty: no limit of memory names it")
            : absl::StrCat("devices ", first, " to ", device,
                           " stay empty: no limit of memory names them"));
  }
  return reasons;
}

}  // namespace

std::vector<Bytes> LimitsOf(const Runtime& runtime) {
  std::vector<Bytes> limits;
  for (int i = 0; i < runtime.device_count(); ++i)
    limits.push_back(runtime.memory(DeviceId(i))->GetStatistics().limit);
  return limits;
}

absl::StatusOr<DeviceView> LookAtDevices(DeviceOptions options) {
  options.backing = false;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options));
  DeviceView view;
  for (int i = 0; i < runtime->device_count(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory,
                           runtime->driver()->GetMemoryInfo(DeviceId(i)));
    view.memory = SaturatingAdd(view.memory, memory.total);
  }
  view.limits = LimitsOf(*runtime);
  return view;
}

absl::StatusOr<DeviceOptions> DevicesFor(const Checkpoint& checkpoint,
                                         const ModelConfig& config,
                                         const SessionOptions& options) {
  DeviceOptions devices = options.device;
  const PlacementOptions& placement = options.placement;
  if (!placement.in_use()) return devices;
  std::vector<MemoryPlace> named;
  for (const MemoryLimit& limit : placement.max_memory) {
    named.push_back(limit.place);
    if (limit.place.tier != MemoryTier::kDevice) continue;
    const auto device = static_cast<size_t>(limit.place.device.value());
    if (devices.limits.size() <= device)
      devices.limits.resize(device + 1, Bytes(UINT64_MAX));
    devices.limits[device] = limit.limit;
  }
  if (!PolicyOf(placement).has_value()) {
    QUIRE_ASSIGN_OR_RETURN(
        const std::vector<PlacementBlock> blocks,
        ModelWeights::Blocks(checkpoint, config, options.weights));
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceMap map,
        ReadDeviceMap(placement.device_map, blocks, kAnyDevice));
    named.insert(named.end(), map.places.begin(), map.places.end());
  }
  devices.device_count = std::max(devices.device_count, DevicesIn(named));
  return devices;
}

absl::StatusOr<PlacedWeights> PlaceWeights(const Checkpoint& checkpoint,
                                           const ModelConfig& config,
                                           const SessionOptions& options,
                                           const std::vector<Bytes>& limits) {
  const PlacementOptions& placement = options.placement;
  PlacedWeights result{{{}, placement.offload, placement.embedding_by_rows},
                       {}};
  if (!placement.in_use()) return result;
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<PlacementBlock> blocks,
      ModelWeights::Blocks(checkpoint, config, options.weights));
  const std::optional<PlacementPolicy> policy = PolicyOf(placement);
  if (!policy.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(DeviceMap map,
                           ReadDeviceMap(placement.device_map, blocks,
                                         static_cast<int>(limits.size())));
    QUIRE_RETURN_IF_ERROR(
        CheckLimits(placement.device_map, map, blocks, placement.max_memory));
    result.placement.places = std::move(map.places);
    return result;
  }
  // What the host keeps is not run there, so nothing of it is held free.
  PlacementRules rules{.policy = *policy, .limits = {}, .host_buffers = false};
  QUIRE_ASSIGN_OR_RETURN(rules.limits, PlaceLimits(options, limits));
  const MeasureMap measure = [&](const std::vector<MemoryPlace>& places) {
    return NeededBytes(checkpoint, config, options,
                       static_cast<int>(limits.size()), places);
  };
  QUIRE_ASSIGN_OR_RETURN(FilledPlaces chosen,
                         PlanWithinDevices(limits, blocks, rules, measure));
  result.empty_devices = ExplainEmptyDevices(limits, blocks, chosen);
  result.placement.places = std::move(chosen.map.places);
  return result;
}

}  // namespace quire
