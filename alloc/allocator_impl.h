// The state of a DeviceAllocator and the paths through it.
//
//   allocator.cc          the fast paths, and the public face
//   allocator_allocate.cc allocations that miss
//   allocator_large.cc    those larger than any size class
//   allocator_free.cc     frees that miss
//   allocator_streams.cc  streams, by the index that records have
//   allocator_reclaim.cc  giving memory back: polling, Reclaim, Trim, the end
//   allocator_compact.cc  mesh, and what a policy decides
//   allocator_relocate.cc relocation passes, pins
//   allocator_sleep.cc    owners that sleep
//   allocator_graph.cc    memory that graphs keep
//   allocator_report.cc   statistics, verdicts, checks
//   allocator_breakdown.cc statistics by size class, stream and owner
//   allocator_sample.cc   who made allocations: traces and samples
//
// A small block is in one of four places: with a caller (live), in a cache of a
// thread, in a free list of the stream it was freed on (cooling), or free in
// its slab. A block that several streams use cools in shared_cooling_.
// OwnerHeap knows the blocks of one owner; ThreadCache those that one thread
// may hand out without a lock. A graph pool is a heap of its own beside that of
// its owner, without caches; its memory cools on the streams that are captured
// into it until the last capture ends.
//
// One lock guards everything but the caches. Under it no fence is waited for,
// no reclaimer asked and no hook called: pages are gathered before it is taken
// (DeviceMemory::Gather may call Reclaim, which takes it), and hooks are held
// back until it is released (HookDeferral). Mapping, recording an event and
// unmapping happen under it; all edit tables or queue work. The lock of
// DeviceMemory is inside this one.

#ifndef QUIRE_ALLOC_ALLOCATOR_IMPL_H_
#define QUIRE_ALLOC_ALLOCATOR_IMPL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/fork_guard.h"
#include "alloc/owner_heap.h"
#include "alloc/size_classes.h"
#include "alloc/span.h"
#include "alloc/span_table.h"
#include "alloc/thread_cache.h"
#include "alloc/thread_cache_index.h"
#include "quire/alloc/allocation_sampler.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

