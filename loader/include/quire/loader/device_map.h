// Which memory each part of a model goes to: devices, the host, the disk.
//
// A pure function of the sizes of the parts and of the memory that there is; it
// opens no file, except a map that the user wrote, and knows no device. The
// policies and their results are those of accelerate's infer_auto_device_map
// and get_balanced_memory (https://github.com/huggingface/accelerate), on
// models whose layers are not to be split; the tests compare with it.
//
// The parts, here "blocks", come in the order in which they run. They are
// placed one after another, each on the first place that has room for it, and
// no place is looked at again once a block did not fit on it. Blocks that share
// bytes ("tied") go together.

#ifndef QUIRE_LOADER_DEVICE_MAP_H_
#define QUIRE_LOADER_DEVICE_MAP_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

enum class MemoryTier : uint8_t { kDevice, kHost, kDisk };

// A device, the host or the disk, in this order.
struct MemoryPlace {
  MemoryTier tier = MemoryTier::kDevice;
  DeviceId device;  // of kDevice only

  friend auto operator<=>(const MemoryPlace&, const MemoryPlace&) = default;
};
inline constexpr MemoryPlace kHostPlace{MemoryTier::kHost, DeviceId(0)};
inline constexpr MemoryPlace kDiskPlace{MemoryTier::kDisk, DeviceId(0)};
constexpr MemoryPlace DevicePlace(int32_t device) {
  return {MemoryTier::kDevice, DeviceId(device)};
}
// "0", "cpu", "disk": accelerate's names. "cuda:0" is read as "0".
std::string PlaceName(const MemoryPlace& place);
std::optional<MemoryPlace> ParsePlace(std::string_view name);

struct MemoryLimit {
  MemoryPlace place;
  Bytes limit;
};
// "0:8GiB,1:8GiB,cpu:20GiB,disk:100GiB", in any order, each place once; the
// result is sorted by place. Errors quote the entry.
absl::StatusOr<std::vector<MemoryLimit>> ParseMaxMemory(std::string_view text);

// A part of a model that is not split.
struct PlacementBlock {
  std::string name;  // "model.layers.3": a prefix of its tensors' names
  Bytes size;        // of its own: what it shares counts where it is stored
  // A layer of the decoder: its inputs and outputs are few, and the layers are
  // the unit that runs from device memory although it is kept elsewhere.
  bool layer = false;
  // Modules with parameters of their own in it; linears and norms.
  uint32_t modules = 1;
  // The earlier block whose bytes this one uses as well.
  std::optional<size_t> tied_to = std::nullopt;
};

enum class PlacementPolicy : uint8_t {
  // kBalanced, for who leaves it to the planner: where the devices do not hold
  // all parts, it is free to choose which of them go elsewhere.
  kAuto,
  // Even use of all devices: each but the last gets its share and a quarter
  // more than a layer.
  kBalanced,
  // The same, with as little as possible on device 0, which does other work.
  kBalancedLow0,
  // Fills one place after another.
  kSequential,
};
// "auto", "balanced", "balanced_low_0", "sequential".
std::optional<PlacementPolicy> ParsePlacementPolicy(std::string_view name);

struct PlacementRules {
  PlacementPolicy policy = PlacementPolicy::kBalanced;
  // Sorted by place. Places that are not named are not used.
  std::vector<MemoryLimit> limits;
  // So many of the largest blocks that may still come have room on the first
  // device, beside what is placed there: to run what is kept elsewhere.
  uint32_t buffered_blocks = 1;
  // The host has the same room, for what the disk holds.
  bool host_buffers = true;
};

// A place where nothing went, and what would have been enough.
struct UnusedPlace {
  MemoryPlace place;
  Bytes needed;
};

struct DeviceMap {
  std::vector<MemoryPlace> places;  // by block
  std::vector<UnusedPlace> unused;  // of a policy

  // Bytes of the blocks on a place.
  Bytes BytesOn(const MemoryPlace& place,
                std::span<const PlacementBlock> blocks) const;
  bool Uses(MemoryTier tier) const;
};

// Of all blocks, and of what all places hold; 2^64 - 1 at most.
Bytes TotalSize(std::span<const PlacementBlock> blocks);
Bytes TotalRoom(std::span<const MemoryLimit> limits);

// kResourceExhausted, with the name of the block and the bytes that are
// missing, where no place has room for it; kInvalidArgument for rules that
// contradict themselves.
absl::StatusOr<DeviceMap> PlanDeviceMap(std::span<const PlacementBlock> blocks,
                                        const PlacementRules& rules);

// A map that the user wrote: a JSON object of prefixes of block names, each
// with a device number, "cpu" or "disk"; or an object with such a one as its
// "device_map", as `quire plan --json` prints. Errors, which name the file and
// the module: a prefix of no block, or of a part of one; a block that no prefix
// covers, or more than one; a device beyond `devices`; tied blocks apart.
absl::StatusOr<DeviceMap> ReadDeviceMap(const std::string& path,
                                        std::span<const PlacementBlock> blocks,
                                        int devices);

}  // namespace quire

#endif  // QUIRE_LOADER_DEVICE_MAP_H_
