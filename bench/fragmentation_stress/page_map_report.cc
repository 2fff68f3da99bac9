#include "bench/fragmentation_stress/page_map_report.h"

#include <algorithm>

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

json PageMapsToJson(const StressRun& run) {
  const PolicyReplayResult& result = run.result;
  // All maps of the run lie in so many pages.
  size_t pages = 1;
  const auto widen = [&](const PageMap& map) {
    pages = std::max(pages, map.requested.size());
  };
  for (const PolicyPageMap& map : result.page_maps) widen(map.pages);
  if (result.page_map_at_event) widen(result.page_map_at_event->pages);
  if (result.page_map_at_end) widen(result.page_map_at_end->pages);
  if (result.first_failure) widen(result.first_failure->pages);

  json object = {{"page_size", PageMap::kPage.value()},
                 {"pages", pages},
                 {"cell_pages", (pages + kCells - 1) / kCells},
                 {"at_peak", json()},
                 {"at_failure", json()},
                 {"at_end", json()},
                 {"heat", HeatToJson(result.page_maps, pages)}};
  if (result.page_map_at_event) {
    object["at_peak"] =
        MapToJson(result.page_map_at_event->pages,
                  result.page_map_at_event->moment.event, pages);
  }
  if (result.first_failure) {
    object["at_failure"] = MapToJson(result.first_failure->pages,
                                     result.first_failure->moment.event, pages);
  }
  if (result.page_map_at_end) {
    object["at_end"] = MapToJson(result.page_map_at_end->pages,
                                 result.page_map_at_end->moment.event, pages);
  }
  return object;
}

}  // namespace quire
