#include "model/engine/placement_fill.h"

#include <algorithm>
#include <utility>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kEmbeddingBlock = 0;

// A part and those that share bytes with it.
struct Group {
  std::vector<size_t> blocks;
  Bytes size;
  bool layer = false;
};

// Bytes that a pass copies to devices.
struct Copies {
  Bytes from_disk;
  Bytes from_host;

  friend auto operator<=>(const Copies&, const Copies&) = default;
};

class Filler {
 public:
  Filler(std::span<const PlacementBlock> blocks,
         std::span<const MemoryLimit> limits, const MeasureMap& measure)
      : blocks_(blocks), measure_(measure) {
    for (const MemoryLimit& limit : limits) {
      filled_.limits.push_back(limit);
      if (limit.place.tier == MemoryTier::kHost) host_ = limit.limit;
      if (limit.place.tier == MemoryTier::kDisk) disk_ = limit.limit;
      if (limit.place.tier == MemoryTier::kDevice && !limit.limit.zero())
        devices_.push_back(limit);
    }
  }

  // With the most devices for which it works out.
  absl::StatusOr<std::optional<FilledPlaces>> Run(
      const std::vector<Group>& order) {
    for (size_t devices = devices_.size() + 1; devices-- > 0;) {
      filled_.map.places.assign(blocks_.size(), kDiskPlace);
      // Of the devices that this attempt does without, it stays known why.
      std::erase_if(filled_.map.unused, [&](const UnusedPlace& unused) {
        return devices > 0 && unused.place < devices_[devices - 1].place;
      });
      QUIRE_ASSIGN_OR_RETURN(const bool done, Fill(order, devices));
      if (done) return std::optional(std::move(filled_));
    }
    return std::nullopt;
  }

 private:
  std::vector<MemoryPlace>& places() { return filled_.map.places; }

  void Place(std::span<const Group> groups, const MemoryPlace& place) {
    for (const Group& group : groups)
      for (const size_t block : group.blocks) places()[block] = place;
  }
  bool offloads() const { return host_.has_value() || disk_.has_value(); }

  // Where what follows goes while a device is being filled: to the next one, or
  // off the devices, where all that matters to them is whether the host has the
  // embedding.
  void PlaceRest(std::span<const Group> groups, size_t next, size_t devices) {
    for (const Group& group : groups) {
      if (next < devices) {
        Place({&group, 1}, devices_[next].place);
      } else if (offloads()) {
        Place({&group, 1},
              host_.value_or(Bytes(0)) >= group.size ? kHostPlace : kDiskPlace);
      } else {
        Place({&group, 1}, devices_[devices - 1].place);
      }
    }
  }

  // Room on a device beside what it needs; nullopt where it needs more than it
  // has, by `missing`.
  absl::StatusOr<std::optional<Bytes>> RoomOn(const MemoryLimit& device,
                                              Bytes* missing) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> needed, measure_(places()));
    const auto index = static_cast<size_t>(device.place.device.value());
    if (needed[index] <= device.limit)
      return SaturatingSubtract(device.limit, needed[index]);
    *missing = SaturatingSubtract(needed[index], device.limit);
    return std::nullopt;
  }

  // Places as many of the first of `run` on a device as have room there, and
  // the others as they were. `room` is what was left of it.
  absl::StatusOr<size_t> Take(std::span<const Group> run, size_t at,
                              size_t devices, Bytes* room) {
    size_t fit = 0;
    size_t too_many = run.size() + 1;
    size_t guess = CountWithin(run, *room);
    while (too_many - fit > 1) {
      guess = std::clamp(guess, fit + 1, too_many - 1);
      Place(run.first(guess), devices_[at].place);
      PlaceRest(run.subspan(guess), at + 1, devices);
      Bytes missing;
      QUIRE_ASSIGN_OR_RETURN(const std::optional<Bytes> left,
                             RoomOn(devices_[at], &missing));
      if (left.has_value()) {
        fit = guess;
        *room = *left;
        guess = fit + CountWithin(run.subspan(fit), *room);
      } else {
        too_many = guess;
        guess -= CountWithin(run.first(guess), missing, /*from_back=*/true) + 1;
      }
    }
    Place(run.first(fit), devices_[at].place);
    PlaceRest(run.subspan(fit), at + 1, devices);
    return fit;
  }

  static size_t CountWithin(std::span<const Group> run, Bytes bytes,
                            bool from_back = false) {
    Bytes total;
    for (size_t count = 0; count < run.size(); ++count) {
      total = SaturatingAdd(
          total, run[from_back ? run.size() - 1 - count : count].size);
      if (total > bytes) return count;
    }
    return run.size() - (from_back ? 1 : 0);
  }

  // Fills device `at` of the first `devices` from `rest`, in order, and leaves
  // there what it has no room for.
  absl::Status FillDevice(size_t at, size_t devices, std::vector<Group>* rest) {
    PlaceRest(*rest, at + 1, devices);
    Bytes missing;
    QUIRE_ASSIGN_OR_RETURN(std::optional<Bytes> room,
                           RoomOn(devices_[at], &missing));
    bool took = false;
    // A part that was taken after another was refused may have left a smaller
    // slot to that one.
    for (bool again = room.has_value(); again;) {
      again = false;
      std::vector<Group> left;
      for (size_t begin = 0; begin < rest->size();) {
        size_t end = begin + 1;
        while (end < rest->size() && (*rest)[begin].layer && (*rest)[end].layer)
          ++end;
        const auto run =
            std::span<const Group>(*rest).subspan(begin, end - begin);
        QUIRE_ASSIGN_OR_RETURN(const size_t taken,
                               Take(run, at, devices, &*room));
        took = took || taken > 0;
        again = again || (taken > 0 && !left.empty());
        left.insert(left.end(), run.begin() + static_cast<ptrdiff_t>(taken),
                    run.end());
        begin = end;
      }
      *rest = std::move(left);
    }
    if (!took && !rest->empty()) {
      filled_.map.unused.push_back({devices_[at].place, rest->front().size});
      for (MemoryLimit& limit : filled_.limits) {
        if (limit.place == devices_[at].place)
          limit.limit = room.value_or(Bytes(0));
      }
    }
    return absl::OkStatus();
  }

  // Whether the host and the disk hold what the devices have left.
  bool FillTiers(std::vector<Group> rest) {
    // The rows of an embedding are read from the host at no cost.
    std::stable_partition(rest.begin(), rest.end(), [&](const Group& group) {
      return group.blocks == std::vector<size_t>{kEmbeddingBlock};
    });
    Bytes on_host;
    Bytes on_disk;
    for (const Group& group : rest) {
      const Bytes with = SaturatingAdd(on_host, group.size);
      if (host_.has_value() && with <= *host_) {
        on_host = with;
        Place({&group, 1}, kHostPlace);
      } else {
        on_disk = SaturatingAdd(on_disk, group.size);
        Place({&group, 1}, kDiskPlace);
      }
    }
    return rest.empty() ||
           (disk_.has_value() ? on_disk <= *disk_ : on_disk.zero());
  }

  absl::StatusOr<bool> Fill(const std::vector<Group>& order, size_t devices) {
    std::vector<Group> rest = order;
    for (size_t at = 0; at < devices; ++at) {
      // The last of all places takes what there is.
      if (at + 1 == devices && !offloads()) {
        PlaceRest(rest, devices, devices);
        rest.clear();
        break;
      }
      QUIRE_RETURN_IF_ERROR(FillDevice(at, devices, &rest));
    }
    if (!FillTiers(std::move(rest))) return false;
    // Nothing else to try.
    if (devices == 0) return true;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> needed, measure_(places()));
    return std::all_of(devices_.begin(), devices_.end(), [&](const auto& one) {
      return needed[static_cast<size_t>(one.place.device.value())] <= one.limit;
    });
  }

  const std::span<const PlacementBlock> blocks_;
  const MeasureMap& measure_;
  std::vector<MemoryLimit> devices_;
  std::optional<Bytes> host_;
  std::optional<Bytes> disk_;
  FilledPlaces filled_;
};

