#include "bench/fragmentation_stress/page_map_report.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "bench/policies/page_map.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr uint64_t kCells = 4096;
constexpr uint64_t kBands = 48;

json MapToJson(const PageMap& map, uint64_t event, uint64_t pages) {
  return {{"event", event}, {"cells", FoldPageMap(map, pages, kCells).percent}};
}

json HeatToJson(const std::vector<PolicyPageMap>& maps, uint64_t pages) {
  json heat = {{"band_pages", (pages + kBands - 1) / kBands},
               {"events", json::array()},
               {"held", json::array()},
               {"requested", json::array()}};
  for (const PolicyPageMap& map : maps) {
    FoldedPageMap folded = FoldPageMap(map.pages, pages, kBands);
    heat["events"].push_back(map.moment.event);
    heat["held"].push_back(std::move(folded.held_percent));
    heat["requested"].push_back(std::move(folded.percent));
  }
  return heat;
}

}  // namespace

json PageMapsToJson(const PolicyLooks& looks) {
  // All maps of the run lie in so many pages.
  size_t pages = 1;
  const auto widen = [&](const PageMap& map) {
    pages = std::max(pages, map.requested.size());
  };
  const auto to_json = [&](const std::optional<PolicyPageMap>& map) {
    return map ? MapToJson(map->pages, map->moment.event, pages) : json();
  };
  for (const PolicyPageMap& map : looks.page_maps) widen(map.pages);
  for (const auto* map : {&looks.page_map_at_event, &looks.page_map_at_failure,
                          &looks.page_map_at_end}) {
    if (*map) widen((*map)->pages);
  }
  return {{"page_size", PageMap::kPage.value()},
          {"pages", pages},
          {"cell_pages", (pages + kCells - 1) / kCells},
          {"at_peak", to_json(looks.page_map_at_event)},
          {"at_failure", to_json(looks.page_map_at_failure)},
          {"at_end", to_json(looks.page_map_at_end)},
          {"heat", HeatToJson(looks.page_maps, pages)}};
}

}  // namespace quire
