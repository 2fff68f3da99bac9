// The memory of one owner: its slabs, its large ranges, and the accounts of
// both.
//
// Knows what each byte that is mapped for the owner is used as, and nothing of
// streams: who may have a cooling block, and when it is free, is for the caller
// to know. Owners share no page, so that what one has can be counted, limited,
// put to sleep and given back without looking at another.
//
// Everything lies in the heap's Arena. A large request takes bytes that nobody
// holds: in one run where there is one, else by a detour. A small request takes
// a slot from a slab of its class, which has pages of its own; slabs with free
// slots stand in the class's list. When nothing is left of a slab its pages are
// free for everything else. The first empty slab of each class stays, so that
// one slot that comes and goes does not make a slab each time.
//
// Accounts, in bytes of physical pages: mapped = held + free + cooling + slack.
// Held is what callers and the caches of threads have, in slots and large
// allocations; slack is the ends of slabs.
//
// O(1), but for bytes that nobody holds, which are found in O(log runs),
// detours (O(runs)), and making a slab, which is O(slots); and O(pages) where
// pages are taken or given back. Guarded by the allocator's lock. Calls
// DeviceMemory with functions that ask no reclaimer and wait for nothing.

#ifndef QUIRE_ALLOC_OWNER_HEAP_H_
#define QUIRE_ALLOC_OWNER_HEAP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/arena.h"
#include "alloc/detour_planner.h"
#include "alloc/joined_runs.h"
#include "alloc/mesh_planner.h"
#include "alloc/piece.h"
#include "alloc/run_set.h"
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

// How a large request would be served.
struct LargePlan {
  uint64_t bytes = 0;
  Bytes alignment;
  StreamId stream;
  // Bytes that are there, in the order in which they would be mapped.
  Pieces pieces;
  // Pages that have to be made first, and where, if that is not all the same.
  uint64_t new_pages = 0;
  uint64_t grow_at = 0;
  // Pages of addresses that it takes, side by side.
  uint64_t addresses = 0;
};

class OwnerHeap {
 public:
  // Everything must outlive the heap. Slots are handed out in an order that
  // depends on `seed`. What was not given back is by ReleaseAll.
  OwnerHeap(OwnerId owner, DeviceMemory* memory, const SizeClasses* classes,
            SpanTable* spans, MappedTotal* total, uint64_t seed);
  ~OwnerHeap();

  OwnerId owner() const { return owner_; }
  // Its pages are gone until it wakes up: nothing of it may be handed out.
  // Spans and accounts stay as they are, as if it were mapped.
  bool asleep() const { return asleep_; }
  void set_asleep(bool asleep) { asleep_ = asleep; }
  // Graphs use its memory whenever they are launched: every page stays where it
  // is, whatever is free of it. Nothing of it is counted as reclaimable.
  bool kept_for_graphs() const { return kept_for_graphs_; }
  void set_kept_for_graphs(bool kept) { kept_for_graphs_ = kept; }
  // O(1).
  HeapAccounts accounts() const;
  // The slots of slabs, whoever has them.
  uint64_t slot_bytes() const { return span_bytes_ - large_bytes_; }
  // The bytes that a slab may have slots in: those of its pieces.
  static uint64_t RoomOf(const Span& span);
  AllocationCounters& counters() { return counters_; }
  const AllocationCounters& counters() const { return counters_; }
  // Pages that nobody holds any of.
  uint64_t reclaimable_pages() const {
    return kept_for_graphs_ ? 0 : arena_.idle_pages();
  }
  // Those that no use is left of.
  uint64_t free_pages() const {
    return kept_for_graphs_ ? 0 : arena_.free_pages();
  }
  // What slabs with held slots have beside these: only moving them frees it.
  uint64_t pinned_bytes() const;
  // The most that a request can have without a page: a slot that is free or
  // cooling, or free bytes. O(runs).
  Bytes LargestRoom() const;

