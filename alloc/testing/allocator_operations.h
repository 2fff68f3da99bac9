// Every public call of a DeviceAllocator, and those of the DeviceMemory under
// it that matter to it, in an order that a string of bytes decides, against a
// model of what must be true.
//
// The model is a map of the live intervals, each with the streams that use it,
// and what the streams find in memory: an allocation is filled in stream order
// with a pattern of its address and generation, and checked in stream order
// before it is freed or moved. Contents come back with whom they sleep, memory
// of a graph pool is nobody else's. Streams lag behind, so memory that is
// handed out while an earlier user may still touch it changes a pattern, and
// pages that are unmapped too early fault. After each operation the allocator
// and the memory check themselves, and their statistics are compared with the
// model.
//
// What a driver-independent random test and a fuzzer share, so it depends on no
// test framework: the first contradiction is the error that Run returns.
//
// One operation at a time, though on threads that come and go. A run of n bytes
// is O(n * live allocations).

#ifndef QUIRE_ALLOC_TESTING_ALLOCATOR_OPERATIONS_H_
#define QUIRE_ALLOC_TESTING_ALLOCATOR_OPERATIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/quiescent.h"

namespace quire {

class AllocatorOperations : public MemoryHooks, public CompactionListener {
 public:
  // Of slabs that are at least a page, and of some that are less.
  static constexpr Bytes kSmallPage = KiB(64);
  static constexpr Bytes kLargePage = KiB(256);
  static constexpr uint64_t kLimitPages = 32;

  // The device that Run needs.
  static HostDriverOptions DriverOptions(Bytes page = kSmallPage);

  // `driver`, whose device memory is host memory, outlives this, and so do the
  // bytes.
  AllocatorOperations(Driver* driver, std::span<const uint8_t> bytes,
                      Bytes page = kSmallPage);
  ~AllocatorOperations() override;

  // Carries the bytes out, frees everything, and looks whether everything is to
  // be had again. Call it once.
  absl::Status Run();

  // MemoryHooks and CompactionListener, which re-enter.
  void OnPressure(const PressureChange& change) override;
  void OnPagesMapped(const MappingChange& change) override;
  void OnPagesUnmapped(const MappingChange& change) override;
  Bytes OnOutOfMemory(const OutOfMemoryVerdict& verdict) override;
  void BeforeCompaction(CompactionLevel level) override;
  void AfterCompaction(CompactionLevel level,
                       const CompactionReport& report) override;
  void BeforeMove(const RelocationMove& move) override;
  void AfterMove(const RelocationMove& move, MoveAction action) override;

 private:
  // The work of a stream stops here until it is opened, or for a moment.
  class Lag;
  struct Live {
    Pattern pattern;
    uint64_t allocated;
    OwnerId owner;
    StreamId allocated_for;
    // Who may be using it, the last writer first; none: nobody any more.
    std::vector<StreamId> streams;
    bool movable = false;
    bool moving = false;
    int pins = 0;
    // Nobody may touch it; and where it is dropped, its contents are lost.
    bool asleep = false;
    bool dropped = false;
  };
  using Model = std::map<uint64_t, Live>;
  // Addresses that graphs of an unreleased pool use, up to `end`.
  struct Kept {
    uint64_t end;
    GraphPoolId pool;
  };

  // ---- The bytes ----
  bool AtEnd() const { return position_ == bytes_.size(); }
  // 0 at the end.
  uint64_t Next();
  uint64_t Below(uint64_t n) { return Next() % n; }
  uint64_t NextSize();

  // ---- Operations; an error is a contradiction ----
  absl::Status Step();
  absl::Status OnAnotherThread();
  absl::Status Allocate();
  absl::Status CheckRefusal(const absl::Status& status, uint64_t size,
                            uint64_t largest, bool promised);
  absl::Status Enter(DeviceAddress address, uint64_t size,
                     const AllocateOptions& options);
  absl::Status FreeSome();
  absl::Status Free(Model::iterator victim, uint64_t how);
  absl::Status Record();
  absl::Status PinOrUnpin();
  absl::Status Trim();
  absl::Status Harvest();
  absl::Status Refuse();
  absl::Status ChangeLimits();
  absl::Status ChangeSoftLimit();
  absl::Status ChangeStreams();
  absl::Status UsePoolDirectly();
  absl::Status UseAnotherAllocator();
  absl::Status Sleep();
  absl::Status Wake(OwnerId owner);
  absl::Status UseGraphs();
  absl::Status CreateGraphPool();
  absl::Status BeginCapture();
  absl::Status EndCapture();
  absl::Status ReleaseGraphPool();
  absl::Status CheckKept(uint64_t begin, uint64_t end, GraphPoolId pool) const;
  absl::Status Compact();
  absl::Status Mesh(const QuiescentSection& section);
  absl::Status Relocate(const QuiescentSection& section);
  absl::Status DuringPass(const QuiescentSection& section,
                          const RelocationPass& pass);
  absl::Status FinishMove(const RelocationMove& move, MoveAction action);
  absl::Status FreeEverything();
  void ReEnter();

  // ---- Checks ----
  absl::Status Check();
  absl::Status CheckStatistics();
  absl::Status CheckLiveAllocations();
  // From the host. REQUIRES: nothing uses live memory.
  absl::Status CheckContents();

  // ---- Streams ----
  StreamId SomeStream() { return streams_[Below(streams_.size())]; }
  OwnerId SomeOwner() { return owner_ids_[Below(owner_ids_.size())]; }
  bool IsAsleep(OwnerId owner) const { return asleep_owners_.contains(owner); }
  // Of what is allocated for the stream now; none: GraphPoolId().
  GraphPoolId PoolFor(StreamId stream) const;
  bool IsUsed(StreamId stream) const;
  // For a moment, or until EndLags.
  absl::Status HoldUp(StreamId stream);
  absl::Status Launch(StreamId stream, std::function<void()> work);
  // What is queued on `to` from here on follows what is queued on `from`.
  absl::Status Join(StreamId from, StreamId to);
  // All streams in use, and perhaps the others.
  absl::StatusOr<QuiescentSection> Quiesce();
  void EndLags();
  Model::iterator SomeLive();

  Driver* const driver_;
  const std::span<const uint8_t> bytes_;
  const Bytes page_;
  size_t position_ = 0;
  OwnerRegistry owners_;
  std::vector<OwnerId> owner_ids_;
  EventTrace trace_{256};
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceAllocator> allocator_;
  // A second one on the same memory, and what it has handed out: to nobody but
  // the host.
  std::unique_ptr<DeviceAllocator> other_;
  std::vector<Live> others_;
  // Of the device, what the memory may have in all.
  Bytes capacity_;
  std::vector<StreamId> streams_;
  std::vector<StreamId> ended_streams_;
  std::vector<std::shared_ptr<Lag>> lags_;
  AddressRange* neighbour_ = nullptr;
  std::set<OwnerId> asleep_owners_;
  std::map<GraphPoolId, OwnerId> graph_pools_;
  std::map<StreamId, GraphPoolId> captures_;
  std::map<uint64_t, Kept> kept_;
  Model model_;
  uint64_t generation_ = 0;
  uint64_t allocations_ = 0;
  uint64_t frees_ = 0;
  bool hooks_re_enter_ = false;
  bool hooks_give_ = false;
  bool inside_hook_ = false;
  int open_compactions_ = 0;  // that the listener was told of
  int re_entries_left_ = 0;
  bool on_another_thread_ = false;
  bool prepares_ahead_ = false;
  absl::Status hook_error_;
  std::atomic<uint64_t> corrupt_{0};
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_ALLOCATOR_OPERATIONS_H_
