// The device allocator: cudaMalloc's job, stream-ordered, on pages of one pool.
//
// Small requests are slots of size classes (at most 12.5 % internal waste) in
// slabs of one or more pages; large ones take any free pages, mapped side by
// side under fresh addresses, so page-level fragmentation does not exist, and
// share the pages where one ends and another begins. Freed memory is kept,
// still mapped, and re-used; its pages return to the pool when memory is short,
// when they are needed under other addresses, or when Trim is called. Owners
// share no page.
//
// What a thread freed on a stream it has again without a lock, a driver call or
// a look-up: see DeviceAllocatorOptions::thread_cache.
//
// Stream order: memory freed on a stream may be handed out again at once to the
// same stream, and to another one when the work queued before the free is done.
// Small frees share events (DeviceAllocatorOptions::fence_batch), so "before
// the free" may be as late as the last of them, or the moment memory is short.
//
// Metadata is on the host only; the allocator never reads or writes the memory
// that it hands out. Thread-safe. In a forked child every call is
// kFailedPrecondition, or says that there is nothing.

#ifndef QUIRE_ALLOC_ALLOCATOR_H_
#define QUIRE_ALLOC_ALLOCATOR_H_

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/allocator_breakdown.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/units.h"

namespace quire {

class AllocationSampler;
class QuiescentSection;

// Of one allocator, and of no other of the process. 0 names none.
using GraphPoolId = Id<struct GraphPoolIdTag, uint64_t>;

// What CUDA guarantees for cudaMalloc and what kernels rely on.
inline constexpr Bytes kDefaultAlignment{256};

struct AllocateOptions {
  // The stream that will use the memory first. REQUIRES: of the allocator's
  // device; StreamId() stands for "any stream, now": such memory never comes
  // from a free that is not complete yet.
  StreamId stream;
  OwnerId owner = kUnnamedOwner;
  // 1 to any power of two; below kDefaultAlignment it is raised to that.
  Bytes alignment = kDefaultAlignment;
  // A relocation pass may move it. Its free is slower, since the allocator
  // keeps a record of it.
  bool movable = false;
  // For leak reports, of what wraps this allocator: where the function that its
  // users call returns to (__builtin_return_address(0)), so that callers begin
  // with theirs. Null: with that of Allocate.
  const void* caller = nullptr;
};

// What is known of one live allocation.
struct AllocationInfo {
  DeviceAddress address;
  Bytes requested;
  Bytes allocated;  // with rounding to its class or to whole pages
  StreamId stream;
  OwnerId owner;
};

// Statistics are declared once, here: X(name, what it means). All are bytes or
// counts as uint64_t, and O(1) to read.
//
// Physical equation, checked: mapped = live + cached + cooling + slack, where
// live is what callers hold rounded up to its class or page, cached is
// mapped-but-free memory kept for re-use, cooling is known to be over only when
// the allocator next looks, and slack is what no request can have: the ends of
// slabs, and the gaps of pages that large allocations share.
#define QUIRE_ALLOCATOR_STATISTICS(X)                                  \
  X(requested_bytes, "sum of the sizes asked for by live allocations") \
  X(live_bytes, "the same with rounding to size classes and pages")    \
  X(cached_bytes, "mapped and free, kept for re-use")                  \
  X(cooling_bytes, "freed, but a stream may still be using it")        \
  X(slack_bytes, "mapped and unusable: ends of slabs and of ranges")   \
  X(mapped_bytes, "pages mapped for this allocator")                   \
  X(live_allocations, "allocations not yet freed")                     \
  X(peak_requested_bytes, "largest requested_bytes so far")            \
  X(peak_mapped_bytes, "largest mapped_bytes so far")                  \
  X(total_allocations, "calls of Allocate that succeeded")             \
  X(total_frees, "calls of Free that succeeded")                       \
  X(failed_allocations, "calls of Allocate that failed")               \
  X(slab_count, "slabs that exist now")                                \
  X(thread_cached_bytes, "of the cached, in the caches of threads")    \
  X(asleep_bytes, "of the mapped, what sleeps: it has no pages now")   \
  X(metadata_bytes, "host memory that describes slots and ranges")     \
  X(graph_pool_bytes, "of the mapped, what stays for graphs")

struct AllocatorStatistics {
  // Of the fields: raised with each that is added.
  static constexpr uint32_t kVersion = 3;

#define QUIRE_DECLARE_STATISTIC(name, help) uint64_t name = 0;
  QUIRE_ALLOCATOR_STATISTICS(QUIRE_DECLARE_STATISTIC)
#undef QUIRE_DECLARE_STATISTIC

