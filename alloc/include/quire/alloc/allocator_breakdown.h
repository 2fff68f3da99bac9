// What a DeviceAllocator's memory is used for, by size class, stream and owner.
//
// Where AllocatorStatistics are totals that can be read at any time, these are
// counted by a walk. Like them they are declared once, here: X(name, what it
// means), bytes or counts as uint64_t.

#ifndef QUIRE_ALLOC_ALLOCATOR_BREAKDOWN_H_
#define QUIRE_ALLOC_ALLOCATOR_BREAKDOWN_H_

#include <cstdint>
#include <vector>

#include "quire/alloc/units.h"

namespace quire {

// Of each size class that has slabs, and of all that is no slab, whose
// slot_size is 0: large allocations, and the memory between them.
//
// mapped = live + cached + cooling + slack, in each row. Over all rows the sums
// are those of AllocatorStatistics.
#define QUIRE_SIZE_CLASS_STATISTICS(X)                                   \
  X(slot_size, "bytes of each slot; 0: of no one size")                  \
  X(slabs, "slabs that exist now; what was meshed into one counts once") \
  X(live_allocations, "allocations not yet freed")                       \
  X(requested_bytes, "sum of the sizes asked for by these")              \
  X(live_bytes, "the same with rounding")                                \
  X(cached_bytes, "mapped and free, kept for re-use, by threads too")    \
  X(cooling_bytes, "freed, but a stream may still be using it")          \
  X(slack_bytes, "the ends of slabs")                                    \
  X(mapped_bytes, "pages, each once, as far as they are these slabs'")

// Of each stream that anything live was allocated for, or that anything was
// freed on which is not free for all yet.
#define QUIRE_STREAM_STATISTICS(X)                             \
  X(live_allocations, "allocated for it and not yet freed")    \
  X(requested_bytes, "sum of the sizes asked for by these")    \
  X(live_bytes, "the same with rounding")                      \
  X(thread_cached_bytes, "in caches of threads, for it alone") \
  X(cooling_bytes, "freed on it, which may still be using it") \
  X(shared_cooling_bytes, "the same of it and others: counted at each")

// Of each owner that has memory of the allocator. By itself: what those below
// it have is theirs.
#define QUIRE_OWNER_USE_STATISTICS(X)                                 \
  X(live_allocations, "allocations not yet freed")                    \
  X(requested_bytes, "sum of the sizes asked for by these")           \
  X(live_bytes, "the same with rounding")                             \
  X(cached_bytes, "mapped and free, kept for re-use, by threads too") \
  X(cooling_bytes, "freed, but a stream may still be using it")       \
  X(slack_bytes, "the ends of slabs")                                 \
  X(mapped_bytes, "pages mapped for it: the sum of the four above")   \
  X(slabs, "slabs that exist now")                                    \
  X(asleep_bytes, "of the mapped, what sleeps: it has no pages now")  \
  X(graph_pool_bytes, "of the mapped, what stays for graphs")

#define QUIRE_DECLARE_STATISTIC(name, help) uint64_t name = 0;

struct SizeClassStatistics {
  QUIRE_SIZE_CLASS_STATISTICS(QUIRE_DECLARE_STATISTIC)

  // As of AllocatorStatistics.
  double internal_fragmentation() const;
  double external_fragmentation() const;
};

struct StreamStatistics {
  // StreamId(): none, and those beyond the first 63 of an allocator, whose
  // slots do not tell them apart.
  StreamId stream;
  QUIRE_STREAM_STATISTICS(QUIRE_DECLARE_STATISTIC)
};

struct OwnerUseStatistics {
  OwnerId owner;
  QUIRE_OWNER_USE_STATISTICS(QUIRE_DECLARE_STATISTIC)

  double internal_fragmentation() const;
  double external_fragmentation() const;
};

#undef QUIRE_DECLARE_STATISTIC

struct AllocatorBreakdown {
  // Of the fields above.
  static constexpr uint32_t kVersion = 1;

  std::vector<SizeClassStatistics> classes;  // by slot size, 0 last
  std::vector<StreamStatistics> streams;     // by id
  std::vector<OwnerUseStatistics> owners;    // by id
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATOR_BREAKDOWN_H_
