// What a KvCache keeps of its sequences and counts of its pages, and what its
// parts tell each other. Internal; no locks of its own: what guards each record
// is said where it is kept (kv_cache_impl.h).

#ifndef QUIRE_PAGING_KV_CACHE_RECORDS_H_
#define QUIRE_PAGING_KV_CACHE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "paging/kv_region.h"
#include "paging/prefix_index.h"
#include "paging/swapped_rows.h"
#include "quire/alloc/units.h"

namespace quire {

// A cache line: a step looks at each of those that it names.
struct KvSequence {
  std::unique_ptr<KvRegion> region;  // null: the slot is free
  uint32_t generation = 0;           // of the id; counts the releases
  uint32_t growth = 1;  // tokens of its last step that made it longer
  uint64_t length = 0;
  uint64_t step = 0;     // the last Step that named it
  uint64_t batch = 0;    // in which its last kernels may be
  bool stepped = false;  // since it was admitted
  int32_t priority = 0;  // of its prefix, until:
  uint64_t retain_until = UINT64_MAX;
  std::unique_ptr<SwappedRows> swapped;  // null: it is on the device
};
static_assert(sizeof(KvSequence) <= 64);

// A slot with the region of a sequence that begins.
struct TakenRegion {
  size_t slot;
  // Of the parked region that was adopted; 0: it had no pages.
  uint64_t stamp;
  KvRegion* region;
};

// A region that must hold `tokens` tokens.
struct PageDemand {
  KvRegion* region;
  uint64_t tokens;
  uint64_t previous = 0;  // what it held before
};

struct PlannedRun {
  KvRegion* region;
  PageRun run;
};

// Pages that a commit could take.
struct PageSupply {
  PageCount at_once;  // created, or taken from the cache
  PageCount in_all;   // with those that cool, and what reclaimers hold
};

// What a prompt finds: `tokens` of it are in `holder`, whose prefix is pinned.
struct PrefixHit {
  uint64_t tokens = 0;
  KvRegion* holder = nullptr;
  // The holder is parked and serves as the region of the prompt.
  bool adoptable = false;
  // Others have begun with so many of its tokens, found or not.
  uint64_t known = 0;
};

// Whether a region is kept for a prefix that no sequence has.
inline bool IsCached(const KvRegion& region) {
  return region.parked() && region.prefix() != PrefixEntryId();
}

// Page slots of regions, summed; where they are shared there are fewer pages.
struct SlotTotals {
  uint64_t admitted = 0;
  uint64_t parked = 0;
  uint64_t cached = 0;  // of those parked: of regions with a prefix
  uint64_t spare = 0;
  friend bool operator==(const SlotTotals&, const SlotTotals&) = default;

  PageCount needed() const { return PageCount(admitted + parked - spare); }

  void Add(const KvRegion& region) {
    const uint64_t committed = region.committed().value();
    (region.parked() ? parked : admitted) += committed;
    if (IsCached(region)) cached += committed;
    spare += region.spare().value();
  }
  void Subtract(const KvRegion& region) {
    const uint64_t committed = region.committed().value();
    (region.parked() ? parked : admitted) -= committed;
    if (IsCached(region)) cached -= committed;
    spare -= region.spare().value();
  }
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_RECORDS_H_