class DeviceAllocator::Impl final : public PageReclaimer,
                                    public ThreadCacheHome {
 public:
  // The table may be null where the host had no memory for it; then every
  // allocation says so.
  Impl(DeviceMemory* memory, const DeviceAllocatorOptions& options,
       absl::StatusOr<std::unique_ptr<SpanTable>> spans);
  ~Impl() override;

  bool in_forked_child() const { return fork_guard_.in_child(); }
  absl::Status CheckNotForked() const { return fork_guard_.Check(); }

  DeviceMemory* memory() const { return memory_; }
  // `caller`: where the public function returns to.
  absl::StatusOr<DeviceAddress> Allocate(Bytes size,
                                         const AllocateOptions& options,
                                         const void* caller);
  absl::Status Free(DeviceAddress address, StreamId stream);
  absl::Status RecordStream(DeviceAddress address, StreamId stream);
  bool Manages(DeviceAddress address) const;
  std::optional<AllocationInfo> Find(DeviceAddress address) const;
  std::optional<OwnerId> OwnerOf(DeviceAddress address) const;
  CompactionReport Trim(Bytes keep);
  absl::StatusOr<CompactionReport> Mesh(const QuiescentSection& section,
                                        const MeshOptions& options);
  absl::StatusOr<RelocationPass> BeginRelocation(
      const QuiescentSection& section, const RelocationLimits& limits);
  absl::StatusOr<CompactionReport> Compact(const QuiescentSection& section,
                                           CompactionPolicy* policy);
  absl::Status Pin(DeviceAddress address);
  absl::Status Unpin(DeviceAddress address);
  absl::StatusOr<SleepReport> Sleep(const QuiescentSection& section,
                                    OwnerId owner, const SleepOptions& options);
  absl::StatusOr<SleepReport> Wake(OwnerId owner, const WakeOptions& options);
  absl::StatusOr<GraphPoolId> CreateGraphPool(OwnerId owner);
  absl::Status BeginGraphCapture(GraphPoolId pool, StreamId stream);
  absl::Status EndGraphCapture(StreamId stream);
  absl::Status ReleaseGraphPool(GraphPoolId pool,
                                std::span<const StreamId> streams);
  AllocatorStatistics GetStatistics() const;
  AllocatorBreakdown CalculateStatistics() const;
  Bytes GetLargestPossible(OwnerId owner);
  std::vector<AllocationInfo> CalculateLiveAllocations() const;
  const AllocationSampler* sampler() const { return sampler_.get(); }
  absl::Status CheckInvariants() const;

  // PageReclaimer
  PageCount Reclaim(PageCount wanted) override;
  PageCount ReclaimCooling(PageCount wanted) override;
  bool AwaitsPartsOfPages() override;
  PageCount ReclaimFrom(OwnerId owner, PageCount wanted, bool cooling) override;
  absl::Status BeforeSleep(OwnerId owner) override;
  void AfterSleep(OwnerId owner, bool succeeded) override;
  void AfterWake(OwnerId owner) override;
  bool CanSleep(OwnerId owner) const override;
  PageCount Reclaimable() const override;
  CapturedPages GetCapturedPages() const override;
  CompactionEstimate EstimateCompaction() const override;
  std::string ReclaimerName() const override;

  // ThreadCacheHome
  void TakeCacheBack(ThreadCache* cache) override;

 private:
  struct Request {
    Bytes size;
    StreamId stream;
    OwnerId owner;
    Bytes alignment;
    bool movable = false;
  };
  // Freed by a stream while others were using it: nobody's before all are done.
  struct SharedCooling {
    Block block;
    std::optional<Fence> fence;  // not yet: one of the streams is captured
    std::vector<StreamId> streams;
  };
  struct GraphPool {
    OwnerHeap* heap;
    uint64_t captures = 0;  // that are open
  };
  struct Capture {
    StreamId stream;
    GraphPoolId pool;
  };
  // A pool whose graphs are gone, with memory that callers still have. What
  // becomes free of it waits for the streams as well.
  struct ReleasedPool {
    OwnerHeap* heap;
    std::vector<StreamId> streams;
  };
  // The last flush of the caches, and what the counters were then.
  struct FlushRecord {
    uint64_t made_bytes = 0;   // of mapped_
    uint64_t allocations = 0;  // through caches
    uint64_t slots = 0;        // that it brought
  };
  // What the record of a slot has no room for.
  struct SpecialBlock {
    std::vector<StreamId> streams;  // that were recorded
    bool moving = false;            // in a relocation pass
    bool sampled = false;           // sampler_ knows it
    uint64_t pins = 0;

    bool empty() const {
      return streams.empty() && !moving && !sampled && pins == 0;
    }
  };

  // ---- allocator_allocate.cc ----
  absl::StatusOr<DeviceAddress> AllocateSlow(Bytes size,
                                             const AllocateOptions& options,
                                             const void* caller)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<DeviceAddress> AllocateSmall(int size_class,
                                              const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A slot of a new slab in what is free in the heap, without a page that is
  // made.
  std::optional<Block> TakeSlotOfOwnPages(OwnerHeap* heap, int size_class,
                                          const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A slot of a new slab of `pages` pages; waits for pages that cool only if
  // `wait`.
  absl::StatusOr<DeviceAddress> AllocateInNewSlab(int size_class,
                                                  PageCount pages,
                                                  const Request& request,
                                                  bool wait)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a range that is to be made.
  struct RangeNeeds {
    PageCount pages;
    PageCount addresses;
    Bytes alignment;
    uint64_t missing = 0;  // of its pages
    bool wait = true;      // for pages that cool
    uint64_t spare = 0;    // of its pages: it does without, where limits say so
    bool large = false;    // so that free pages of its own serve it as they are
    uint64_t attempts = 0;  // that have failed
    OwnerHeap::Keep keep = OwnerHeap::Keep::kNothing;
    // A free slot of this class serves as well.
    std::optional<int> size_class;
  };
  // Makes a range in the heap, from what is there, and takes a block of it, or
  // says what it needs. Runs with the lock.
  using RangeAdder =
      absl::FunctionRef<absl::StatusOr<Block>(OwnerHeap*, RangeNeeds*)>;
  // Gathers what `add` needs until it succeeds, and publishes its block.
  absl::StatusOr<DeviceAddress> AddAndPublish(const Request& request,
                                              RangeAdder add)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes up to `wanted` pages of those that nobody has a use for ready to be
  // mapped, those of the heap first, so that the footprint follows what is
  // live. Returns how many are.
  uint64_t Recycle(uint64_t wanted, OwnerHeap* heap, OwnerHeap::Keep keep)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits a little for the pages that are missing, of those that cool, or for
  // what serves as well. Whether it is there.
  bool AwaitSoon(const RangeNeeds& needs, const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The error of a range that could not be made.
  absl::Status DescribeRefusal(PageCount pages, OwnerId owner,
                               const absl::Status& refusal) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether so many pages are there that nobody has a use for, and the owner
  // may have. A guess: what others would give back, or the driver not give at
  // all, is not known here.
  bool HasRoom(PageCount pages, OwnerId owner) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The most pages that the owner can have, once everybody has given up what
  // nobody holds, and this is no more counted for whoever had it.
  PageCount LargestCommit(OwnerId owner) ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory that is mapped already, no driver call.
  std::optional<Block> TakeSlot(OwnerHeap* heap, int size_class,
                                const Request& request, bool for_cache)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where there is nothing better: a free slot of this class or a larger one,
  // or bytes that nobody holds.
  std::optional<Block> TakeAnyRoom(OwnerHeap* heap, int least,
                                   const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Describes, counts and traces a block that was just taken: the error where
  // its owner has fallen asleep since the request was looked
  // at.
  absl::StatusOr<DeviceAddress> Publish(Block block, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Slots of the class for the thread's next requests, as far as they are
  // there, beside one that it was just given.
  void Refill(ThreadCache* cache, int size_class, Block held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The number tells the heap from others, in the order of its slots.
  OwnerHeap* AddHeap(OwnerId owner, uint64_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OwnerHeap* HeapOf(OwnerId owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The owner's, or that of the graph that its stream is captured into.
  OwnerHeap* HeapFor(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the heap has caches: graph pools have none.
  bool ServesItsOwner(const OwnerHeap& heap) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The cache of the calling thread, made at need: null where it is to have
  // none, or the stream does not exist or is captured.
  ThreadCache* CacheOf(OwnerHeap* heap, StreamId stream)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- allocator_streams.cc ----
  uint32_t IndexOfStream(StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A new one: its place in streams_.
  size_t AddStream(StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropStreamsThatAreGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_large.cc ----
  absl::StatusOr<DeviceAddress> AllocateLarge(const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<DeviceAddress> AllocateNewRange(uint64_t bytes,
                                                 const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes that nobody holds, mapped a second time where they do not lie side by
  // side: no page is made.
  std::optional<Block> TakeOrMap(OwnerHeap* heap, uint64_t bytes,
                                 const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many to make besides so many.
  uint64_t SparePages(const OwnerHeap& heap, uint64_t pages) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unmaps what is only mapped to be found again. Whether there was anything.
  bool DropAllDetours() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FreeAddresses() ABSL_LOCKS_EXCLUDED(mutex_);
  // Where a limit was lowered below what is in use, what nobody holds is not
  // handed out again but given back.
  void KeepToLimit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that nobody holds, and the stream's own that cools, goes to the pool.
  void GiveOwnPages(OwnerHeap* heap, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t TrimDetours(OwnerHeap* heap, bool all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Recycle for an allocation that can have the heap's own pages where they
  // lie: those that became free count, and stay.
  uint64_t RecycleForLarge(uint64_t wanted, OwnerHeap* heap)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_free.cc ----
  absl::Status FreeSlow(DeviceAddress address, StreamId stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Through the cache of the calling thread, where there is one and it will do.
  absl::Status FreeBlock(Block block, StreamId stream, ThreadCache* cache)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room in the cache. False where the block is none for it.
  bool FreeInto(ThreadCache* cache, Block block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The live block that starts at `address`, or why there is none.
  absl::StatusOr<Block> LocateLive(DeviceAddress address) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the list at need, after checking that the stream exists.
  absl::StatusOr<StreamFreeList*> GetFreeList(OwnerHeap* heap, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StreamFreeList* MakeFreeList(OwnerHeap* heap, StreamId stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes three calls of the driver.
  absl::Status CheckStream(StreamId stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it was checked before, though it may be gone since: it has a cache.
  bool WasThere(StreamId stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On those that still exist; kFailedPrecondition where one is captured.
  absl::StatusOr<Fence> RecordFence(std::span<const StreamId> streams) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those whose work a free must wait for: the one named, those recorded, and
  // where the block inherits, the one it was allocated for.
  std::vector<StreamId> StreamsOf(Block block, StreamId freed_on) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sorted, and without "no stream".
  static void KeepDistinct(std::vector<StreamId>* streams);
  // A live block cools, or is free at once where nothing is to be waited for.
  absl::Status CoolOnStream(Block block, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same with the streams that were recorded and those it inherits.
  absl::Status CoolOnStreams(Block block, StreamId freed_on)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CoolTogether(Block block, std::vector<StreamId> streams)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushCooling(OwnerHeap* heap, StreamFreeList* list, Block block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_compact.cc ----
  void TellBefore(CompactionLevel level) const ABSL_LOCKS_EXCLUDED(mutex_);
  void TellAfter(CompactionLevel level, const CompactionReport& report) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What nobody uses goes back to the driver.
  CompactionReport TrimToDriver() ABSL_LOCKS_EXCLUDED(mutex_);
  // What a policy decides by, as of `now`.
  CompactionFacts GatherFacts(std::chrono::steady_clock::time_point now)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- allocator_relocate.cc ----
  friend class RelocationPass::Impl;
  bool IsPinned(Block block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsMovable(Block block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends what is known of a special block that is so no more.
  void DropIfPlain(Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a pass: carries out what its actions say of its moves.
  CompactionReport FinishMoves(const RelocationPass::Impl& pass)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishMove(const RelocationMove& move, MoveAction action)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_graph.cc ----
  // Null where the stream is not captured.
  const Capture* FindCapture(StreamId stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A live block of a pool cools.
  absl::Status CoolForGraphs(Block block, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The streams that the pool of the heap was released on; null for others.
  const std::vector<StreamId>* ReleasedOn(const OwnerHeap& heap) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the heaps of released pools that nothing is left in.
  void DropReleasedPools() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_reclaim.cc ----
  // What threads have cached goes to the heaps, where it is free for everybody
  // or cools. Returns whether there was anything.
  bool FlushCaches() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same where that is cheap beside the pages that were made since the last
  // time: threads that grow must not empty each other's caches for every page.
  bool FlushCachesNowAndThen(Bytes about_to_make) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same for the slots of one class, of caches that have many.
  bool FlushClass(const OwnerHeap& heap, int size_class) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives free pages to the pool until at most `keep` bytes are cached. Returns
  // how many.
  PageCount TrimToPool(Bytes keep) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t CachedAllocations() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t CachedByThreads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of one cache, half of what it has or all: how many slots. REQUIRES: its
  // thread is the calling one, has ended, or is stopped.
  uint64_t DrainCache(ThreadCache* cache, bool half) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Slots that were drained from the cache.
  void PutBack(const ThreadCache& cache,
               std::span<const CachedSlot> slots) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records events for what was freed without one, as far as the driver does.
  void CloseBatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A cooling block becomes free, that was freed on `stream`, or on several.
  void FinishCooling(Block block, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees what has cooled, without blocking.
  void Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that was freed, as far as it can be known without waiting.
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same before so many pages are made; of what threads have cached, only
  // where that is cheap beside them.
  void CollectFor(uint64_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using HeapFilter = std::function<bool(const OwnerHeap&)>;
  // Whether anything of these heaps cools that the driver can still speak for.
  bool CanCool(const HeapFilter& wanted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether waiting can free a slot of this class or a larger one: one cools on
  // a stream that the driver can still speak for.
  bool CanAwaitSlot(const OwnerHeap& heap, int least) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ReleaseFree(uint64_t wanted, OwnerHeap* first,
                       OwnerHeap::Keep keep = OwnerHeap::Keep::kNothing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Give memory that nobody holds to the pool while it cools.
  uint64_t ReleaseCooling(uint64_t wanted, const HeapFilter& wanted_heaps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ReleaseSharedRanges(uint64_t wanted, const HeapFilter& filter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ReleaseCoolingSlabs(uint64_t wanted, const HeapFilter& filter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A fence for every cooling slot of the slab and its guests, which leaves all
  // lists. Nullopt where the driver records none; they stay as they are then.
  std::optional<Fence> WithdrawSlab(const Span* slab,
                                    const std::vector<Span*>& guests)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_sleep.cc ----
  // Whether owners sleep, where that differs from those above them.
  using SleepMarks = absl::flat_hash_map<OwnerId, bool>;
  // A sleep that is under way, and the marks before it.
  struct PendingSleep {
    OwnerId owner;
    SleepMarks before;
  };
  bool IsAsleep(OwnerId owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAwake(OwnerId owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The owner, and all below it.
  void MarkAsleep(OwnerId owner, bool asleep)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RestoreMarks(OwnerId owner, const SleepMarks& before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropMarks(OwnerId owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyMarks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why nothing of the owner can be put to sleep now.
  absl::Status CheckCanSleep(OwnerId owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until nothing of these heaps cools in pages that are to sleep.
  absl::Status AwaitCooling(const std::vector<OwnerHeap*>& heaps)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the owner or below it, and not asleep yet.
  bool IsToSleep(const OwnerHeap& heap, OwnerId owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees a block of a heap that is asleep.
  void FreeAsleep(Block block, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes back a block that was just taken from a heap that is asleep, and says
  // so.
  absl::Status RefuseAsleep(Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_report.cc ----
  // Counts and traces a failure; makes a verdict of what was for lack of
  // memory.
  absl::Status Fail(const Request& request, const absl::Status& cause)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The pool's verdict, with what the allocator alone knows.
  OutOfMemoryVerdict Diagnose(const Request& request,
                              OutOfMemoryVerdict verdict)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the pages that the heap can give up, those that nothing keeps but work
  // that ends by itself: none of what cools where a stream that is captured has
  // a part in it. O(streams and blocks that cool).
  uint64_t AwaitablePages(const OwnerHeap& heap) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The error for a request above the pool's limit, else OK.
  absl::Status CheckAgainstLimit(const Request& request) const;
  void Trace(TraceAction action, OwnerId owner, DeviceAddress address,
             Bytes size, StreamId stream) const;
  // No owner: of all.
  void TraceCompaction(TraceAction action, std::optional<OwnerId> owner,
                       const CompactionReport& report) const;
  // Counts what goes through a heap, not through a cache.
  void CountAllocation(OwnerHeap* heap, uint64_t allocated, uint64_t requested)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountFree(OwnerHeap* heap, uint64_t allocated, uint64_t requested)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static AllocationCounters CountersOf(const ThreadCache& cache);
  // By heaps and caches.
  AllocationCounters CountAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The peak of requested bytes up to now. Exact where one thread allocates on
  // one stream; else at most the sum of the peaks of each.
  void UpdatePeak() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t RequestedOf(Block block) const;
  AllocationInfo InfoOf(Block block) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After every mutation, in checking builds.
  void CheckAfterMutation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckAfterFastPath() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckInvariantsLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCooling() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckLive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_breakdown.cc ----
  AllocatorBreakdown CalculateStatisticsLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_sample.cc ----
  // Of what went the fast way, where somebody wants to know of it.
  void ObserveFastAllocation(DeviceAddress address, Bytes size,
                             const AllocateOptions& options, const void* caller)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets the sampler have a look at a new allocation, and at its callers.
  void Sample(DeviceAddress address, Bytes size, const AllocateOptions& options,
              const void* caller) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is known of a special block that is live no more.
  void ForgetSpecial(DeviceAddress address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ForkGuard fork_guard_;
  DeviceMemory* const memory_;
  const DeviceAllocatorOptions options_;
  const std::unique_ptr<AllocationSampler> sampler_;  // null: none is sampled
  // There is a trace or a sampler: one look on the fast path for both.
  const bool observed_;
  const SizeClasses classes_;
  const std::vector<uint64_t> slot_sizes_;  // by class
  const uint64_t cache_byte_limit_;
  const uint64_t number_;  // of this allocator, in this process
  const absl::Status table_error_;
  const std::unique_ptr<SpanTable> spans_;  // Find needs no lock, all else does
  const std::shared_ptr<ThreadCacheAnchor> anchor_;

  // Apart from what the fast paths read: a thread that misses writes to it.
  alignas(kSharingBytes) mutable Mutex mutex_;
  MappedTotal mapped_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<OwnerHeap>> heaps_ ABSL_GUARDED_BY(mutex_);
  std::vector<OwnerHeap*> heap_of_owner_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ThreadCache>> caches_ ABSL_GUARDED_BY(mutex_);
  // Streams by the index that records of slots have; none where it is unused.
  std::vector<StreamId> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> unused_stream_indices_ ABSL_GUARDED_BY(mutex_);
  // How many there are when those that are gone are looked for next.
  size_t streams_at_look_ ABSL_GUARDED_BY(mutex_) =
      SlotRecord::kOtherShortStream;
  absl::flat_hash_map<StreamId, size_t> index_of_stream_
      ABSL_GUARDED_BY(mutex_);
  std::vector<SharedCooling> shared_cooling_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, SpecialBlock> special_
      ABSL_GUARDED_BY(mutex_);  // by address
  SleepMarks sleep_marks_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingSleep> pending_sleeps_ ABSL_GUARDED_BY(mutex_);
  // Whether there are marks: others need not take the lock to see that nobody
  // sleeps. Publish looks again.
  std::atomic<bool> some_sleep_{false};
  std::map<GraphPoolId, GraphPool> graph_pools_ ABSL_GUARDED_BY(mutex_);
  uint64_t graph_pools_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ReleasedPool> released_pools_ ABSL_GUARDED_BY(mutex_);
  std::vector<Capture> captures_ ABSL_GUARDED_BY(mutex_);
  // Whether there are any: others need not take the lock to see that.
  std::atomic<bool> some_capture_{false};
  // A relocation pass is open, and has so many bytes of slots to move to.
  bool relocating_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // For the policy.
  uint64_t failures_at_compaction_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> last_compaction_
      ABSL_GUARDED_BY(mutex_);
  // Allocations and frees when Compact was last called, and since when there
  // have been so many.
  uint64_t operations_at_compaction_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> idle_since_
      ABSL_GUARDED_BY(mutex_);
  uint64_t failed_allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t peak_requested_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable FlushRecord last_flush_ ABSL_GUARDED_BY(mutex_);
  mutable uint64_t mutations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATOR_IMPL_H_
