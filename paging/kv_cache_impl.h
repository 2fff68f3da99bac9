// The state of a KvCache. Internal: kv_cache.cc holds the sequences, and
// kv_cache_backing.cc the pages under them.
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
// committed, and a part that lacks pages has none to spare.

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
#include "paging/parked_regions.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_cache.h"

namespace quire {

class KvCache::Impl {
 public:
  Impl(DeviceMemory* memory, const RegionGeometry& geometry,
       const KvCacheOptions& options)
      : memory_(memory), geometry_(geometry), options_(options) {}
  ~Impl();

  const RegionGeometry& geometry() const { return geometry_; }

  absl::StatusOr<SequenceId> Admit(uint64_t tokens)
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
    uint64_t step = 0;  // the last Step that named it
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

    void Add(const KvRegion& region) {
      (region.parked() ? parked : admitted) += region.committed().value();
      spare += region.spare().value();
    }
    void Subtract(const KvRegion& region) {
      (region.parked() ? parked : admitted) -= region.committed().value();
      spare -= region.spare().value();
    }
  };
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

  std::optional<size_t> FindSlot(SequenceId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
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

  // Backs every demand, and leaves `headroom` pages obtainable: all or nothing.
  // True where pages had to be mapped.
  absl::StatusOr<bool> Back(std::span<Demand> demands, PageCount headroom)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitPlan(std::span<const PlannedRun> plan, Supply supply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitRuns(std::span<const PlannedRun> runs)
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
  std::vector<Sequence> sequences_ ABSL_GUARDED_BY(state_mutex_);
  std::vector<size_t> free_slots_ ABSL_GUARDED_BY(state_mutex_);
  ParkedRegions parked_ ABSL_GUARDED_BY(state_mutex_);
  Totals totals_ ABSL_GUARDED_BY(state_mutex_);
  uint64_t tokens_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t adoptions_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t attempted_steps_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t steps_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t steps_without_mapping_ ABSL_GUARDED_BY(state_mutex_) = 0;
  // totals_.spare, to be read from under the locks of others.
  std::atomic<uint64_t> reclaimable_{0};
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_IMPL_H_
