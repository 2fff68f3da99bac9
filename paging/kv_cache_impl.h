// The state of a KvCache. Internal: kv_cache.cc holds the sequences,
// kv_cache_backing.cc the pages under them, kv_cache_ahead.cc maps pages that
// will be needed, and kv_cache_window.cc drops tokens that no kernel sees.
//
// Locking. Two locks, so that the memory can call back while it serves us:
//
//   operation_mutex_  one Admit, Step, Shrink or Release at a time; held while
//                     pages are committed, which may wait for fences.
//   state_mutex_      everything that is kept; never held during a Commit, as
//                     the memory may call Reclaim from there, of this cache
//                     and, on other threads, of others. Taken after
//                     operation_mutex_, before the lock of DeviceMemory.
//
// What a commit in progress relies on stays true without state_mutex_: regions
// are added and removed under operation_mutex_ only, and Reclaim takes spare
// pages only. A region's tokens in use are raised before its pages are
// committed, and a part that lacks pages has none to spare. For pages ahead
// they are raised for that time only.

#ifndef QUIRE_PAGING_KV_CACHE_IMPL_H_
#define QUIRE_PAGING_KV_CACHE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/kv_region.h"
#include "paging/page_ahead.h"
#include "paging/parked_regions.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/prepare_thread.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_cache.h"

namespace quire {

class KvCache::Impl {
 public:
  Impl(DeviceMemory* memory, const RegionGeometry& geometry,
       const KvCacheOptions& options)
      : memory_(memory),
        geometry_(geometry),
        options_(options),
        horizon_(options.page_ahead.max_steps) {}
  ~Impl();

  const RegionGeometry& geometry() const { return geometry_; }

