// The books of pages that lie under slots of several regions.
//
// Regions count slots. Where they share pages there are more slots than pages,
// and a slot that one region has to spare frees nothing while another one needs
// its page. Here stands, of each page that is or was shared, how many slots it
// has and what their regions make of them, and so by how much the sums over all
// regions are above the numbers of pages.
//
// What regions share is the beginning of their parts: rows from token 0 on. So
// a region's slots on the books are the first ones of each part (SharedSlots,
// which the region keeps). They are entered when they become shared and stay
// until the region gives them back. Update follows the region: to be called
// whenever it was parked or taken, or its tokens in use or its pages became
// fewer.
//
// Who gave a page up may still read it, with kernels that run on: while others
// have it, the fences of those stand here, since nobody may write the page
// before they are complete.
//
// Costs: O(the region's slots on the books), Update O(1) while a sequence uses
// all of them. Not thread-safe: the cache's state lock guards it.

#ifndef QUIRE_PAGING_SHARED_PAGES_H_
#define QUIRE_PAGING_SHARED_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

class KvRegion;
class RegionGeometry;

// A region's slots on the books, as they stand there.
struct SharedSlots {
  struct Part {
    std::vector<PageHandle> pages;  // of slots from 0 on
    // When each was entered: rows stay as they are as long as this does.
    std::vector<uint64_t> stamps;
    size_t needed = 0;  // the first so many
  };
  std::vector<Part> parts;  // by group
  bool parked = false;
  bool all_needed = false;
  uint64_t end_token = 0;  // rows from here on lie in no page on the books
};

class SharedPages {
 public:
  // `geometry` outlives it.
  explicit SharedPages(const RegionGeometry* geometry) : geometry_(geometry) {}

  // Slots of the group from 0 on, and what lies under them.
  void Enter(KvRegion* region, uint32_t group,
             std::span<const PageHandle> pages);
  void Update(KvRegion* region);
  // Takes the group's slots from `first` on, or all slots of the region, off
  // the books.
  void Strike(KvRegion* region, uint32_t group, size_t first);
  void Strike(KvRegion* region);

  // Pages that slept have other handles now: of a region's slots, and then,
  // when all regions were told, of the books.
  using NewHandles = absl::flat_hash_map<PageHandle, PageHandle>;
  static void Rename(const NewHandles& handles, KvRegion* region);
  void Rename(const NewHandles& handles);

  // Whether a page under a slot of the group from `first` on lies elsewhere
  // too.
  bool AnyShared(const KvRegion& region, uint32_t group, size_t first) const;
  // The fences, not known to be complete, under which others gave up pages that
  // lie under the group's slots from `first` on.
  std::vector<Fence> LateReaders(const KvRegion& region, uint32_t group,
                                 size_t first) const;
  // The group's first slots whose pages lie elsewhere too.
  size_t SharedFirst(const KvRegion& region, uint32_t group) const;
  // The group's first slots whose pages others need: without this region they
  // would be no more free than with it.
  size_t NeededElsewhere(const KvRegion& region, uint32_t group) const;
  // The same over all groups.
  uint64_t NeededElsewhere(const KvRegion& region) const;

  // By how much sums of slots exceed the number of pages.
  struct Excess {
    uint64_t admitted = 0;  // slots of regions that sequences have
    uint64_t parked = 0;    // slots of others, pages of sequences apart
    uint64_t spare = 0;     // spare slots, pages that are needed apart
    friend bool operator==(const Excess&, const Excess&) = default;
  };
  const Excess& excess() const { return excess_; }

  // Of one page: slots in all, those of regions that sequences have, and those
  // that these need.
  struct Uses {
    uint64_t slots = 0;
    uint64_t admitted = 0;
    uint64_t needed = 0;

    Excess GetExcess() const;
  };

 private:
  const Uses& UsesOf(PageHandle page) const {
    return pages_.find(page)->second;
  }
  // Adds the slots of a part from `first` on to their pages' uses, or takes
  // them away.
  void Count(const SharedSlots& slots, const SharedSlots::Part& part,
             size_t first, bool add);
  void Settle(SharedSlots* slots) const;
  // The part keeps its first slots, as many as that. The others' pages may be
  // read until `fence` completes.
  void Cut(SharedSlots::Part* part, size_t slots, const Fence& fence);

  const RegionGeometry* const geometry_;
  absl::flat_hash_map<PageHandle, Uses> pages_;
  // Of pages on the books: at most one for each set of streams.
  absl::flat_hash_map<PageHandle, std::vector<Fence>> late_;
  Excess excess_;
  uint64_t last_stamp_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SHARED_PAGES_H_
