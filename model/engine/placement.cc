#include "model/engine/placement.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
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
  return options.device_map.empty() ? PlacementPolicy::kBalanced
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

// Pages that one sequence of the longest length takes of each device.
absl::StatusOr<std::vector<Bytes>> LongestSequenceBytes(
    const ModelConfig& config, const SessionOptions& options,
    const Reservation& reservation) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t tokens,
                         LongestSequence(config, options));
  std::vector<Bytes> bytes(reservation.devices.size());
  for (const DeviceLayers& layers : reservation.layers) {
    const auto pages =
        layers.layout.PagesForTokens(tokens, options.device.page_size);
    bytes[static_cast<size_t>(layers.device.value())] =
        pages ? CheckedBytes(*pages, options.device.page_size)
                    .value_or(Bytes(UINT64_MAX))
              : Bytes(UINT64_MAX);
  }
  return bytes;
}

// Lowers the limits of devices that would need more than they have; whether
// there was one.
bool Tighten(const std::vector<Bytes>& devices, const DeviceMap& map,
             std::span<const PlacementBlock> blocks,
             const Reservation& reservation,
             const std::vector<Bytes>& sequences,
             std::vector<MemoryLimit>* limits) {
  bool tightened = false;
  for (MemoryLimit& limit : *limits) {
    if (limit.place.tier != MemoryTier::kDevice) continue;
    const auto device = static_cast<size_t>(limit.place.device.value());
    const Bytes needed =
        SaturatingAdd(reservation.devices[device].fixed, sequences[device]);
    const Bytes excess = SaturatingSubtract(needed, devices[device]);
    if (excess.zero() || limit.limit.zero()) continue;
    const Bytes placed = map.BytesOn(limit.place, blocks);
    limit.limit = SaturatingSubtract(std::min(limit.limit, placed), excess);
    tightened = true;
  }
  return tightened;
}

// A policy's map, and what it could give each place of weights.
struct PolicyMap {
  DeviceMap map;
  std::vector<MemoryLimit> limits;
};

// Where no policy has a place for every part: what all of them lack, beside the
// one that was the first without a place.
absl::Status WithSumOfParts(const absl::Status& status,
                            std::span<const PlacementBlock> blocks,
                            const std::vector<MemoryLimit>& limits) {
  if (!absl::IsResourceExhausted(status)) return status;
  Bytes parts;
  Bytes room;
  for (const PlacementBlock& block : blocks)
    parts = SaturatingAdd(parts, block.size);
  for (const MemoryLimit& limit : limits)
    room = SaturatingAdd(room, limit.limit);
  if (parts <= room) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; all parts take ", FormatBytes(parts),
      ", and all places hold ", FormatBytes(room), ": ",
      FormatBytes(SaturatingSubtract(parts, room)), " are missing in all"));
}

absl::StatusOr<PolicyMap> PlanWithinDevices(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const SessionOptions& options, const std::vector<Bytes>& devices,
    std::span<const PlacementBlock> blocks, PlacementRules rules) {
  absl::StatusOr<DeviceMap> first_map = PlanDeviceMap(blocks, rules);
  if (!first_map.ok())
    return WithSumOfParts(first_map.status(), blocks, rules.limits);
  const PolicyMap first{*std::move(first_map), rules.limits};
  DeviceMap map = first.map;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    QUIRE_ASSIGN_OR_RETURN(
        const Reservation reservation,
        ReserveModel(checkpoint, config, options, {map.places, {}},
                     static_cast<int>(devices.size())));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> sequences,
                           LongestSequenceBytes(config, options, reservation));
    if (!Tighten(devices, map, blocks, reservation, sequences, &rules.limits))
      break;
    absl::StatusOr<DeviceMap> tighter = PlanDeviceMap(blocks, rules);
    // Nowhere else has room: the first map is as good as any, and who uses it
    // learns what does not fit.
    if (!tighter.ok()) return first;
    map = *std::move(tighter);
  }
  return PolicyMap{std::move(map), std::move(rules.limits)};
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
                               const PolicyMap& policy) {
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
    const PolicyMap& policy) {
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
  PlacedWeights result{{{}, placement.offload}, {}};
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
  QUIRE_ASSIGN_OR_RETURN(PolicyMap chosen,
                         PlanWithinDevices(checkpoint, config, options, limits,
                                           blocks, std::move(rules)));
  result.empty_devices = ExplainEmptyDevices(limits, blocks, chosen);
  result.placement.places = std::move(chosen.map.places);
  return result;
}

}  // namespace quire