  absl::StatusOr<SequenceId> Admit(uint64_t tokens, const KvTokenLimit& limit)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Step(std::span<const SequenceStep> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Shrink(SequenceId sequence, uint64_t length, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Release(SequenceId sequence, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  absl::StatusOr<KvLayerView> View(SequenceId sequence, uint32_t layer) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  void EndBatch(const Fence& fence) ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<KvKeptTokens> Kept(SequenceId sequence, uint32_t layer) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  const KvCacheOptions& options() const { return options_; }
  static absl::Status CheckLimit(const KvTokenLimit& limit);

  // Starts the thread that maps ahead. Once.
  absl::Status StartAhead();
  absl::StatusOr<PageCount> PrepareAhead(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // kFailedPrecondition in a forked child, where a lock may be held by a thread
  // that is not there.
  absl::Status CheckProcess() const;

  uint64_t AdmissibleTokens() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  CacheUse Use() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  KvCacheStatistics GetStatistics() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::Status CheckInvariants() const
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // In checking builds, after every operation.
  void CheckAfterMutation() const
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  PageCount Reclaim(PageCount wanted) ABSL_LOCKS_EXCLUDED(state_mutex_);
  PageCount ReclaimFrom(OwnerId owner, PageCount wanted) {
    return memory_->owners()->IsWithin(options_.owner, owner) ? Reclaim(wanted)
                                                              : PageCount(0);
  }
  PageCount Reclaimable() const {
    return PageCount(reclaimable_.load(std::memory_order_relaxed));
  }

 private:
  struct Sequence {
    std::unique_ptr<KvRegion> region;  // null: the slot is free
    uint32_t generation = 0;           // of the id; counts the releases
    uint64_t length = 0;
    uint64_t step = 0;    // the last Step that named it
    uint64_t batch = 0;   // in which its last kernels may be
    uint64_t growth = 1;  // tokens of its last step that made it longer
  };
  // A slot with the region of a sequence that begins.
  struct Taken {
    size_t slot;
    uint64_t stamp;  // of the parked region that was adopted; 0: reserved
    KvRegion* region;
  };
  // A region that must hold `tokens` tokens.
  struct Demand {
    KvRegion* region;
    uint64_t tokens;
    uint64_t previous = 0;  // what it held before
  };
  struct PlannedRun {
    KvRegion* region;
    PageRun run;
  };
  struct Totals {
    uint64_t admitted = 0;
    uint64_t parked = 0;
    uint64_t spare = 0;
    friend bool operator==(const Totals&, const Totals&) = default;

    PageCount needed() const { return PageCount(admitted + parked - spare); }

    void Add(const KvRegion& region) {
      (region.parked() ? parked : admitted) += region.committed().value();
      spare += region.spare().value();
    }
    void Subtract(const KvRegion& region) {
      (region.parked() ? parked : admitted) -= region.committed().value();
      spare -= region.spare().value();
    }
  };
  // Whether a commit waits for pages that cool and asks for more.
  enum class Patience { kWait, kNone };
  // Pages that a commit could take.
  struct Supply {
    PageCount at_once;  // created, or taken from the cache
    PageCount in_all;   // with those that cool, and what reclaimers hold
  };

  // Every change of a region's pages or tokens, so that the totals follow.
  template <typename Change>
  void Modify(KvRegion* region, Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    totals_.Subtract(*region);
    change(region);
    totals_.Add(*region);
    reclaimable_.store(totals_.spare, std::memory_order_relaxed);
  }

  static uint64_t SlotOf(SequenceId id) {
    return (id.value() & UINT32_MAX) - 1;
  }
  std::optional<size_t> FindSlot(SequenceId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  static absl::Status NoSuchSequence(SequenceId id, const char* purpose);
  absl::Status CheckLayer(uint32_t layer) const;
  SequenceId IdOf(size_t slot) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  bool HasFreeSlot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    return sequences_.size() - free_slots_.size() < options_.max_sequences;
  }
  // Puts the best parked region, or a reserved one, into a slot.
  absl::StatusOr<Taken> TakeRegion(uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  Taken OpenSlot(ParkedRegions::Entry entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  void CloseSlot(size_t slot, std::optional<uint64_t> stamp)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  void Dispose(std::unique_ptr<KvRegion> region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // Checks the steps, and leaves in demands_ those that need more pages.
  absl::Status Examine(std::span<const SequenceStep> steps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // A step as it was when it began.
  struct StepStart {
    uint64_t now = 0;            // on the clock of page-ahead, if there is one
    bool finds_mapping = false;  // of pages ahead
    PageCount needed;            // in all
  };
  // What Examine found is backed.
  void FinishStep(std::span<const SequenceStep> steps, const StepStart& start,
                  bool mapped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);

  // ---- Windows (kv_cache_window.cc) ----
  // Before a step of the sequence to `length`.
  absl::Status DropBehindWindows(Sequence* sequence, uint64_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  absl::Status CheckGoingBack(const Sequence& sequence, uint64_t length) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // No token of the region is in use any more. What is behind a gap is given
  // back under its fence.
  void Forget(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  Bytes KeptBytes(const Sequence& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // ---- Page-ahead (kv_cache_ahead.cc) ----
  // More than a decode step with speculation: a chunk of a prompt, which says
  // nothing about the next step.
  static constexpr uint64_t kMostTokensOfADecodeStep = 8;
  uint64_t Now() const;
  // After a step that needed `pages` more: looks how far ahead to map, and
  // wakes the thread where there is something to map.
  void PlanAhead(uint64_t now, PageCount pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // The sequence of the last Step that lacks pages soonest, and for how many
  // tokens `steps` steps need them; no region where none lacks any.
  Demand MostUrgent(uint32_t steps) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Maps one run of pages; 0 where there is none to map, or no pages at once.
  absl::StatusOr<PageCount> MapOneAhead(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::StatusOr<PageCount> MapMostUrgent(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // Backs every demand, and leaves `headroom` pages obtainable: all or nothing.
  // True where pages had to be mapped.
  absl::StatusOr<bool> Back(std::span<Demand> demands, PageCount headroom)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitPlan(std::span<const PlannedRun> plan, Supply supply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitRuns(std::span<const PlannedRun> runs, Patience patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  std::vector<PlannedRun> WithMapAhead(std::span<const PlannedRun> plan) const;

  // Gives back the end of a part, which is no longer live even where the memory
  // refuses: the region is damaged then.
  absl::Status Decommit(KvRegion* region, const PageRun& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Decommits up to `wanted` spare pages; how many.
  absl::StatusOr<PageCount> GiveBack(KvRegion* region, PageCount wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  PageCount SlotInRange(const PageRun& run) const {
    return Plus(geometry_.FirstPage(run.group), run.first);
  }

  Supply GetSupply() const;
  absl::Status Shortage(PageCount wanted, PageCount headroom) const;
  absl::Status CheckRegion(const KvRegion& region, Totals* counted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  DeviceMemory* const memory_;
  const RegionGeometry geometry_;
  const KvCacheOptions options_;

  mutable Mutex operation_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  mutable Mutex state_mutex_;
  std::vector<Demand> demands_ ABSL_GUARDED_BY(operation_mutex_);  // of Step
  std::vector<Sequence> sequences_ ABSL_GUARDED_BY(state_mutex_);
  std::vector<size_t> free_slots_ ABSL_GUARDED_BY(state_mutex_);
  ParkedRegions parked_ ABSL_GUARDED_BY(state_mutex_);
  Totals totals_ ABSL_GUARDED_BY(state_mutex_);
  uint64_t tokens_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t adoptions_ ABSL_GUARDED_BY(state_mutex_) = 0;
  // Batches that were ended, and what the last one waits for.
  uint64_t batch_ ABSL_GUARDED_BY(state_mutex_) = 1;
  Fence batch_fence_ ABSL_GUARDED_BY(state_mutex_);
  uint64_t attempted_steps_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t steps_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t steps_without_mapping_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t steps_waited_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t runs_mapped_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t runs_mapped_ahead_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t pages_mapped_ahead_ ABSL_GUARDED_BY(state_mutex_) = 0;
  AheadHorizon horizon_ ABSL_GUARDED_BY(state_mutex_);
  // Admit and Step that wait for operation_mutex_: the thread lets them pass.
  std::atomic<uint32_t> waiting_{0};
  // Whether MapOneAhead is in a driver call.
  std::atomic<bool> mapping_ahead_{false};
  // totals_.spare, to be read from under the locks of others.
  std::atomic<uint64_t> reclaimable_{0};
  std::unique_ptr<PrepareThread> ahead_thread_;  // null: none
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_IMPL_H_
