// Which parts of a model go to which place, where the devices do not hold all
// of it: by what maps were measured to take, not by the sizes of the parts
// alone.
//
// A device holds weights, and also workspace, the keys and values of the layers
// that run there, and slots that parts kept elsewhere run from. Slots are as
// large as the largest of those parts, so that moving a large part to a device
// may take hardly more of it. Hence every step is measured: a device is filled
// until the next part in order does not fit beside all of that, and only then
// the next place is looked at. A part that is no layer may be passed over, so
// that an embedding that does not fit leaves no device empty.
//
// What is left runs on the last device that was filled, with its keys and
// values there.

#ifndef QUIRE_MODEL_ENGINE_PLACEMENT_FILL_H_
#define QUIRE_MODEL_ENGINE_PLACEMENT_FILL_H_

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/loader/device_map.h"

namespace quire {

// What each device needs for a map of the parts, all told; by device number.
using MeasureMap = std::function<absl::StatusOr<std::vector<Bytes>>(
    const std::vector<MemoryPlace>& places)>;

struct FilledPlaces {
  DeviceMap map;  // with the devices that are left empty, as unused
  // What each place has for weights, by element of the limits: of devices that
  // are left empty, beside all else.
  std::vector<MemoryLimit> limits;
};

// The order in which parts are given the nearest place that has room.
enum class FillOrder : uint8_t {
  // As they run: what accelerate's policies do.
  kAsTheyRun,
  // So that the fewest bytes are copied to the device for each pass: the head
  // first, as a slot for it would take as much; the embedding last, as single
  // rows of it are read, which the host serves from where they are.
  kFewestCopies,
};

// `limits` are sorted by place; those of devices are of all that they need,
// those of the host and the disk of weights. nullopt where the places do not
// hold all parts; where no device has room for what it must have beside
// weights, all parts are elsewhere. Errors are those of `measure`.
absl::StatusOr<std::optional<FilledPlaces>> FillPlaces(
    std::span<const PlacementBlock> blocks, std::span<const MemoryLimit> limits,
    FillOrder order, const MeasureMap& measure);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_PLACEMENT_FILL_H_
