// The memory of one owner: its slabs, its large ranges, and the accounts of
// both.
//
// Knows what each byte that is mapped for the owner is used as, and nothing of
// streams: who may have a cooling block, and when it is free, is for the caller
// to know. Owners share no page, so that what one has can be counted, limited,
// put to sleep and given back without looking at another.
//
// A small request takes a slot from a slab of its class; slabs with free slots
// stand in the class's list. When nothing is left of a slab it is parked: a
// mapped range that serves large requests and slabs of every class alike. The
// first empty slab of each class stays, so that one slot that comes and goes
// does not make a slab each time. A large request takes a parked range that
// fits well, else any pages side by side, its ends on pages that it shares with
// its neighbours (SeamPacker).
//
// Accounts, in bytes of physical pages: mapped = held + free + cooling + slack.
// Held is what callers and the caches of threads have, in slots and large
// ranges; slack is the ends of slabs and the gaps of seam pages.
//
// O(1), but for parked ranges, which are found in O(log ranges), seams
// (SeamPacker), and making a slab, which is O(slots). Guarded by the
// allocator's lock. Calls DeviceMemory to make and release ranges, with
// functions that ask no reclaimer and wait for nothing.

#ifndef QUIRE_ALLOC_OWNER_HEAP_H_
#define QUIRE_ALLOC_OWNER_HEAP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/mesh_planner.h"
#include "alloc/range_cache.h"
#include "alloc/seam_packer.h"
#include "alloc/size_classes.h"
#include "alloc/span.h"
#include "alloc/span_table.h"
#include "alloc/stream_free_list.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

struct HeapAccounts {
  uint64_t mapped_bytes = 0;
  uint64_t held_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t cooling_bytes = 0;
  uint64_t slack_bytes = 0;
  uint64_t slabs = 0;
};

// What went through the heap itself; caches of threads count for themselves.
struct AllocationCounters {
  int64_t requested_bytes = 0;  // below 0: allocated through a cache
  int64_t live_bytes = 0;
  uint64_t allocations = 0;
  uint64_t frees = 0;

  AllocationCounters& operator+=(const AllocationCounters& other) {
    requested_bytes += other.requested_bytes;
    live_bytes += other.live_bytes;
    allocations += other.allocations;
    frees += other.frees;
    return *this;
  }
};

// Of all heaps of an allocator.
struct MappedTotal {
  uint64_t bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t made_bytes = 0;  // ever

  void UpdatePeak() { peak_bytes = std::max(peak_bytes, bytes); }
};

class OwnerHeap {
 public:
  // Everything must outlive the heap. Slots are handed out in an order that
  // depends on `seed`. The ranges of spans that were not released are the
  // caller's to give back.
  OwnerHeap(OwnerId owner, DeviceMemory* memory, const SizeClasses* classes,
            SpanTable* spans, MappedTotal* total, uint64_t seed);

  OwnerId owner() const { return owner_; }
  // Its pages are gone until it wakes up: nothing of it may be handed out.
  // Spans and accounts stay as they are, as if it were mapped.
  bool asleep() const { return asleep_; }
  // A heap that wakes up has other pages under its spans.
  void SetAsleep(bool asleep);
  // Graphs use its memory whenever they are launched: every page stays where it
  // is, whatever is free of it. Nothing of it is counted as reclaimable.
  bool kept_for_graphs() const { return kept_for_graphs_; }
  void set_kept_for_graphs(bool kept) { kept_for_graphs_ = kept; }
  // O(1).
  HeapAccounts accounts() const;
  AllocationCounters& counters() { return counters_; }
  const AllocationCounters& counters() const { return counters_; }
  // Pages of spans that nobody holds any of.
  uint64_t reclaimable_pages() const {
    return kept_for_graphs_ ? 0 : reclaimable_pages_ + seams_.idle_pages();
  }
  // Those that no use is left of: parked ranges and empty slabs.
  uint64_t free_pages() const { return kept_for_graphs_ ? 0 : free_pages_; }
  // What slabs with held slots have beside these: only moving them frees it.
  uint64_t pinned_bytes() const;
  // The most that a request can have without a page: a slot that is free or
  // cooling, or room between large allocations.
  Bytes LargestRoom() const;
  const RangeCache& parked() const { return parked_; }

