// Places that are filled, against every map that there is of a small model, for
// devices that need what this test says: its own account of weights, workspace,
// keys and values, and slots.

#include "model/engine/placement_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

// In units of a page.
struct Costs {
  uint64_t workspace = 0;  // of a device that runs a part
  uint64_t kv = 0;         // of each layer, where it runs
};

class Model {
 public:
  Model(uint64_t embedding, std::vector<uint64_t> layers, uint64_t head,
        bool tied, Costs costs)
      : costs_(costs), tied_(tied) {
    blocks_.push_back({"embedding", Bytes(embedding)});
    for (const uint64_t layer : layers)
      blocks_.push_back({"layer", Bytes(layer), /*layer=*/true});
    blocks_.push_back({"norm", Bytes(1)});
    blocks_.push_back({"head", Bytes(tied ? 0 : head)});
    if (tied) blocks_.back().tied_to = 0;
  }

  const std::vector<PlacementBlock>& blocks() const { return blocks_; }

  // A part that is kept elsewhere runs where the part before it is, or the
  // first that is on a device; through the slot that is its turn.
  std::vector<Bytes> Needed(const std::vector<MemoryPlace>& places,
                            size_t devices) const {
    std::vector<uint64_t> needed(devices);
    std::vector<bool> runs(devices);
    std::vector<std::vector<uint64_t>> kept(devices);
    size_t device = 0;
    for (const MemoryPlace& place : places) {
      if (place.tier != MemoryTier::kDevice) continue;
      device = static_cast<size_t>(place.device.value());
      break;
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const uint64_t size = blocks_[i].size.value();
      if (places[i].tier == MemoryTier::kDevice) {
        device = static_cast<size_t>(places[i].device.value());
        needed[device] += size;
      } else if (size > 0 && !IsRows(i, places[i])) {
        kept[device].push_back(size);
      }
      runs[device] = true;
      if (blocks_[i].layer) needed[device] += costs_.kv;
    }
    std::vector<Bytes> result;
    for (size_t i = 0; i < devices; ++i) {
      uint64_t slots[2] = {0, 0};
      for (size_t unit = 0; unit < kept[i].size(); ++unit)
        slots[unit % 2] = std::max(slots[unit % 2], kept[i][unit]);
      result.emplace_back(needed[i] + slots[0] + slots[1] +
                          (runs[i] ? costs_.workspace : 0));
    }
    return result;
  }

  // Bytes that a pass copies: of an embedding on the host, single rows are
  // read.
  uint64_t Copied(const std::vector<MemoryPlace>& places) const {
    uint64_t copied = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (places[i].tier != MemoryTier::kDevice && !IsRows(i, places[i]))
        copied += blocks_[i].size.value();
    }
    return copied;
  }

  bool TiesHold(const std::vector<MemoryPlace>& places) const {
    return !tied_ || places.front() == places.back();
  }

  FilledPlaces Fill(const std::vector<MemoryLimit>& limits, FillOrder order,
                    size_t devices) const {
    const MeasureMap measure = [&](const std::vector<MemoryPlace>& places)
        -> absl::StatusOr<std::vector<Bytes>> {
      return Needed(places, devices);
    };
    const auto filled = FillPlaces(blocks_, limits, order, measure);
    EXPECT_TRUE(filled.ok()) << filled.status();
    EXPECT_TRUE(filled.ok() && filled->has_value());
    return filled.ok() && filled->has_value() ? **filled : FilledPlaces{};
  }

  std::string Text(const std::vector<MemoryPlace>& places) const {
    std::string text;
    for (size_t i = 0; i < blocks_.size(); ++i)
      text += PlaceName(places[i]) + ":" +
              std::to_string(blocks_[i].size.value()) + " ";
    return text;
  }

 private:
  bool IsRows(size_t block, const MemoryPlace& place) const {
    return block == 0 && !tied_ && place == kHostPlace;
  }

  std::vector<PlacementBlock> blocks_;
  const Costs costs_;
  const bool tied_;
};