  // (live - requested) / live: lost to rounding. 0 where nothing is live.
  double internal_fragmentation() const;
  // (mapped - live) / mapped: mapped and not in use. 0 where nothing is mapped.
  double external_fragmentation() const;
};

struct DeviceAllocatorOptions {
  // Told of allocations, frees and failures; null: nobody. Outlives the
  // allocator.
  EventTrace* trace = nullptr;
  // Told of compactions; null: nobody. Outlives the allocator.
  CompactionListener* listener = nullptr;
  // Slots of slabs are handed out in random order: this one.
  uint64_t seed = 1;
  // What was freed on one stream and not used there again gathers until it
  // comes to this much, or until others need it; then one event is recorded for
  // all of it. 0: each free records its own, and takes the lock to do so.
  Bytes fence_batch = GiB(1);
  // The most that a thread may keep, of what it freed on one stream for one
  // owner, to have it again without a lock; default: 4 GiB, and never more than
  // a quarter of the pool. Whoever is short of memory has it at once.
  std::optional<Bytes> thread_cache;
  // Of one allocation in so many bytes, on average, the callers are kept, for
  // leak reports and snapshots (AllocationSampler). Those, and their frees,
  // take the lock; the others pay a subtraction. 0: none is sampled, at no
  // cost.
  Bytes sample_interval;
};

class DeviceAllocator {
 public:
  // `memory` must outlive the allocator.
  static std::unique_ptr<DeviceAllocator> Create(
      DeviceMemory* memory, const DeviceAllocatorOptions& options = {});
  // Memory still allocated is given back to the pool, once the streams that it
  // was allocated for are done. REQUIRES: no stream is captured, and graphs
  // whose pools were not released have run to their ends.
  ~DeviceAllocator();

  // What it was made on.
  DeviceMemory* memory() const;

  // Allocate(0) gives a unique address that may not be dereferenced and must be
  // freed; it counts as one allocation of 0 requested bytes.
  // Errors: kInvalidArgument for an alignment that is no power of two;
  // kResourceExhausted with a verdict (verdict.h) for everything that cannot
  // be had, up to sizes of 2^64 - 1.
  absl::StatusOr<DeviceAddress> Allocate(Bytes size,
                                         const AllocateOptions& options = {});
  // Frees memory whose uses are all queued on `stream` (StreamId(): all done),
  // or on streams that were recorded. A stream that is destroyed afterwards has
  // done its work: destroying waits for it. kNotFound: one that never was.
  //
  //   the address is                         Free returns
  //   the start of what is live              OK, asleep or not
  //     that is pinned, or being moved       kFailedPrecondition
  //   inside of what is live                 kInvalidArgument
  //   in what was freed, whether its memory  kFailedPrecondition
  //     is kept, cools, sleeps or was given
  //     back (Trim)
  //   of another allocator, another runtime, kInvalidArgument
  //     the host; never handed out
  //
  // What was freed is known until its memory is in another use. Of pages that
  // the allocator has or had, what was never handed out but as a part of others
  // may count as freed. A failed free changes nothing.
  absl::Status Free(DeviceAddress address, StreamId stream = StreamId());
  // Adds a stream that uses the allocation: a later Free waits for it as well,
  // and nobody has the memory before all its streams are done. Errors as Free.
  absl::Status RecordStream(DeviceAddress address, StreamId stream);

  // Whether `address` lies in memory of this allocator, handed out or kept.
  // O(1), lock-free.
  bool Manages(DeviceAddress address) const;
  // Whose memory it is: of a live allocation's address the owner that it was
  // allocated for, of others that lie in memory of this allocator one that had
  // it. O(1), lock-free.
  std::optional<OwnerId> OwnerOf(DeviceAddress address) const;
  // The live allocation that contains `address`. Takes the lock. O(1) for
  // slots of slabs, O(log of the owner's large allocations) for those.
  std::optional<AllocationInfo> Find(DeviceAddress address) const;

  // Gives whole free pages back to the pool until at most `keep` bytes are
  // cached, or only parts of slabs are left. Moves nothing, waits for nothing.
  // DeviceMemory::Trim does the same and gives them on to the driver.
  CompactionReport Trim(Bytes keep = Bytes(0));

  // Lays slabs whose live slots do not overlap into one physical page and gives
  // the other pages back to the pool. No pointer changes. Copies what is live,
  // on a stream of its own, and returns when that is done; what threads freed
  // on streams that are not done yet stays where it is. `section` covers memory
  // that was allocated since it began, too. Errors: kFailedPrecondition where
  // the section is not open on this memory; the driver's, after which what was
  // not done is as it was.
  absl::StatusOr<CompactionReport> Mesh(const QuiescentSection& section,
                                        const MeshOptions& options = {});