  // What was freed on streams and may still be in use there. In order of
  // stream.
  using FreeLists = std::vector<std::unique_ptr<StreamFreeList>>;
  const FreeLists& free_lists() const { return free_lists_; }
  void DropEmptyFreeLists();
  // Those that may still be using what nobody holds.
  void AppendStreams(std::vector<StreamId>* streams) const;
  // Null where nothing that was freed on the stream is cooling.
  StreamFreeList* FindFreeList(StreamId stream) const;
  StreamFreeList* MakeFreeList(StreamId stream);

  // ---- Taking: the block is held ----
  // Its record says whether it inherits (SlotRecord).
  // A free slot of a slab that exists, at a multiple of `alignment`.
  std::optional<Block> TakeSlot(int size_class,
                                Bytes alignment = kDefaultAlignment);
  bool HasFreeSlot(int size_class, Bytes alignment) const {
    return FindSlab(size_class, alignment) != nullptr;
  }
  // The same for the cache of a thread: where there is one, of a group of slots
  // (Span::group) that is all free, which the thread had best take as well. Two
  // threads with slots of one group each take up to twice as long for
  // everything.
  std::optional<Block> TakeSlotForCache(int size_class);
  // A thread has a cache of slots.
  void NoteThread(std::thread::id thread);
  // A free slot of the group of a held one.
  std::optional<Block> TakeSlotBeside(Block held);
  // A slot of a new slab on free pages side by side.
  std::optional<Block> TakeSlotOfNewSlab(int size_class, Bytes alignment);
  // A slot that cools, for the stream it was freed on.
  void Revive(Block slot);
  // From prepared pages only (DeviceMemory::TryMakeRange). AddSlab makes a slab
  // of `pages` pages, its class's number or fewer.
  absl::Status AddSlab(int size_class, uint64_t pages);
  // The bytes of the next slab of a class where it is to be less than a page, 0
  // where it is not. The first is, and, as long as one thread has caches, so
  // are a few more, each twice as long as the one before; except where slots
  // are too large for that, or are to be aligned to more than such a slab is.
  uint64_t SmallSlabBytes(int size_class, Bytes alignment) const;
  // Whether bytes for a slab of its own are to be had without a page.
  bool HasRoomFor(uint64_t bytes) const {
    return arena_.free_runs().largest() >= bytes;
  }
  absl::Status AddSmallSlab(int size_class, uint64_t bytes);

  // ---- owner_heap_large.cc ----
  // Of bytes that are mapped already, for work on `stream`: what was freed on
  // it may still be in use there, since work to come on the stream follows that
  // anyway.
  // `tidily`: only where no page comes to be in use in part thereby, by a
  // detour that is there, or where it fills more of such pages than it leaves.
  std::optional<Block> TakeLarge(uint64_t bytes, Bytes alignment,
                                 StreamId stream, bool tidily);
  // Whether much lies unused in pages of which a part is in use.
  bool IsUntidy() const;
  // How UsePlan and AddLarge would do it now.
  LargePlan PlanLarge(uint64_t bytes, Bytes alignment, StreamId stream) const;
  // REQUIRES: the plan needs no new page, and the heap is as it was planned
  // for.
  absl::StatusOr<Block> UsePlan(const LargePlan& plan);
  // The same for any plan. Makes what is missing, and `spare_pages` besides
  // where anything is, from prepared pages only.
  absl::StatusOr<Block> AddLarge(const LargePlan& plan, uint64_t spare_pages);
  // Detours that were made since pages were, for want of these.
  uint64_t detours_since_growth() const { return detours_since_growth_; }
  // Whether pages were made since then that no plan needed.
  bool has_spares() const { return has_spares_; }
  // The live large allocation that contains the address; null where there is
  // none.
  Span* FindLarge(DeviceAddress address) const;
  // Drops idle detours, the oldest first: those that are many beside the pages,
  // or all. Returns how many went.
  uint64_t TrimDetours(bool all, absl::FunctionRef<bool(StreamId)> may_record);

