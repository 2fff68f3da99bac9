// The state of a DeviceAllocator and the paths through it.
//
//   allocator.cc          allocate and free
//   allocator_reclaim.cc  giving memory back: polling, Reclaim, Trim, the end
//   allocator_report.cc   statistics, verdicts, checks
//
// SpanHeap knows what memory is used as; the free lists here know when it may
// be used again. A cooling block is in exactly one place: in the free list of
// the stream it was freed on, or, where several streams use it, in
// shared_cooling_. Blocks that are free are the heap's.
//
// One lock guards everything. Under it no fence is waited for and no page is
// committed: DeviceMemory::Commit may wait, and may call Reclaim, which takes
// this lock. Recording an event and unmapping ranges happens under it; both
// only queue work or edit tables. DeviceMemory's lock is inside this one.

#ifndef QUIRE_ALLOC_ALLOCATOR_IMPL_H_
#define QUIRE_ALLOC_ALLOCATOR_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/size_classes.h"
#include "alloc/span.h"
#include "alloc/span_heap.h"
#include "alloc/stream_free_list.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

class DeviceAllocator::Impl : public PageReclaimer {
 public:
  Impl(DeviceMemory* memory, const DeviceAllocatorOptions& options);
  ~Impl() override;

  absl::StatusOr<DeviceAddress> Allocate(Bytes size,
                                         const AllocateOptions& options);
  absl::Status Free(DeviceAddress address, StreamId stream);
  absl::Status RecordStream(DeviceAddress address, StreamId stream);
  std::optional<AllocationInfo> Find(DeviceAddress address) const;
  Bytes Trim(Bytes keep);
  AllocatorStatistics GetStatistics() const;
  Bytes GetLargestPossible() const;
  std::vector<AllocationInfo> CalculateLiveAllocations() const;
  absl::Status CheckInvariants() const;

  // PageReclaimer
  PageCount Reclaim(PageCount wanted) override;
  PageCount ReclaimCooling(PageCount wanted) override;
  PageCount Reclaimable() const override;
  std::string ReclaimerName() const override;

 private:
  struct Request {
    Bytes size;
    StreamId stream;
    OwnerId owner;
    Bytes alignment;
  };
  // Freed by a stream while others were using it: nobody's before all are done.
  struct SharedCooling {
    Block block;
    Fence fence;
    std::vector<StreamId> streams;
  };
  using FreeLists = std::vector<std::unique_ptr<StreamFreeList>>;

  // ---- allocator.cc ----
  absl::StatusOr<DeviceAddress> AllocateSmall(int size_class,
                                              const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<DeviceAddress> AllocateLarge(const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A slot of a new slab; waits for pages that cool only if `wait`.
  absl::StatusOr<DeviceAddress> AllocateInNewSlab(int size_class,
                                                  const Request& request,
                                                  bool wait)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whole new pages.
  absl::StatusOr<DeviceAddress> AllocateNewRange(PageCount pages,
                                                 const Request& request,
                                                 bool wait)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether so many pages are there that nobody has a use for. A guess: what
  // others would give back, or the driver not give at all, is not known here.
  bool HasRoom(PageCount pages) const ABSL_LOCKS_EXCLUDED(mutex_);
  // New addresses with pages under all of them.
  absl::StatusOr<AddressRange*> NewRange(PageCount pages, OwnerId owner,
                                         Bytes alignment, bool wait)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The hit paths: memory that is mapped already, no driver call.
  std::optional<Block> TakeSlot(int size_class, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Block> TakeRange(uint64_t pages, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where there is nothing better: a free slot of this class or a larger one; a
  // part of a longer range that the stream freed, the rest of which cools on.
  std::optional<Block> TakeSlotOfAnyClass(int least, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Block> TakePartOfOwnRange(uint64_t pages,
                                          const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Describes, counts and traces a block that was just taken.
  DeviceAddress Publish(Block block, const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The live block that starts at `address`, or why there is none.
  absl::StatusOr<Block> LocateLive(DeviceAddress address) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the list of the stream stands, or would stand, in free_lists_.
  FreeLists::iterator FreeListPosition(StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null where nothing that was freed on the stream is cooling.
  StreamFreeList* FindFreeList(StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the list at need, after checking that the stream exists.
  absl::StatusOr<StreamFreeList*> GetFreeList(StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a free must wait for: the streams recorded, and the one named.
  std::vector<StreamId> StreamsOf(Block block, StreamId freed_on) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A live block cools, or is free at once where nothing is to be waited for.
  absl::Status CoolOnStream(Block block, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CoolOnStreams(Block block, std::vector<StreamId> streams)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_reclaim.cc ----
  // Records events for what was freed without one, as far as the driver does.
  void CloseBatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees what has cooled, without blocking.
  void Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether waiting can free a slot of this class or a larger one: one cools on
  // a stream that the driver can still speak for.
  bool CanAwaitSlot(int least) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Give memory that nobody holds to the pool while it cools.
  uint64_t ReleaseCoolingRanges(StreamFreeList* list, uint64_t wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ReleaseSharedRanges(uint64_t wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ReleaseCoolingSlabs(uint64_t wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A fence for every cooling slot of the slab, which leaves all lists. Nullopt
  // where the driver records none; the slab stays as it is then.
  std::optional<Fence> WithdrawSlab(const Span* slab)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- allocator_report.cc ----
  // Counts and traces a failure; makes a verdict of what was for lack of
  // memory.
  absl::Status Fail(const Request& request, const absl::Status& cause)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The pool's verdict, with what the allocator alone knows.
  OutOfMemoryVerdict Diagnose(const Request& request,
                              OutOfMemoryVerdict verdict) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The error for a request above the pool's limit, else OK.
  absl::Status CheckAgainstLimit(const Request& request) const;
  void Trace(TraceAction action, OwnerId owner, DeviceAddress address,
             Bytes size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After every mutation, in checking builds.
  void CheckAfterMutation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckInvariantsLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceMemory* const memory_;
  const DeviceAllocatorOptions options_;
  const SizeClasses classes_;

  mutable Mutex mutex_;
  SpanHeap heap_ ABSL_GUARDED_BY(mutex_);
  FreeLists free_lists_ ABSL_GUARDED_BY(mutex_);  // in order of StreamId
  // The list used last: programs stay on a stream for many calls.
  StreamFreeList* recent_list_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<SharedCooling> shared_cooling_ ABSL_GUARDED_BY(mutex_);
  // Further streams of live blocks that are marked as shared.
  std::map<DeviceAddress, std::vector<StreamId>> recorded_streams_
      ABSL_GUARDED_BY(mutex_);
  uint64_t total_allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t total_frees_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable uint64_t mutations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATOR_IMPL_H_