// Of all maps of the device and `elsewhere` that the device has room for, the
// fewest bytes copied; UINT64_MAX where there is none.
uint64_t FewestCopies(const Model& model, Bytes device,
                      const MemoryPlace& elsewhere) {
  uint64_t fewest = UINT64_MAX;
  const size_t count = model.blocks().size();
  for (uint32_t bits = 0; bits < 1u << count; ++bits) {
    std::vector<MemoryPlace> places;
    for (size_t i = 0; i < count; ++i)
      places.push_back((bits >> i & 1) != 0 ? DevicePlace(0) : elsewhere);
    if (model.TiesHold(places) && model.Needed(places, 1)[0] <= device)
      fewest = std::min(fewest, model.Copied(places));
  }
  return fewest;
}

Model RandomModel(std::mt19937_64* rng, bool equal_layers) {
  const auto pick = [&](uint64_t from, uint64_t to) {
    return from + (*rng)() % (to - from + 1);
  };
  const uint64_t layer = pick(5, 40);
  std::vector<uint64_t> layers;
  for (uint64_t i = pick(1, 6); i > 0; --i)
    layers.push_back(equal_layers ? layer : pick(5, 40));
  const uint64_t vocabulary = pick(2, 200);
  return {vocabulary,
          std::move(layers),
          vocabulary,
          pick(0, 2) == 0,
          {.workspace = pick(0, 20), .kv = pick(0, 10)}};
}

