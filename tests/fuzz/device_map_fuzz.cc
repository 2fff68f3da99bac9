// Whatever a device map, a plan that holds one, or the text of --max-memory
// say, they are refused or place every part of a model where there is such a
// place, and never more on it than it may hold.
//
// The input has two parts: a map or plan, and a text for --max-memory.

#include <algorithm>
#include <string>
#include <vector>

#include "quire/alloc/status_macros.h"
#include "quire/loader/device_map.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {
namespace {

constexpr int kDevices = 3;

// A small model whose head shares the bytes of its embedding.
std::vector<PlacementBlock> SmallModel() {
  return {{.name = "model.embed_tokens", .size = MiB(8)},
          {.name = "model.layers.0", .size = MiB(5), .layer = true},
          {.name = "model.layers.1", .size = MiB(6), .layer = true},
          {.name = "model.layers.10", .size = MiB(5), .layer = true},
          {.name = "model.norm", .size = KiB(4)},
          {.name = "lm_head", .size = Bytes(0), .tied_to = 0}};
}

absl::Status CheckMap(const DeviceMap& map,
                      const std::vector<PlacementBlock>& blocks) {
  QUIRE_RETURN_IF_ERROR(Property(map.places.size() == blocks.size(),
                                 "every part of the model has a place"));
  for (size_t i = 0; i < blocks.size(); ++i)
    QUIRE_RETURN_IF_ERROR(Property(
        !blocks[i].tied_to || map.places[i] == map.places[*blocks[i].tied_to],
        "what shares bytes stays together"));
  return absl::OkStatus();
}

absl::Status CheckWritten(const std::string& path) {
  const std::vector<PlacementBlock> blocks = SmallModel();
  const auto map = ReadDeviceMap(path, blocks, kDevices);
  if (!map.ok()) return CheckRefusal(map.status());
  for (const MemoryPlace& place : map->places)
    QUIRE_RETURN_IF_ERROR(Property(
        place.tier != MemoryTier::kDevice ||
            (place.device.value() >= 0 && place.device.value() < kDevices),
        "a place exists"));
  return CheckMap(*map, blocks);
}

absl::Status CheckPlanned(std::string_view max_memory) {
  const auto limits = ParseMaxMemory(max_memory);
  if (!limits.ok()) return CheckRefusal(limits.status());
  const std::vector<PlacementBlock> blocks = SmallModel();
  for (const PlacementPolicy policy :
       {PlacementPolicy::kBalanced, PlacementPolicy::kBalancedLow0,
        PlacementPolicy::kSequential}) {
    const auto map = PlanDeviceMap(blocks, {policy, *limits});
    if (!map.ok()) {
      QUIRE_RETURN_IF_ERROR(CheckRefusal(map.status()));
      continue;
    }
    QUIRE_RETURN_IF_ERROR(CheckMap(*map, blocks));
    for (const MemoryPlace& place : map->places) {
      const auto limit = std::find_if(
          limits->begin(), limits->end(),
          [&](const MemoryLimit& each) { return each.place == place; });
      QUIRE_RETURN_IF_ERROR(Property(
          limit != limits->end() && map->BytesOn(place, blocks) <= limit->limit,
          "a place holds no more than it may"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FuzzDeviceMap(std::string_view input) {
  static const ScratchFolder folder;
  const std::vector<std::string_view> parts = InputParts(input, 2);
  QUIRE_RETURN_IF_ERROR(folder.Write("map.json", parts[0]));
  QUIRE_RETURN_IF_ERROR(CheckWritten(folder.File("map.json")));
  return CheckPlanned(parts[1]);
}

}  // namespace quire
