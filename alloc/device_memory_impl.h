// DeviceMemory's one lock and what it guards: addresses, ranges, backing.
//
// Everything here is bookkeeping over AddressSpace and BackingStore, plus the
// answer to a shortage: Relieve. Invariants are in CheckInvariants.

#ifndef QUIRE_ALLOC_DEVICE_MEMORY_IMPL_H_
#define QUIRE_ALLOC_DEVICE_MEMORY_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "alloc/address_space.h"
#include "alloc/backing_store.h"
#include "alloc/callback_list.h"
#include "alloc/fork_guard.h"
#include "alloc/hook_dispatcher.h"
#include "alloc/managed_range.h"
#include "alloc/page_archive.h"
#include "alloc/pressure_gauge.h"
#include "alloc/sleep_transition.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/prepare_thread.h"
#include "quire/alloc/verdict.h"

namespace quire {

class DeviceMemory::Impl {
 public:
  Impl(Driver* driver, OwnerRegistry* owners,
       const DeviceMemoryOptions& options, Bytes device_total, uint64_t limit,
       std::unique_ptr<AddressSpace> addresses)
      : driver_(driver),
        owners_(owners),
        device_(options.device),
        page_size_(options.page_size),
        headroom_(options.headroom),
        trace_(options.trace),
        device_total_(device_total),
        thresholds_(options.pressure),
        addresses_(std::move(addresses)),
        backing_(driver, owners, options.pressure,
                 {.device = options.device,
                  .page_size = options.page_size,
                  .limit = limit,
                  .cache_limit = options.cache_limit.value(),
                  .headroom = options.headroom},
                 &events_),
        limit_pages_(limit) {
    MutexLock lock(&mutex_);
    SetGauge();
  }
  ~Impl();