// By their first block.
std::vector<Group> GroupsOf(std::span<const PlacementBlock> blocks) {
  std::vector<Group> groups;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].tied_to.has_value()) continue;
    Group group{{i}, blocks[i].size, blocks[i].layer};
    for (size_t other = i + 1; other < blocks.size(); ++other) {
      if (blocks[other].tied_to != i) continue;
      group.blocks.push_back(other);
      group.size = SaturatingAdd(group.size, blocks[other].size);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Layers first or the head first, of what a pass reads whole; then what is so
// small that it would only be in the way of a layer, then what is not read
// whole. An embedding that serves as head is a head.
std::vector<Group> OrderForCopies(std::vector<Group> groups, bool layers_first,
                                  Bytes head, Bytes host) {
  const auto rank = [&](const Group& group) {
    if (group.layer) return layers_first ? 0 : 1;
    if (group.blocks == std::vector<size_t>{kEmbeddingBlock} &&
        group.size <= host)
      return 3;
    return group.size < head ? 2 : layers_first ? 1 : 0;
  };
  std::stable_sort(
      groups.begin(), groups.end(),
      [&](const Group& a, const Group& b) { return rank(a) < rank(b); });
  return groups;
}

Copies CopiesOf(std::span<const PlacementBlock> blocks, const DeviceMap& map) {
  Copies copies;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (map.places[i] == kDiskPlace)
      copies.from_disk = SaturatingAdd(copies.from_disk, blocks[i].size);
    const bool tied = blocks.back().tied_to == kEmbeddingBlock;
    if (map.places[i] == kHostPlace && (i != kEmbeddingBlock || tied))
      copies.from_host = SaturatingAdd(copies.from_host, blocks[i].size);
  }
  return copies;
}

}  // namespace

absl::StatusOr<std::optional<FilledPlaces>> FillPlaces(
    std::span<const PlacementBlock> blocks, std::span<const MemoryLimit> limits,
    FillOrder order, const MeasureMap& measure) {
  if (TotalSize(blocks) > TotalRoom(limits)) return std::nullopt;
  const std::vector<Group> groups = GroupsOf(blocks);
  if (order == FillOrder::kAsTheyRun)
    return Filler(blocks, limits, measure).Run(groups);
  Bytes host;
  for (const MemoryLimit& limit : limits)
    if (limit.place == kHostPlace) host = limit.limit;
  const Bytes head =
      blocks[blocks.back().tied_to.value_or(blocks.size() - 1)].size;
  // A head that is much larger than a layer is best on the device: a slot for
  // it would take nearly as much.
  const bool either =
      std::any_of(blocks.begin(), blocks.end(), [&](const auto& block) {
        return block.layer && SaturatingAdd(block.size, block.size) > head;
      });
  std::optional<FilledPlaces> best;
  for (const bool layers_first : {false, true}) {
    if (layers_first && !either) break;
    QUIRE_ASSIGN_OR_RETURN(
        std::optional<FilledPlaces> filled,
        Filler(blocks, limits, measure)
            .Run(OrderForCopies(groups, layers_first, head, host)));
    if (filled.has_value() &&
        (!best.has_value() ||
         CopiesOf(blocks, filled->map) < CopiesOf(blocks, best->map)))
      best = std::move(filled);
  }
  return best;
}

}  // namespace quire