  // ---- Giving back ----
  // A held block cools in the list of the stream it was freed on. A slot that a
  // thread has cached is held. Of a large allocation only the bytes are left;
  // `noted` says whether the list is to remember it.
  void CoolIn(StreamFreeList* list, Block block, bool noted);
  // A held block cools on several streams: it is the caller's to remember.
  void Cool(Block block);
  // A held block becomes free.
  void Free(Block block);
  // The same for one that cools.
  void FinishCooling(Block block);
  // And for bytes that were in a list.
  void FinishCooling(const ByteRun& run);
  // What stays although it is empty. Where few are live of each class, classes
  // that take the same pages from one another, over and over, would call the
  // driver all the time: a class whose only slab was taken and made again some
  // times in a row, each time soon, keeps it from the others; from large
  // requests only where it is less than a page, of which it takes several, side
  // by side, to make one that is free.
  enum class Keep { kNothing, kSmallComebacks, kComebacks };
  // Empty slabs become free pages, until these are `wanted` more.
  void DissolveEmptySlabs(uint64_t wanted, Keep keep);
  // Gives free pages to the pool, which cool until `fence` is complete, until
  // these are `wanted`, or none is left. Returns the pages given.
  uint64_t ReleaseFree(uint64_t wanted, Keep keep = Keep::kNothing,
                       const Fence& fence = Fence());
  // Gives pages that cool in the list to the pool, the oldest first. Returns
  // how many.
  uint64_t ReleaseCooling(StreamFreeList* list, uint64_t wanted);
  // Gives what a span has to the pool, whose cooling blocks are over once
  // `fence` is complete. REQUIRES: nothing of it is held, and it is in no list
  // of the caller.
  void Release(Span* span, const Fence& fence);
  // A guest of a meshed slab goes, and its addresses once `fence` is complete.
  // REQUIRES: as for Release; its host goes as well, or nothing of it is left.
  void DropGuest(Span* guest, const Fence& fence);
  // Whether parts of pages wait for fences that can complete.
  bool IsEnding() const { return arena_.IsEnding(); }
  // Frees what waited for fences that have completed.
  void Poll() { arena_.Poll(); }
  // Gives all addresses back, under `fence`. The end: nothing else may follow.
  void ReleaseAll(const Fence& fence) { arena_.ReleaseAll(fence); }

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
  // the free runs.
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
  // Where the list of the stream stands, or would.
  FreeLists::const_iterator FreeListPosition(StreamId stream) const;
  // A slab with a free slot at a multiple of `alignment`; null: none has one.
  Span* FindSlab(int size_class, Bytes alignment) const;
  Span* AddSpan(uint64_t base, Pieces pieces, Detour* detour);
  void RemoveSpan(Span* span);
  // Free pages at home become a slab.
  Span* MakeSlab(int size_class, const Piece& pages);
  // A slab that may have parts of pages, by a detour of its own.
  absl::StatusOr<Span*> AddDetourSlab(int size_class, uint64_t bytes);
  uint64_t PagesOf(const Span& span) const {
    return span.detour != nullptr ? 0 : RoomOf(span) / page_bytes_;
  }
  // As many slots as there is room for.
  void SetSlab(Span* span, int size_class);
  // The bytes of an empty slab are free again.
  void Dissolve(Span* slab);
  // A slab is none any more for the accounts. What of it still cools is
  // nobody's from here on.
  void DropSlab(Span* span);
  // An empty slab stays as the first of its class, or goes where there is
  // another one.
  void KeepOrDissolve(Span* slab);
  // Of a class with an empty slab: whether Keep::kComebacks keeps it.
  bool ComesBack(const ClassState& state) const;
  Block Take(Span* span) { return Take(span, span->free_slots.Take(&order_)); }
  // A slot that just left the free ones.
  Block Take(Span* span, uint32_t slot);
  uint64_t GiveFreePages(uint64_t wanted, const Fence& fence);
  std::optional<Piece> FindFreePages(uint64_t wanted) const;
  // The span begins, or ceases, to be reclaimable, or empty.
  void BecomeIdle(const Span& span);
  void BecomeBusy(const Span& span);
  void BecomeEmpty(const Span& span);
  void BecomeUsed(const Span& span);
  void AddPartial(Span* slab);
  void RemovePartial(Span* slab);
  void MoveToFront(Span* slab);
  static Span* HostOf(Span* span) {
    return span->host != nullptr ? span->host : span;
  }

