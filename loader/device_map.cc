#include "quire/loader/device_map.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {

Bytes TotalSize(std::span<const PlacementBlock> blocks) {
  Bytes total;
  for (const PlacementBlock& block : blocks)
    total = SaturatingAdd(total, block.size);
  return total;
}

Bytes TotalRoom(std::span<const MemoryLimit> limits) {
  Bytes total;
  for (const MemoryLimit& limit : limits)
    total = SaturatingAdd(total, limit.limit);
  return total;
}

namespace {

// Fewer than any machine has, and enough for a message.
constexpr int32_t kMaxDevices = 1024;

// What a device gets more than its share: a quarter more than a layer, or than
// an average module where that is larger, since whole blocks never come out
// even and what is left over would end on the host.
Bytes BalanceMargin(std::span<const PlacementBlock> blocks) {
  uint64_t modules = 0;
  for (const PlacementBlock& block : blocks) {
    if (!block.tied_to.has_value()) modules += block.modules;
  }
  const uint64_t mean =
      TotalSize(blocks).value() / std::max<uint64_t>(modules, 1);
  const auto layer = std::find_if(blocks.begin(), blocks.end(),
                                  [](const auto& b) { return b.layer; });
  const uint64_t largest =
      std::max(mean, layer == blocks.end() ? 0 : layer->size.value());
  return Bytes(SaturatingAdd(largest, largest / 4));
}

// Lowers the limits of devices to what a balanced map gives them.
void Balance(std::span<const PlacementBlock> blocks, bool low_zero,
             std::vector<MemoryLimit>* limits) {
  std::vector<MemoryLimit*> devices;
  for (MemoryLimit& limit : *limits) {
    if (limit.place.tier == MemoryTier::kDevice && !limit.limit.zero())
      devices.push_back(&limit);
  }
  if (devices.empty()) return;
  low_zero = low_zero && devices.size() > 1;
  const Bytes total = TotalSize(blocks);
  const Bytes share = SaturatingAdd(
      Bytes(total.value() / (devices.size() - (low_zero ? 1 : 0))),
      BalanceMargin(blocks));
  // The last one keeps its limit, in case that the margin does not suffice.
  for (size_t i = low_zero ? 1 : 0; i + 1 < devices.size(); ++i)
    devices[i]->limit = std::min(devices[i]->limit, share);
  if (low_zero) {
    Bytes others;
    for (size_t i = 1; i < devices.size(); ++i)
      others = SaturatingAdd(others, devices[i]->limit);
    devices[0]->limit =
        std::min(devices[0]->limit, SaturatingSubtract(total, others));
  }
}

absl::Status CheckRules(std::span<const PlacementBlock> blocks,
                        const PlacementRules& rules) {
  if (rules.limits.empty())
    return absl::InvalidArgumentError("a device map without a place");
  for (size_t i = 1; i < rules.limits.size(); ++i) {
    if (rules.limits[i].place <= rules.limits[i - 1].place)
      return absl::InvalidArgumentError(absl::StrCat(
          "limits out of order: ", PlaceName(rules.limits[i].place), " after ",
          PlaceName(rules.limits[i - 1].place)));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::optional<size_t> tied = blocks[i].tied_to;
    if (tied.has_value() && (*tied >= i || blocks[*tied].tied_to.has_value()))
      return absl::InvalidArgumentError(
          absl::StrCat(blocks[i].name,
                       ": is tied to a block that is none of those before it, "
                       "or is tied itself"));
  }
  return absl::OkStatus();
}

// Walks the blocks and the places, each forwards only.
class Walk {
 public:
  Walk(std::span<const PlacementBlock> blocks, const PlacementRules& rules,
       std::vector<MemoryLimit> limits)
      : blocks_(blocks),
        rules_(rules),
        limits_(std::move(limits)),
        used_(limits_.size()),
        placed_(blocks.size()) {
    map_.places.resize(blocks.size());
  }

  absl::StatusOr<DeviceMap> Run() && {
    for (size_t block = 0; block < blocks_.size(); ++block) {
      if (placed_[block]) continue;
      QUIRE_RETURN_IF_ERROR(Place(block));
    }
    return std::move(map_);
  }

 private:
  absl::Status Place(size_t block) {
    const std::vector<size_t> together = WithTied(block);
    Bytes size;
    for (const size_t member : together)
      size = SaturatingAdd(size, blocks_[member].size);
    Bytes short_of(UINT64_MAX);
    for (; at_ < limits_.size(); ++at_) {
      const Bytes reserved = Reserved(block);
      const Bytes needed =
          SaturatingAdd(SaturatingAdd(used_[at_], size), reserved);
      if (needed <= limits_[at_].limit) {
        used_[at_] = SaturatingAdd(used_[at_], size);
        for (const size_t member : together) {
          placed_[member] = true;
          map_.places[member] = limits_[at_].place;
        }
        return absl::OkStatus();
      }
      short_of =
          std::min(short_of, SaturatingSubtract(needed, limits_[at_].limit));
      if (used_[at_].zero())
        map_.unused.push_back(
            {limits_[at_].place, SaturatingAdd(size, reserved)});
    }
    return OutOfPlaces(block, size, short_of);
  }

  // The block and those that share bytes with it.
  std::vector<size_t> WithTied(size_t block) const {
    std::vector<size_t> together = {block};
    for (size_t other = block + 1; other < blocks_.size(); ++other) {
      if (blocks_[other].tied_to == block) together.push_back(other);
    }
    return together;
  }