  // Chooses movable allocations that stand in the way of getting pages back,
  // and places for them. Errors: kFailedPrecondition where the section is not
  // open on this memory, or another pass is. See RelocationPass.
  absl::StatusOr<RelocationPass> BeginRelocation(
      const QuiescentSection& section, const RelocationLimits& limits = {});
  // What the policy decides: trims, and meshes.
  absl::StatusOr<CompactionReport> Compact(const QuiescentSection& section,
                                           CompactionPolicy* policy);
  // A pinned allocation keeps its address and its physical pages: it is neither
  // moved nor meshed. Pins count. For memory that is registered with others
  // (NCCL, RDMA, another process). Errors as Free; Unpin of what is not pinned,
  // and Pin of what sleeps, are kFailedPrecondition.
  absl::Status Pin(DeviceAddress address);
  absl::Status Unpin(DeviceAddress address);

  // Takes all pages of the owner, and of those below it, away until it wakes
  // up, at the same addresses: DeviceMemory::Sleep, after what is free of the
  // owner was given back, so that only what is live, and what lies between, is
  // saved. While an owner sleeps, its memory can be freed, which touches
  // nothing, and found; Allocate for it is kFailedPrecondition. DeviceMemory's
  // own Sleep and Wake come to the same, and so do those of other allocators on
  // this memory; only the listener is the one of the allocator that is called.
  // Errors: those of DeviceMemory::Sleep, and kFailedPrecondition where memory
  // of the owner is pinned, it has a graph pool, or a relocation pass is open,
  // here or in another allocator.
  absl::StatusOr<SleepReport> Sleep(const QuiescentSection& section,
                                    OwnerId owner,
                                    const SleepOptions& options = {});
  // The owner and all below it, or a part of what sleeps. Errors, after which
  // it sleeps on: those of DeviceMemory::Wake.
  absl::StatusOr<SleepReport> Wake(OwnerId owner,
                                   const WakeOptions& options = {});

  // ---- Memory of graphs ----
  // A graph uses the addresses of its capture whenever it is launched, so what
  // was allocated for it must stay where it is. Memory that is allocated
  // between Begin- and EndGraphCapture for a stream that is captured comes from
  // a pool of its own, and all pages of that pool stay at their addresses until
  // the pool is released: they are nobody else's, whatever of them was freed.
  //
  // Graphs that share a pool use the same memory, each what those captured
  // before it had freed: they must be launched one after another, in the order
  // of their captures. Captures into one pool that are open at a time are parts
  // of one graph: streams that fork and join.
  //
  // Memory that was allocated for a graph is freed as all other, on any stream,
  // during the capture or after it. What is freed on a captured stream is that
  // stream's again at once, and for others of the pool when all captures into
  // it have ended; what is freed on another one, when that one is done.

  // The pages count as those of the owner, who must be awake and cannot sleep
  // before the release. Errors: kInvalidArgument for the owner,
  // kFailedPrecondition where it sleeps.
  absl::StatusOr<GraphPoolId> CreateGraphPool(OwnerId owner = kUnnamedOwner);
  // Until EndGraphCapture every Allocate for `stream`, by whatever thread and
  // for whatever owner, takes memory of the pool, and no event is recorded on
  // the stream: what else was freed on it waits until then. Call it before the
  // driver's capture begins, and EndGraphCapture after that has ended, well or
  // not. Other allocators that work with the stream must not be used with it
  // meanwhile. Errors, after which nothing has changed: kNotFound for the pool
  // or the stream, kInvalidArgument for StreamId(), kFailedPrecondition where
  // the stream is captured already; the driver's.
  absl::Status BeginGraphCapture(GraphPoolId pool, StreamId stream);
  // Error: kFailedPrecondition where the stream is not captured.
  absl::Status EndGraphCapture(StreamId stream);
  // The graphs of the pool, or a capture that failed, are gone; `streams` are
  // those that they may still run on. Once these are done, the pages go back.
  // What is live stays so until it is freed. Errors, after which nothing has
  // changed: kNotFound, kInvalidArgument for StreamId(), kFailedPrecondition
  // where a capture into the pool is open or one of the streams is captured;
  // the driver's.
  absl::Status ReleaseGraphPool(GraphPoolId pool,
                                std::span<const StreamId> streams);

  AllocatorStatistics GetStatistics() const;
  // By size class, stream and owner, all as of one moment. Keeps threads from
  // their caches, and with that from allocating, while it walks: O(slots +
  // large allocations).
  AllocatorBreakdown CalculateStatistics() const;
  // An Allocate of so much, of the default alignment, would succeed now for the
  // owner, everything reclaimable reclaimed and every cooling page waited for.
  // One that shares the pages of its neighbours may be up to two pages longer;
  // so may one that other owners' limits keep from the idle memory of another
  // reclaimer, of which it is not known whose it is. O(owners).
  Bytes GetLargestPossible(OwnerId owner = kUnnamedOwner) const;
  std::vector<AllocationInfo> CalculateLiveAllocations() const;
  // Who made the live allocations that are sampled; null where none are. Lives
  // as long as the allocator.
  const AllocationSampler* sampler() const;
  absl::Status CheckInvariants() const;

 private:
  friend class RelocationPass;
  class Impl;
  explicit DeviceAllocator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATOR_H_
