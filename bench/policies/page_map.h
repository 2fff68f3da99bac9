// How full each page of a device's memory is: what fragmentation looks like.
//
// Physical memory is cut into pages of 2 MiB, in the order in which it lies on
// the device, and each is told how many of its bytes live allocations asked
// for. That is taken from the device's own mappings, whatever a policy says of
// itself: memory that is shared, stitched or moved counts where it is.

#ifndef QUIRE_BENCH_POLICIES_PAGE_MAP_H_
#define QUIRE_BENCH_POLICIES_PAGE_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/units.h"

namespace quire {

struct PageMap {
  static constexpr Bytes kPage = MiB(2);
  static constexpr int64_t kNotHeld = -1;

  // Of each page, from the beginning of the memory to the last one that is
  // held: the bytes in it that were asked for and are live, or kNotHeld. Never
  // more than kPage, unless allocations overlap.
  std::vector<int64_t> requested;
};

// Memory that somebody has.
struct LiveRange {
  DeviceAddress address;
  Bytes size;
};

// REQUIRES: the device's pages are multiples of PageMap::kPage. Parts of `live`
// that are not mapped count nowhere. O(n log n) of pages, mappings and `live`.
PageMap MapPages(const HostDriver& driver, std::span<const LiveRange> live);

// A map drawn with fewer cells: pages side by side in one.
struct FoldedPageMap {
  uint64_t pages_per_cell = 1;
  // Of what the pages of a cell hold, the part that is requested in percent;
  // 100 only where it is all, 0 only where it is nothing, -1 where none is
  // held.
  std::vector<int> percent;
  // Of the pages of a cell, those that are held, in percent alike.
  std::vector<int> held_percent;
};
// As many cells as `pages` and `cells` allow. REQUIRES: pages, cells > 0.
FoldedPageMap FoldPageMap(const PageMap& map, uint64_t pages, uint64_t cells);

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_PAGE_MAP_H_
