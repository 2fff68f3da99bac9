#include "quire/alloc/memory_growth.h"

#include <algorithm>
#include <vector>

namespace quire {
namespace {

// The least value in each of `windows` equal spans of time. A value holds until
// the next time, so that a window without any has that of the one before.
std::vector<uint64_t> Floors(std::span<const uint64_t> times,
                             std::span<const uint64_t> values, size_t windows) {
  const uint64_t begin = times.front();
  const double span = static_cast<double>(times.back() - begin);
  std::vector<uint64_t> floors(windows);
  size_t at = 0;
  for (size_t w = 0; w < windows; ++w) {
    const double end =
        span * static_cast<double>(w + 1) / static_cast<double>(windows);
    uint64_t floor = values[at];  // carried into the window
    // The last window includes its end.
    while (at + 1 < times.size() &&
           (w + 1 == windows ||
            static_cast<double>(times[at + 1] - begin) < end)) {
      floor = std::min(floor, values[++at]);
    }
    floors[w] = floor;
  }
  return floors;
}

// Never falls, rises in most steps and in the last, and comes to enough.
bool Grows(std::span<const uint64_t> floors,
           const MemoryGrowthOptions& options) {
  size_t rises = 0;
  for (size_t i = 1; i < floors.size(); ++i) {
    if (floors[i] < floors[i - 1]) return false;
    if (floors[i] > floors[i - 1]) ++rises;
  }
  const uint64_t growth = floors.back() - floors.front();
  return floors.back() > floors[floors.size() - 2] &&
         2 * rises >= floors.size() - 1 && growth >= options.least.value() &&
         static_cast<double>(growth) >=
             options.least_part * static_cast<double>(floors.front());
}

}  // namespace

const char* GrowthKindName(GrowthKind kind) {
  switch (kind) {
    case GrowthKind::kLeak:
      return "leak";
    case GrowthKind::kFragmentation:
      return "fragmentation";
    case GrowthKind::kCooling:
      return "cooling";
  }
  return "unknown";
}

std::optional<GrowthKind> GrowthKindFromName(const std::string& name) {
  for (const GrowthKind kind :
       {GrowthKind::kLeak, GrowthKind::kFragmentation, GrowthKind::kCooling}) {
    if (name == GrowthKindName(kind)) return kind;
  }
  return std::nullopt;
}

std::optional<MemoryGrowth> FindMemoryGrowth(
    std::span<const uint64_t> nanoseconds, std::span<const uint64_t> held,
    std::span<const uint64_t> used, std::span<const uint64_t> cooling,
    const MemoryGrowthOptions& options) {
  if (nanoseconds.size() < options.windows ||
      nanoseconds.front() == nanoseconds.back()) {
    return std::nullopt;
  }
  const size_t warm = options.windows / 4;
  const std::vector<uint64_t> all_held =
      Floors(nanoseconds, held, options.windows);
  const std::vector<uint64_t> all_used =
      Floors(nanoseconds, used, options.windows);
  const std::vector<uint64_t> all_cooling =
      cooling.empty() ? std::vector<uint64_t>(options.windows)
                      : Floors(nanoseconds, cooling, options.windows);
  const std::span held_floors = std::span(all_held).subspan(warm);
  const std::span used_floors = std::span(all_used).subspan(warm);
  const std::span cooling_floors = std::span(all_cooling).subspan(warm);
  if (!Grows(held_floors, options)) return std::nullopt;

  MemoryGrowth growth;
  const uint64_t span = nanoseconds.back() - nanoseconds.front();
  growth.from_nanoseconds = nanoseconds.front() + span / options.windows * warm;
  growth.to_nanoseconds = nanoseconds.back();
  growth.held_from = Bytes(held_floors.front());
  growth.held_to = Bytes(held_floors.back());
  growth.used_from = Bytes(used_floors.front());
  growth.used_to = Bytes(used_floors.back());
  growth.cooling_from = Bytes(cooling_floors.front());
  growth.cooling_to = Bytes(cooling_floors.back());
  // Use that explains most of the growth is a leak, whether or not its own
  // floors rise at each step.
  const uint64_t held_more = held_floors.back() - held_floors.front();
  const uint64_t used_more =
      SaturatingSubtract(used_floors.back(), used_floors.front());
  const uint64_t cooling_more =
      SaturatingSubtract(cooling_floors.back(), cooling_floors.front());
  if (used_more >= held_more / 2) {
    growth.kind = GrowthKind::kLeak;
  } else if (cooling_more >= (held_more - used_more) / 2) {
    growth.kind = GrowthKind::kCooling;
  } else {
    growth.kind = GrowthKind::kFragmentation;
  }
  return growth;
}

}  // namespace quire
