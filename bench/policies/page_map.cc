#include "bench/policies/page_map.h"

#include <algorithm>

#include "quire/alloc/host_pages.h"

namespace quire {
namespace {

// Addresses side by side, and where their memory lies.
struct Window {
  uint64_t address;
  uint64_t end;
  uint64_t offset;
};

std::vector<Window> ListWindows(const std::vector<HostPage>& pages) {
  std::vector<Window> windows;
  for (const HostPage& page : pages) {
    for (const DeviceAddress address : page.addresses) {
      windows.push_back({address.value(), address.value() + page.size.value(),
                         page.offset.value()});
    }
  }
  std::sort(
      windows.begin(), windows.end(),
      [](const Window& a, const Window& b) { return a.address < b.address; });
  return windows;
}

void AddRequested(uint64_t offset, uint64_t end, PageMap* map) {
  while (offset < end) {
    const uint64_t page = offset / PageMap::kPage.value();
    const uint64_t next = std::min(end, (page + 1) * PageMap::kPage.value());
    map->requested[page] += static_cast<int64_t>(next - offset);
    offset = next;
  }
}

// Rounded so that none and all are told apart from nearly none and nearly all.
int Percent(uint64_t part, uint64_t whole) {
  if (part >= whole) return 100;
  if (part == 0) return 0;
  const double percent =
      100 * static_cast<double>(part) / static_cast<double>(whole);
  return std::clamp(static_cast<int>(percent + 0.5), 1, 99);
}

}  // namespace

PageMap MapPages(const HostDriver& driver, std::span<const LiveRange> live) {
  const std::vector<HostPage> pages = ListHostPages(driver);
  PageMap map;
  if (pages.empty()) return map;
  const HostPage& last = pages.back();
  map.requested.assign(
      (last.offset.value() + last.size.value()) / PageMap::kPage.value(),
      PageMap::kNotHeld);
  for (const HostPage& page : pages) {
    const uint64_t first = page.offset.value() / PageMap::kPage.value();
    const uint64_t count = page.size.value() / PageMap::kPage.value();
    std::fill_n(map.requested.begin() + static_cast<int64_t>(first), count, 0);
  }
  const std::vector<Window> windows = ListWindows(pages);
  for (const LiveRange& range : live) {
    const uint64_t begin = range.address.value();
    const uint64_t end = begin + range.size.value();
    auto window = std::upper_bound(
        windows.begin(), windows.end(), begin,
        [](uint64_t address, const Window& w) { return address < w.end; });
    for (; window != windows.end() && window->address < end; ++window) {
      const uint64_t from = std::max(begin, window->address);
      const uint64_t to = std::min(end, window->end);
      const uint64_t offset = window->offset + (from - window->address);
      AddRequested(offset, offset + (to - from), &map);
    }
  }
  return map;
}

FoldedPageMap FoldPageMap(const PageMap& map, uint64_t pages, uint64_t cells) {
  FoldedPageMap folded;
  folded.pages_per_cell = (pages + cells - 1) / cells;
  const uint64_t per_cell = folded.pages_per_cell;
  for (uint64_t first = 0; first < pages; first += per_cell) {
    const uint64_t end =
        std::min<uint64_t>(first + per_cell, map.requested.size());
    uint64_t held = 0;
    uint64_t requested = 0;
    for (uint64_t page = first; page < end; ++page) {
      if (map.requested[page] == PageMap::kNotHeld) continue;
      ++held;
      requested += static_cast<uint64_t>(map.requested[page]);
    }
    folded.percent.push_back(
        held == 0 ? -1 : Percent(requested, held * PageMap::kPage.value()));
    folded.held_percent.push_back(Percent(held, per_cell));
  }
  return folded;
}

}  // namespace quire