  // What must stay free at the current place beside `block`, to run blocks
  // that come later and may have to be kept elsewhere. Never more than they
  // take together, so that a model that fits whole is placed whole.
  Bytes Reserved(size_t block) const {
    const MemoryPlace& place = limits_[at_].place;
    const bool buffers =
        place.tier == MemoryTier::kDevice
            ? at_ == 0
            : place.tier == MemoryTier::kHost && rules_.host_buffers;
    if (!buffers) return Bytes(0);
    Bytes largest;
    Bytes rest;
    for (size_t later = block + 1; later < blocks_.size(); ++later) {
      if (placed_[later]) continue;
      largest = std::max(largest, blocks_[later].size);
      rest = SaturatingAdd(rest, blocks_[later].size);
    }
    return std::min(rest, CheckedMultiply(largest, rules_.buffered_blocks)
                              .value_or(Bytes(UINT64_MAX)));
  }

  absl::Status OutOfPlaces(size_t block, Bytes size, Bytes short_of) const {
    std::string places;
    for (size_t i = 0; i < limits_.size(); ++i)
      absl::StrAppend(&places, i == 0 ? "" : ", ", PlaceName(limits_[i].place),
                      " has ", FormatBytes(used_[i]), " of ",
                      FormatBytes(limits_[i].limit), " in use");
    return absl::ResourceExhaustedError(absl::StrCat(
        Printable(blocks_[block].name), ": no place for its ", size.value(),
        " bytes, ", short_of.value(), " bytes are missing (", places, ")"));
  }

  const std::span<const PlacementBlock> blocks_;
  const PlacementRules& rules_;
  const std::vector<MemoryLimit> limits_;
  std::vector<Bytes> used_;  // by place
  std::vector<bool> placed_;
  size_t at_ = 0;  // the place that is being filled
  DeviceMap map_;
};

absl::Status BadEntry(std::string_view entry, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(
      "max memory ", Quoted(entry), ": ", std::string(problem),
      "; it is a list of PLACE:SIZE, as in 0:8GiB,cpu:20GiB,disk:100GiB"));
}

}  // namespace

std::string PlaceName(const MemoryPlace& place) {
  switch (place.tier) {
    case MemoryTier::kDevice:
      return absl::StrCat(place.device.value());
    case MemoryTier::kHost:
      return "cpu";
    case MemoryTier::kDisk:
      return "disk";
  }
  return "?";
}

std::optional<MemoryPlace> ParsePlace(std::string_view name) {
  if (name == "cpu") return kHostPlace;
  if (name == "disk") return kDiskPlace;
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) name.remove_prefix(kCuda.size());
  int32_t device = 0;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), device);
  if (error != std::errc() || end != name.data() + name.size() || device < 0 ||
      device >= kMaxDevices)
    return std::nullopt;
  return DevicePlace(device);
}

absl::StatusOr<std::vector<MemoryLimit>> ParseMaxMemory(std::string_view text) {
  std::vector<MemoryLimit> limits;
  for (const std::string& entry : std::vector<std::string>(
           absl::StrSplit(absl::string_view(text.data(), text.size()), ','))) {
    const size_t colon = entry.find(':');
    if (colon == std::string::npos) return BadEntry(entry, "has no colon");
    const auto place = ParsePlace(std::string_view(entry).substr(0, colon));
    if (!place.has_value())
      return BadEntry(entry, "the place is no device number, 'cpu' or 'disk'");
    const auto limit = ParseBytes(entry.substr(colon + 1));
    if (!limit.has_value()) return BadEntry(entry, "the size is none");
    for (const MemoryLimit& other : limits) {
      if (other.place == *place)
        return BadEntry(entry, "the place was named before");
    }
    limits.push_back({*place, *limit});
  }
  std::sort(limits.begin(), limits.end(),
            [](const auto& a, const auto& b) { return a.place < b.place; });
  return limits;
}

std::optional<PlacementPolicy> ParsePlacementPolicy(std::string_view name) {
  if (name == "auto") return PlacementPolicy::kAuto;
  if (name == "balanced") return PlacementPolicy::kBalanced;
  if (name == "balanced_low_0") return PlacementPolicy::kBalancedLow0;
  if (name == "sequential") return PlacementPolicy::kSequential;
  return std::nullopt;
}

Bytes DeviceMap::BytesOn(const MemoryPlace& place,
                         std::span<const PlacementBlock> blocks) const {
  Bytes total;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (places[i] == place) total = SaturatingAdd(total, blocks[i].size);
  }
  return total;
}

bool DeviceMap::Uses(MemoryTier tier) const {
  return std::any_of(
      places.begin(), places.end(),
      [&](const MemoryPlace& place) { return place.tier == tier; });
}

absl::StatusOr<DeviceMap> PlanDeviceMap(std::span<const PlacementBlock> blocks,
                                        const PlacementRules& rules) {
  QUIRE_RETURN_IF_ERROR(CheckRules(blocks, rules));
  std::vector<MemoryLimit> limits = rules.limits;
  if (rules.policy != PlacementPolicy::kSequential)
    Balance(blocks, rules.policy == PlacementPolicy::kBalancedLow0, &limits);
  return Walk(blocks, rules, std::move(limits)).Run();
}

}  // namespace quire