TEST(PlacementFillTest, CopiesAsLittleAsAnyMapWithTheHost) {
  std::mt19937_64 rng(1);
  size_t some = 0;
  for (int round = 0; round < 3000; ++round) {
    const Model model = RandomModel(&rng, /*equal_layers=*/true);
    const Bytes device(rng() % 500);
    const FilledPlaces filled =
        model.Fill({{DevicePlace(0), device}, {kHostPlace, Bytes(10'000)}},
                   FillOrder::kFewestCopies, 1);
    const uint64_t fewest = FewestCopies(model, device, kHostPlace);
    // Nothing fits: all is elsewhere, and who opens the model is told.
    if (fewest == UINT64_MAX) continue;
    EXPECT_LE(model.Needed(filled.map.places, 1)[0], device);
    EXPECT_EQ(model.Copied(filled.map.places), fewest)
        << round << ": " << device.value() << " have room for "
        << model.Text(filled.map.places);
    some += fewest > 0;
  }
  EXPECT_GT(some, 300u);
}

// In either order, on two devices and with layers of any size: what is on the
// host or the disk and could run from a nearer place is not as large as the
// room that the place has left.
TEST(PlacementFillTest, LeavesNoRoomForTheNextPart) {
  std::mt19937_64 rng(2);
  size_t offloaded = 0;
  for (int round = 0; round < 3000; ++round) {
    const Model model = RandomModel(&rng, round % 2 == 0);
    const auto& blocks = model.blocks();
    const size_t devices = 1 + rng() % 2;
    std::vector<MemoryLimit> limits;
    for (size_t i = 0; i < devices; ++i)
      limits.push_back(
          {DevicePlace(static_cast<int32_t>(i)), Bytes(rng() % 300)});
    limits.push_back({kHostPlace, Bytes(rng() % 200)});
    limits.push_back({kDiskPlace, Bytes(10'000)});
    const FillOrder order =
        rng() % 2 == 0 ? FillOrder::kAsTheyRun : FillOrder::kFewestCopies;
    const FilledPlaces filled = model.Fill(limits, order, devices);
    const std::vector<MemoryPlace>& places = filled.map.places;
    const std::vector<Bytes> needed = model.Needed(places, devices);
    EXPECT_LE(filled.map.BytesOn(kHostPlace, blocks), limits[devices].limit);
    if (std::any_of(limits.begin(), limits.end() - 2, [&](const auto& limit) {
          return needed[static_cast<size_t>(limit.place.device.value())] >
                 limit.limit;
        })) {
      // Only where even one device has no room beside all weights.
      EXPECT_TRUE(std::none_of(places.begin(), places.end(), [](const auto& p) {
        return p.tier == MemoryTier::kDevice;
      }));
      continue;
    }
    for (size_t to = 0; to <= devices; ++to) {
      // The first layer that is farther than `to`, and all that are none.
      bool layer = false;
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].tied_to || places[i].tier == MemoryTier::kDevice ||
            places[i] <= limits[to].place || (blocks[i].layer && layer))
          continue;
        layer = layer || blocks[i].layer;
        std::vector<MemoryPlace> moved = places;
        for (size_t j = 0; j < blocks.size(); ++j)
          if (j == i || blocks[j].tied_to == i) moved[j] = limits[to].place;
        ++offloaded;
        if (limits[to].place == kHostPlace) {
          EXPECT_GT(filled.map.BytesOn(kHostPlace, blocks).value() +
                        blocks[i].size.value(),
                    limits[to].limit.value());
          continue;
        }
        // A device where nothing runs may lie beyond the last that does.
        if (to > 0 && filled.map.BytesOn(limits[to].place, blocks).zero())
          continue;
        const std::vector<Bytes> with = model.Needed(moved, devices);
        bool fits = true;
        for (size_t d = 0; d < devices; ++d) fits &= with[d] <= limits[d].limit;
        EXPECT_FALSE(fits) << round << " " << i << " to " << to << " "
                           << limits[to].limit.value() << ": "
                           << model.Text(places);
      }
    }
  }
  EXPECT_GT(offloaded, 1000u);
}

// What accelerate's walk would stop at: an embedding that is larger than a
// device leaves its room to the layers.
TEST(PlacementFillTest, AnEmbeddingThatDoesNotFitLeavesNoDeviceEmpty) {
  const Model model(500, {10, 10, 10, 10, 10, 10}, 20, /*tied=*/false, {});
  for (const FillOrder order :
       {FillOrder::kAsTheyRun, FillOrder::kFewestCopies}) {
    const FilledPlaces filled = model.Fill(
        {{DevicePlace(0), Bytes(75)}, {kHostPlace, Bytes(1000)}}, order, 1);
    // 5 layers and a slot of the sixth's size, and the norm; or the head first.
    EXPECT_GE(filled.map.BytesOn(DevicePlace(0), model.blocks()), Bytes(41));
    EXPECT_EQ(filled.map.places.front(), kHostPlace);
    EXPECT_TRUE(filled.map.unused.empty());
  }
}

TEST(PlacementFillTest, SaysWhichDevicesAreEmptyAndWhy) {
  const Model model(50, {30, 30}, 50, /*tied=*/false, {.workspace = 5});
  const FilledPlaces filled = model.Fill({{DevicePlace(0), Bytes(5)},
                                          {DevicePlace(1), Bytes(400)},
                                          {kHostPlace, Bytes(1000)}},
                                         FillOrder::kAsTheyRun, 2);
  EXPECT_EQ(filled.map.BytesOn(DevicePlace(1), model.blocks()), Bytes(161));
  ASSERT_EQ(filled.map.unused.size(), 1u);
  EXPECT_EQ(filled.map.unused[0].place, DevicePlace(0));
}

TEST(PlacementFillTest, PlacesThatAreTooSmallInAllAreNone) {
  const Model model(50, {30, 30}, 50, /*tied=*/false, {});
  const MeasureMap measure = [&](const std::vector<MemoryPlace>& places)
      -> absl::StatusOr<std::vector<Bytes>> { return model.Needed(places, 1); };
  const std::vector<MemoryLimit> limits = {{DevicePlace(0), Bytes(70)},
                                           {kHostPlace, Bytes(20)},
                                           {kDiskPlace, Bytes(29)}};
  for (const FillOrder order :
       {FillOrder::kAsTheyRun, FillOrder::kFewestCopies}) {
    const auto filled = FillPlaces(model.blocks(), limits, order, measure);
    ASSERT_TRUE(filled.ok());
    EXPECT_FALSE(filled->has_value());
  }
}

}  // namespace
}  // namespace quire