  // What was freed on streams and may still be in use there. In order of
  // stream.
  using FreeLists = std::vector<std::unique_ptr<StreamFreeList>>;
  const FreeLists& free_lists() const { return free_lists_; }
  void DropEmptyFreeLists();
  // Null where nothing that was freed on the stream is cooling.
  StreamFreeList* FindFreeList(StreamId stream);
  StreamFreeList* MakeFreeList(StreamId stream);

  // ---- Taking: the block is held ----
  // Its record says whether it inherits (SlotRecord).
  // A free slot of a slab that exists, at a multiple of `alignment`.
  std::optional<Block> TakeSlot(int size_class,
                                Bytes alignment = kDefaultAlignment);
  // The same, beside a held slot of the class where one is free there. Who
  // takes many then shares few cache lines of records with other threads.
  std::optional<Block> TakeSlotNear(Block held);
  // A slot of a new slab on a parked range that suits its class.
  std::optional<Block> TakeSlotOfNewSlab(int size_class);
  // How much longer than a request of `bytes` a range may be that serves it.
  uint64_t LargestExcess(uint64_t bytes) const;
  // A parked range that is not too long for `bytes`.
  Span* FindParked(uint64_t bytes, Bytes alignment) const;
  Block TakeParked(Span* span);
  // A slot, or a large block, that cools, for the stream it was freed on.
  void Revive(Block block);
  // New ranges, from prepared pages only (DeviceMemory::TryMakeRange). AddSlab
  // makes a slab of `pages` pages, its class's number or fewer.
  absl::Status AddSlab(int size_class, uint64_t pages);
  // The bytes of the first slab of a class, which is less than a page; 0 where
  // there is one already, or slots are too large for that.
  uint64_t FirstSlabBytes(int size_class) const;
  absl::Status AddFirstSlab(int size_class);
  // For work on `stream`: of the whole pages that it takes, what is not
  // `prepared` may come from under ranges that were freed on that stream,
  // whether or not its work is done. Work to come on the stream follows it
  // anyway, so a page may lie under its new address at once; under the old one
  // it stays until the fence has completed. *missing: the prepared pages that
  // it was short of.
  absl::StatusOr<Block> AddLarge(uint64_t bytes, Bytes alignment,
                                 StreamId stream, uint64_t prepared,
                                 uint64_t* missing);
  // What AddLarge would take now.
  SeamPlan PlanLarge(uint64_t bytes, Bytes alignment) const;

  // ---- Giving back ----
  // A held block cools. A slot that a thread has cached is held.
  void Cool(Block block);
  // A held block becomes free. Its span may be parked.
  void Free(Block block);
  // The same for one that cools.
  void FinishCooling(Block block);
  // What stays although it is empty. Where few are live of each class, classes
  // that take the same pages from one another, over and over, would call the
  // driver all the time: a class whose only slab was taken and made again some
  // times in a row, each time soon, keeps it from the others.
  enum class Keep { kNothing, kComebacks };
  // Gives parked ranges and empty slabs to the pool, which cool until `fence`
  // is complete, until these make `wanted` pages, or none is left. Returns the
  // pages given.
  uint64_t ReleaseFree(uint64_t wanted, Keep keep = Keep::kNothing,
                       const Fence& fence = Fence());
  // Gives parked ranges to the pool that end within pages. They stand in the
  // way of others that may: without them new ends fit better, and what they
  // hold is little.
  void ReleaseSeams(const Fence& fence = Fence());
  // Gives a span to the pool, whose cooling blocks are over once `fence` is
  // complete. REQUIRES: nothing of it is held, and it is in no list of the
  // caller.
  void Release(Span* span, const Fence& fence);
  // A guest of a meshed slab goes, and its addresses once `fence` is complete.
  // REQUIRES: as for Release; its host goes as well, or nothing of it is left.
  void DropGuest(Span* guest, const Fence& fence);
  // A large block keeps its first `bytes`; the pages behind go to the pool once
  // `fence` is complete.
  void Shrink(Span* span, uint64_t bytes, const Fence& fence);
  // Frees the ends of released ranges whose fences have completed.
  void PollEndings();

  // ---- owner_heap_relocate.cc ----
  struct Move {
    Block from;
    Block to;  // held
  };
  // Empties slabs, those with the fewest slots first, whose blocks may all be
  // moved and fit into fuller slabs of their class. What is left of a class, if
  // it is much less than a page, goes to a slab of just that size.
  std::vector<Move> PlanRelocation(
      const RelocationLimits& limits,
      const std::function<bool(Block)>& is_movable);