  Driver* driver() const { return driver_; }
  DeviceId device() const { return device_; }
  Bytes page_size() const { return page_size_; }
  OwnerRegistry* owners() const { return owners_; }
  DeviceAddress first_address() const { return addresses_->AddressOf(0); }
  const ForkGuard& fork_guard() const { return fork_guard_; }
  // Before anybody else calls: a thread that keeps `ahead` pages cached.
  absl::Status StartPreparing(uint64_t ahead);
  CallbackList<PageReclaimer>& reclaimers() { return reclaimers_; }
  HookDispatcher* dispatcher() { return &dispatcher_; }
  void AddHooks(MemoryHooks* hooks) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveHooks(MemoryHooks* hooks) ABSL_LOCKS_EXCLUDED(mutex_);
  bool AskOutOfMemoryHooks(const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  PageCount ReclaimablePages() ABSL_LOCKS_EXCLUDED(mutex_);
  PressureLevel pressure() const {
    return pressure_.load(std::memory_order_relaxed);
  }
  Bytes limit() const {
    return PageBytes(limit_pages_.load(std::memory_order_relaxed));
  }

  absl::StatusOr<AddressRange*> ReserveRange(PageCount pages, OwnerId owner,
                                             Bytes alignment)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseRange(AddressRange* range, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetOwner(AddressRange* range, OwnerId owner)
      ABSL_LOCKS_EXCLUDED(mutex_);
  AddressRange* Find(DeviceAddress address) const {
    return addresses_->Find(address);
  }
  bool Contains(DeviceAddress address) const {
    return addresses_->Contains(address);
  }
  absl::Status Gather(OwnerId owner, PageCount pages, PageCount addresses,
                      Bytes alignment, bool wait) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<AddressRange*> TryMakeRange(OwnerId owner, Bytes alignment,
                                             std::span<const PageHandle> pages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<AddressRange*> TryReserveRange(PageCount pages, OwnerId owner,
                                                Bytes alignment)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TryBackSlots(AddressRange* range, PageCount first,
                            PageCount count) ABSL_LOCKS_EXCLUDED(mutex_);
  PageCount HarvestCached() ABSL_LOCKS_EXCLUDED(mutex_);
  // `pages`: see CommitRequest. REQUIRES: none, or `count` of them.
  absl::Status Commit(AddressRange* range, PageCount first, PageCount count,
                      std::span<const PageHandle> pages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TryCommit(AddressRange* range, PageCount first, PageCount count,
                         std::span<const PageHandle> pages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Remap(AddressRange* range, PageCount first,
                     std::span<const PageHandle> pages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Decommit(AddressRange* range, PageCount first, PageCount count,
                        const Fence& fence) ABSL_LOCKS_EXCLUDED(mutex_);
  PageCount CommittedPages(const AddressRange* range, PageCount first,
                           PageCount count) const ABSL_LOCKS_EXCLUDED(mutex_);
  PageHandle PageAt(const AddressRange* range, PageCount slot) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AppendPages(const AddressRange* range, PageCount first, PageCount count,
                   std::vector<PageHandle>* pages) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Prepare(PageCount count) ABSL_LOCKS_EXCLUDED(mutex_);
  CompactionReport Trim(PageCount keep) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetLimit(Bytes limit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetSoftLimit(Bytes limit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetOwnerLimits(OwnerId owner, const OwnerLimits& limits)
      ABSL_LOCKS_EXCLUDED(mutex_);
  OwnerStatistics GetOwnerStatistics(OwnerId owner) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<OwnerStatistics> GetOwnerStatistics() ABSL_LOCKS_EXCLUDED(mutex_);
  PageCount CalculateLargestCommit(OwnerId owner,
                                   std::span<const uint64_t> idle)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What a commit of so many pages for `owner` that cannot be had would be
  // told.
  OutOfMemoryVerdict DescribeShortage(PageCount pages, OwnerId owner,
                                      VerdictDetail detail)
      ABSL_LOCKS_EXCLUDED(mutex_);
  struct Shortage {
    OwnerId owner;
    uint64_t pages;
    CommitAttempt::Shortage kind;
    absl::Status cause;
    VerdictDetail detail;
  };
  absl::Status OutOfMemory(const Shortage& shortage)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SleepReport> Sleep(OwnerId owner, const SleepOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SleepReport> Wake(OwnerId owner, const WakeOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool in_quiescence() const {
    return in_quiescence_.load(std::memory_order_acquire);
  }
  // False where there is a section already.
  bool TryBeginQuiescence() {
    return !in_quiescence_.exchange(true, std::memory_order_acq_rel);
  }
  void EndQuiescence() {
    in_quiescence_.store(false, std::memory_order_release);
  }
  DeviceMemoryStatistics GetStatistics() const ABSL_LOCKS_EXCLUDED(mutex_);
  Bytes live_bytes() const {
    return PageBytes(live_pages_.load(std::memory_order_relaxed));
  }
  absl::Status Health() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Bytes> GetLiveByOwner() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<PageMapEntry> CalculatePageMap() const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckInvariants() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Holds the lock, and when it has let go of it, tells the hooks what has
  // happened meanwhile.
  class ABSL_SCOPED_LOCKABLE Section {
   public:
    explicit Section(Impl* impl) ABSL_EXCLUSIVE_LOCK_FUNCTION(impl->mutex_)
        : impl_(impl) {
      impl_->mutex_.Lock();
    }
    // The analysis does not see that the constructor took the lock of impl_.
    ~Section() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      std::vector<MemoryEvent> events = impl_->events_.Take();
      impl_->mutex_.Unlock();
      impl_->dispatcher_.Deliver(std::move(events));
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Impl* const impl_;
  };

  // Over the attempts of one call. The figures were read when the last attempt
  // failed, under the same lock: what another thread does between that and a
  // wait must not be missed.
  struct ReliefState {
    uint64_t freed_before = 0;       // FreedSoFar
    uint64_t given_up_before = 0;    // BackingStore::slots_given_up
    uint64_t limits_set_before = 0;  // limits_set_
    bool asked_reclaimers = false;
    // Whether the caller can wait for fences.
    bool may_wait = true;
  };
  void NoteFailure(ReliefState* state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    state->freed_before = FreedSoFar();
    state->given_up_before = backing_.slots_given_up();
    state->limits_set_before = limits_set_;
  }

  // All that can be done without the help of hooks. The error has the verdict.
  absl::Status CommitOrExplain(const CommitRequest& request, bool may_wait)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status GatherOrExplain(OwnerId owner, PageCount pages,
                               PageCount addresses, Bytes alignment, bool wait)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<AddressRange*> ReserveOrExplain(PageCount pages, OwnerId owner,
                                                 Bytes alignment)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `try_once`, which fills *attempt, under the lock until it succeeds,
  // or fails for another reason than shortage, or nothing more can come.
  absl::Status TryWithRelief(bool may_wait, CommitAttempt* attempt,
                             absl::FunctionRef<absl::Status()> try_once)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After the last attempt has failed.
  void GiveUp(const CommitAttempt& attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  // Brings pages (and addresses) back when `wanted` pages are missing: asks the
  // reclaimers, then waits for what cools. False where nothing more can come.
  bool Relieve(uint64_t wanted, ReliefState* state) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same where an owner may not have more, though pages may exist.
  bool RelieveOwner(const CommitAttempt& attempt, const ReliefState& state)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks for pages that somebody caches, those of owners beyond their soft
  // limits first; `cooling`: also for such that a stream may be using. Whether
  // anything came since the state was noted.
  bool AskReclaimers(uint64_t wanted, bool cooling, const ReliefState& state)
      ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t AskForPagesOf(OwnerId owner, uint64_t wanted, bool cooling)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `ask` again, at intervals, as long as it returns false and pages of a
  // reclaimer cool in parts. Returns what it returned last.
  bool AskUntilNoneAwaits(absl::FunctionRef<bool()> ask)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `ask(reclaimer, pages)` for one after another until `wanted` pages
  // were given up. Returns how many were.
  using Ask = std::function<void(PageReclaimer*, PageCount)>;
  uint64_t AskEach(uint64_t wanted, const Ask& ask) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasProgressed(const ReliefState& state) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  struct OwnerExcess {
    OwnerId owner;
    uint64_t pages;
  };
  std::vector<OwnerExcess> OwnersOverSoftLimit() const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns as soon as anything was freed since FreedSoFar was `freed_before`,
  // by this thread or another; false where nothing more can be.
  bool WaitForCooling(uint64_t freed_before) ABSL_LOCKS_EXCLUDED(mutex_);
  // The page number of the first, where a run is free. `alignment` as in
  // ReserveRange, and checked.
  std::optional<uint64_t> TakeAddresses(PageCount pages, Bytes alignment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A range at free addresses; kAborted where there are too few side by side.
  absl::StatusOr<ManagedRange*> TryAddRange(PageCount pages, OwnerId owner,
                                            Bytes alignment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Backs slots from cached pages; kAborted where those are too few.
  absl::Status BackFromCache(const CommitRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the range at addresses that were taken, and lets Find see it.
  ManagedRange* AddRange(uint64_t first, PageCount pages, OwnerId owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Find sees the range no more; its addresses are kept while slots linger.
  void Retire(ManagedRange* range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasAddresses(PageCount count, Bytes alignment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Harvest(size_t at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With what the driver refused to take back before. Whether it freed
  // anything.
  bool HarvestAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t before = FreedSoFar();
    Harvest(SIZE_MAX);
    return backing_.pool().ReleaseQuarantined() > 0 || FreedSoFar() != before;
  }
  absl::Status MoveToOwner(AddressRange* range, OwnerId owner, uint64_t* pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // ---- device_memory_sleep.cc ----
  // All that can be done without the help of hooks, as for Commit.
  // A sleep that reclaimers have nothing against.
  absl::StatusOr<SleepReport> PutToSleep(OwnerId owner,
                                         const SleepOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SleepReport> WakeOrExplain(OwnerId owner,
                                            const WakeOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<ManagedRange*> RangesWithin(OwnerId owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until no Sleep or Wake has the range in hand.
  void AwaitTransition(const ManagedRange* range)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndTransition() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordRuns(TraceAction action, const SleepTransition& transition) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SaveContents(const SleepOptions& options,
                            SleepTransition* transition)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RestoreContents(const WakeOptions& options,
                               const SleepTransition& transition,
                               SleepReport* report) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status FillWithZeros(std::span<const ArchivePlacement> pages) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void FreeAddresses(ManagedRange* range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Anything that Harvest, a decommit, a trim, a higher limit or the thread
  // that prepares made available.
  uint64_t FreedSoFar() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return backing_.unmapped() + backing_.pool().released() + limits_set_ +
           prepared_ahead_;
  }
  PrepareThread::Progress PrepareOne() ABSL_LOCKS_EXCLUDED(mutex_);
  void FillUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where a commit may have taken pages.
  void FillUpAfterCommit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static absl::Status CheckAlignment(Bytes alignment);
  absl::Status CheckSlots(const AddressRange* range, PageCount first,
                          PageCount count) const;
  void DescribeOwners(PageCount pages, OwnerId owner, ShortageFacts* facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DescribeCooling(ShortageFacts* facts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Beside what cools in the pool. Reclaimers are asked.
  void DescribeCaptures(ShortageFacts* facts) ABSL_LOCKS_EXCLUDED(mutex_);
  // What takes its time.
  void DescribeCompaction(ShortageFacts* facts) ABSL_LOCKS_EXCLUDED(mutex_);
  void DescribeSleep(OwnerId owner, ShortageFacts* facts)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DescribeRecentEvents(ShortageFacts* facts) const;
  OwnerStatistics StatisticsOf(OwnerId owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OutOfAddresses(PageCount pages, OwnerId owner,
                              VerdictDetail detail) ABSL_LOCKS_EXCLUDED(mutex_);
  void Record(TraceAction action, const AddressRange* range, uint64_t first,
              uint64_t pages) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Bytes PageBytes(uint64_t pages) const {
    return CheckedBytes(PageCount(pages), page_size_)
        .value_or(Bytes(UINT64_MAX));
  }
  // Of an owner: none is 0.
  Bytes LimitBytes(uint64_t pages) const {
    return pages == kNoPageLimit ? Bytes(0) : PageBytes(pages);
  }
  // After every mutation: publishes live_pages_, reads the gauges, and checks
  // everything in checking builds.
  void AfterMutation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the trace of physical memory that came or went since the last time.
  void RecordPhysicalMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the device, or all that an owner has on it.
  void RecordOfDevice(TraceAction action, uint64_t pages,
                      OwnerId owner = kUnnamedOwner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // 0: there is none from here on.
  void RecordLimit(TraceAction action, Bytes limit,
                   OwnerId owner = kUnnamedOwner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a limit of the memory has changed.
  void SetGauge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdatePressure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckInvariantsLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ForkGuard fork_guard_;
  Driver* const driver_;
  OwnerRegistry* const owners_;
  const DeviceId device_;
  const Bytes page_size_;
  const Bytes headroom_;
  EventTrace* const trace_;
  const Bytes device_total_;
  const PressureThresholds thresholds_;
  CallbackList<PageReclaimer> reclaimers_;
  HookDispatcher dispatcher_;
  std::atomic<bool> in_quiescence_{false};
  ArchiveUse archive_use_;

  mutable Mutex mutex_;
  // Signalled when anything was freed.
  CondVar freed_;
  // Signalled when a Sleep or Wake has ended.
  CondVar moved_;
  // Find and Contains read it without the lock, all else with it.
  const std::unique_ptr<AddressSpace> addresses_;
  // By first page; retired ones included, until their addresses return.
  std::map<uint64_t, std::shared_ptr<ManagedRange>> ranges_
      ABSL_GUARDED_BY(mutex_);
  EventLog events_ ABSL_GUARDED_BY(mutex_);
  BackingStore backing_ ABSL_GUARDED_BY(mutex_);
  PressureGauge gauge_ ABSL_GUARDED_BY(mutex_);
  uint64_t soft_limit_ ABSL_GUARDED_BY(mutex_) = kNoPageLimit;  // pages
  // Copies for readers without the lock: of the accounts, of the gauge's level
  // and of the pool's limit.
  std::atomic<uint64_t> live_pages_{0};
  std::atomic<PressureLevel> pressure_{PressureLevel::kNone};
  std::atomic<uint64_t> limit_pages_;
  // Limits set so far: each may have made room.
  uint64_t limits_set_ ABSL_GUARDED_BY(mutex_) = 0;
  // Pages that the thread keeps cached, and whether there may be too few; pages
  // that it made, and the commits that it was woken for.
  uint64_t ahead_ = 0;
  bool fills_up_ ABSL_GUARDED_BY(mutex_) = true;
  uint64_t prepared_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t commits_filled_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t mutations_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t traced_pages_ ABSL_GUARDED_BY(mutex_) = 0;  // in use, last told
  // Null where none was asked for. Ends before all else does.
  std::unique_ptr<PrepareThread> preparer_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_DEVICE_MEMORY_IMPL_H_
