// The regions that no sequence has, still mapped, in the order of parking.
//
// The next sequence adopts the one with the least mapping work: best fit, and
// never the first that is idle, which may be empty while a full one waits. A
// region whose fence is not complete is not adoptable yet: a kernel of the last
// sequence may still read it. Regions that gave their pages back stay, as
// addresses to be re-used. Regions whose rows are kept for prompts to come
// stand here as well, and are adopted by name only.

#ifndef QUIRE_PAGING_PARKED_REGIONS_H_
#define QUIRE_PAGING_PARKED_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "paging/kv_region.h"
#include "quire/alloc/units.h"

namespace quire {

// Not thread-safe: the cache's state lock guards it.
class ParkedRegions {
 public:
  // A region and when it was parked.
  struct Entry {
    std::unique_ptr<KvRegion> region;  // null: none
    uint64_t stamp = 0;
  };

  // As the one parked last.
  void Park(std::unique_ptr<KvRegion> region);
  // As if it had never been taken.
  void PutBack(Entry entry);

  // Takes the adoptable region without a prefix that needs the fewest pages
  // mapped for `tokens` tokens; among equals the one with the fewest pages,
  // whose loss costs later sequences least; then the one parked last, whose
  // pages are warm. None where no region is adoptable. O(regions * groups).
  Entry TakeBestFit(uint64_t tokens);

  // Takes this one. REQUIRES: it is parked here.
  Entry Take(const KvRegion* region);

  // Takes the regions that were damaged while they were parked.
  std::vector<std::unique_ptr<KvRegion>> TakeDamaged();
  // Takes those without pages, but where a prefix is packed elsewhere.
  std::vector<std::unique_ptr<KvRegion>> TakeEmpty();
  // One of these whose pages have cooled; null: there is none.
  std::unique_ptr<KvRegion> TakeCold();

  // The least recently parked first.
  std::vector<KvRegion*> OldestFirst() const;

  size_t size() const { return regions_.size(); }

 private:
  template <typename Predicate>
  std::vector<std::unique_ptr<KvRegion>> TakeIf(Predicate predicate);

  std::map<uint64_t, std::unique_ptr<KvRegion>> regions_;  // by stamp
  uint64_t next_stamp_ = 1;
};

}  // namespace quire

#endif  // QUIRE_PAGING_PARKED_REGIONS_H_