  // ---- owner_heap_estimate.cc ----
  // A slab as a mesh would leave it.
  struct MeshedSlab {
    uint64_t held = 0;
    uint64_t slots = 0;
    uint64_t pages = 0;
    bool movable = false;
  };
  struct MeshEstimate {
    uint64_t pages = 0;  // at least so many (PlanMeshQuickly)
    // By size class; no slabs that are empty, or that compaction leaves alone.
    std::vector<std::vector<MeshedSlab>> left;
  };
  // Nothing is changed, and the driver is not called. Asks of each live slot of
  // slabs to mesh whether it is pinned, and of each slab's slots whether they
  // are movable, up to the first that is not; O(spans + slots / 64) besides.
  MeshEstimate EstimateMesh(Bytes smallest_slot,
                            const std::function<bool(Block)>& is_pinned,
                            const std::function<bool(Block)>& is_movable) const;
  // What a pass without limits frees where there are `*prepared` pages for
  // slabs of what is left, which those are taken from. O(slabs), and a copy of
  // the seams.
  uint64_t EstimateRelocation(const MeshEstimate& meshed,
                              uint64_t* prepared) const;

  // ---- owner_heap_mesh.cc ----
  // Lays slabs of slots of at least `smallest_slot` bytes over each other, so
  // that fewer pages hold what is live. Copies on `stream`, and waits for it.
  // What fails on the way is left as it is: an error means that the rest was
  // not tried, and kDataLoss that memory was lost (DeviceMemory::Remap).
  // REQUIRES: nothing uses the memory.
  absl::Status Mesh(Bytes smallest_slot, StreamId stream,
                    const std::function<bool(Block)>& is_pinned,
                    CompactionReport* report);

  // Checks itself and its spans, which it adds up.
  absl::Status CheckInvariants() const;

 private:
  struct ClassState {
    std::vector<Span*> partial;  // slabs with free slots; an empty one is first
    uint64_t idle_slots = 0;     // free or cooling, in all slabs of the class
    uint64_t empty_slabs = 0;
    uint64_t slabs = 0;
    // How often in a row its last slab was made again soon after it had been
    // released, and when, in slabs_made_, it was released and emptied last.
    uint32_t comebacks = 0;
    uint64_t released_at = 0;
    uint64_t emptied_at = 0;
  };
  // An end of a released range in a seam page, until its streams are done.
  struct Ending {
    Fence fence;
    SeamPiece piece;
  };

  // Where the list of the stream stands, or would.
  FreeLists::const_iterator FreeListPosition(StreamId stream) const;
  Span* AddSpan(AddressRange* range);
  // A slab with ends in seam pages.
  absl::StatusOr<Span*> AddSeamSlab(int size_class, uint64_t bytes);
  uint64_t RoomOf(const Span& span) const {
    return span.head.length + span.whole_pages * page_bytes_ + span.tail.length;
  }
  // As many slots as there is room for.
  void SetSlab(Span* span, int size_class);
  void DropSlab(Span* span);
  void SetLarge(Span* span, uint64_t bytes);
  void Park(Span* span);
  void Unpark(Span* span);
  // An empty slab stays as the first of its class, or is parked where there is
  // another one.
  void KeepOrPark(Span* slab);
  // Of a class with an empty slab: whether Keep::kComebacks keeps it.
  bool ComesBack(const ClassState& state) const;
  Block Take(Span* span) { return Take(span, span->free_slots.Take(&order_)); }
  // A slot that just left the free ones.
  Block Take(Span* span, uint32_t slot);
  uint64_t MappedPages() const { return span_pages_ + seams_.page_count(); }
  // After every change of pages: `before` is MappedPages() as it was.
  void CountMapped(uint64_t before);
  // The span begins, or ends, to be reclaimable.
  void BecomeIdle(const Span& span);
  void BecomeBusy(const Span& span);
  void AddPartial(Span* slab);
  void RemovePartial(Span* slab);
  void MoveToFront(Span* slab);
  static Span* HostOf(Span* span) {
    return span->host != nullptr ? span->host : span;
  }