  // ---- owner_heap_large.cc ----
  // Whether nobody holds the bytes, and work on the list's stream may have
  // them.
  bool IsUsable(const Piece& piece, const StreamFreeList* list) const;
  bool IsTidy(uint64_t begin, uint64_t bytes, const StreamFreeList* list) const;
  // Where such bytes fill more of the pages in part use than they leave anew.
  std::optional<uint64_t> FindTidier(uint64_t bytes, Bytes alignment,
                                     const StreamFreeList* list) const;
  Block TakeAtHome(uint64_t begin, uint64_t bytes, StreamFreeList* list);
  // Takes such bytes. Whether any of them were in the list.
  bool TakeBytes(const Piece& piece, StreamFreeList* list);
  // The bytes are taken, and lie from `base` on.
  Block MakeLarge(uint64_t base, uint64_t bytes, Pieces pieces, Detour* detour,
                  bool inherits);
  // Where a run of one kind continues in one of the other: bytes side by side,
  // aligned, for which no single run has room.
  std::optional<uint64_t> FindJoined(uint64_t bytes, Bytes alignment,
                                     const StreamFreeList& list) const;
  // The most for which a plan finds enough, of what is free for all.
  uint64_t LargestDetour() const;
  // A run that `pages` behind it would make long enough: their address.
  std::optional<uint64_t> FindExtension(uint64_t bytes, uint64_t pages,
                                        Bytes alignment,
                                        const StreamFreeList* list) const;
  // A large allocation is none any more: its bytes are the caller's.
  Pieces Unmake(Span* span, StreamId last_stream);

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
  // That slab; null where it does not pay.
  Span* AddRemainder(int size_class, uint64_t slots);

  // ---- owner_heap_checks.cc ----
  // What a walk over all spans adds up.
  struct Sums {
    uint64_t span_bytes = 0;
    uint64_t rooms = 0;
    uint64_t free = 0;
    uint64_t cooling = 0;
    uint64_t slack = 0;
    uint64_t slabs = 0;
    uint64_t guests = 0;
    uint64_t hosted = 0;
    uint64_t live_large = 0;
    uint64_t large_bytes = 0;
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
  Arena arena_;
  // What the last plan was made of, and memory that plans use in turn.
  mutable JoinedRuns joined_;
  mutable DetourPlanner planner_;
  std::vector<ClassState> states_;          // by size class
  absl::btree_map<uint64_t, Span*> large_;  // by address
  FreeLists free_lists_;
  mutable StreamFreeList* recent_list_ = nullptr;  // that FindFreeList found

  uint64_t span_bytes_ = 0;     // capacity of spans
  uint64_t large_bytes_ = 0;    // of these, of large allocations
  uint64_t free_bytes_ = 0;     // of slots
  uint64_t cooling_bytes_ = 0;  // of slots, and of what Cool was told of
  uint64_t run_bytes_ = 0;      // in the lists of streams
  uint64_t slab_slack_bytes_ = 0;
  uint64_t slabs_ = 0;
  uint64_t slabs_made_ = 0;  // ever
  uint64_t detours_since_growth_ = 0;
  bool has_spares_ = false;
  // That had a cache first.
  std::thread::id thread_;
  bool has_threads_ = false;  // more than that one
};

}  // namespace quire

#endif  // QUIRE_ALLOC_OWNER_HEAP_H_