  // ---- owner_heap_large.cc ----
  // A span with ends in seam pages and no slots yet. Its first whole pages are
  // the donated ones, the others prepared.
  absl::StatusOr<Span*> AddSeamSpan(uint64_t bytes, Bytes alignment,
                                    std::span<const PageHandle> donated);
  // Pages that a cooling range gives to another one of its stream: its last
  // whole ones.
  struct Donation {
    Span* donor;
    uint64_t pages;
    Fence fence;
  };
  std::vector<Donation> FindDonations(StreamFreeList* list, uint64_t wanted);
  void Donate(StreamFreeList* list, const Donation& donation);
  // A piece of a span that goes.
  void EndPiece(const SeamPiece& piece, const Fence& fence);

  // ---- owner_heap_mesh.cc ----
  // A slab, and what was laid over it before.
  struct HostSlab {
    Span* span;
    std::vector<Span*> guests;
  };
  // What compaction may look at, by size class and address: slabs of whole
  // pages of which something is held and nothing cools. What cools may still be
  // written to by a stream that nobody declared, so its slab stays where it is.
  // O(spans).
  std::vector<std::vector<HostSlab>> FindSettledSlabs() const;
  // Whether `wanted` holds for every slot that is live in the slab, guests
  // included; *live: how many those are, where it does.
  static bool AllLive(const HostSlab& slab,
                      const std::function<bool(Block)>& wanted, uint64_t* live);
  // Of the slabs, those of equal numbers of slots that are not full and have
  // none that is pinned.
  std::vector<const HostSlab*> FindMeshMembers(
      int size_class, const std::vector<HostSlab>& slabs,
      const std::function<bool(Block)>& is_pinned) const;
  static std::vector<LiveMask> MasksOf(
      const std::vector<const HostSlab*>& members);
  absl::Status MeshGroup(const std::vector<const HostSlab*>& group,
                         StreamId stream, CompactionReport* report);
  absl::Status CopyLive(const Span& from, const Span& to, StreamId stream,
                        CompactionReport* report) const;
  // The addresses of the member lie over the pages of `to`, or none of them
  // does.
  absl::Status RemapMember(const HostSlab& member, const Span& to);
  // So does the slab's place in the accounts.
  void BecomeGuest(const HostSlab& member, Span* host);
  absl::Status CheckGuest(const Span& span) const;

  // ---- owner_heap_relocate.cc ----
  // Whether all that is held of the slab may be moved: a slot that a thread has
  // cached meanwhile is in nobody's list.
  static bool IsMovable(const HostSlab& slab,
                        const std::function<bool(Block)>& is_movable);
  // Whether so many slots of a class are to get a slab of just their number.
  bool RemainderPays(int size_class, uint64_t slots) const;
  // That slab, in seam pages; null where it does not pay.
  Span* AddRemainder(int size_class, uint64_t slots);

  // ---- owner_heap_checks.cc ----
  // What a walk over all spans adds up.
  struct Sums {
    uint64_t span_pages = 0;
    uint64_t span_bytes = 0;
    uint64_t free = 0;
    uint64_t cooling = 0;
    uint64_t slack = 0;
    uint64_t slabs = 0;
    uint64_t reclaimable = 0;
    uint64_t free_pages = 0;
    uint64_t guests = 0;
    uint64_t hosted = 0;
    std::vector<uint64_t> idle_slots;
    std::vector<uint64_t> empty_slabs;
    std::vector<uint64_t> slabs_of;
  };
  absl::Status CheckSpan(const Span& span, Sums* sums) const;

  const OwnerId owner_;
  bool asleep_ = false;
  bool kept_for_graphs_ = false;
  DeviceMemory* const memory_;
  const uint64_t page_bytes_;
  const SizeClasses& classes_;
  SpanTable* const spans_;
  MappedTotal* const total_;
  SlotOrder order_;

  AllocationCounters counters_;
  std::vector<ClassState> states_;  // by size class
  RangeCache parked_;
  SeamPacker seams_;
  std::vector<Ending> endings_;
  FreeLists free_lists_;
  StreamFreeList* recent_list_ = nullptr;

  uint64_t span_pages_ = 0;  // whole pages of spans: no seam pages
  uint64_t span_bytes_ = 0;  // capacity of spans, ends in seam pages included
  uint64_t free_bytes_ = 0;
  uint64_t cooling_bytes_ = 0;
  uint64_t slab_slack_bytes_ = 0;
  uint64_t slabs_ = 0;
  uint64_t slabs_made_ = 0;  // ever
  uint64_t reclaimable_pages_ = 0;
  uint64_t free_pages_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_OWNER_HEAP_H_
