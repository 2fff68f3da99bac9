// Device memory as address ranges over one pool of physical pages.
//
// The layer between the driver and everything that hands out memory: the
// allocator's slabs and large allocations, and every KV region, are ranges of
// one DeviceMemory, so a page freed by any of them can serve any other. Nothing
// is ever fragmented at this level: a range of n pages takes any n free pages.
//
// A physical page may lie under several slots of ranges of one owner, so that
// two allocations share the page where one ends and the other begins, and
// sparse slabs share one. It counts once, whatever the number of its slots.
//
// A page slot of a range is in one of five states:
//   unbacked     addresses only; touching it faults (never aliased to a page of
//                zeros)
//   live         a physical page is mapped
//   cooling      the slot was decommitted, but its fence is not complete: the
//                page is still mapped and is unmapped when the fence has
//                completed
//   asleep       as unbacked, but the slot is to have its page again, with what
//                was in it and under the same slots: see Sleep
//   quarantined  the driver refused to unmap it, or lost track of it: neither
//                the page nor the address is used again
//
// Physical pages:
//   in use = live + cooling + cached + quarantined
// A page under several slots is live while any of them is, else cooling while
// any of them cools, and free when none has it.
// "Cached" pages are prepared and not mapped, kept for re-use: a commit that
// finds enough of them creates nothing. Quarantined pages are nothing but a
// driver's refusal (Health says which); they count, since they are not free.
//
// In a forked child, calls fail with kFailedPrecondition, do nothing, or return
// empty values, whatever the parent's threads were at: its memory and its
// driver are as if the child did not exist. Destroying a DeviceMemory there is
// harmless.
//
// Thread-safe. One lock per DeviceMemory is held over the driver's map, unmap,
// create and release calls, which drivers serialise anyway; never while waiting
// for a fence or for contents that are copied, nor while calling a reclaimer.
// Fences that complete late hold up nobody but those who need every page.

#ifndef QUIRE_ALLOC_DEVICE_MEMORY_H_
#define QUIRE_ALLOC_DEVICE_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/memory_limits.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

class DeviceMemory;
class QuiescentSection;

// Gives pages back when the pool is short: caches of mapped ranges do.
class PageReclaimer {
 public:
  virtual ~PageReclaimer() = default;
  // Decommits up to `wanted` pages that nobody needs. Returns how many. Called
  // without locks of DeviceMemory, from the thread that needs the pages, so the
  // caller of Commit must not hold a lock that its own Reclaim takes. May call
  // back into DeviceMemory to decommit and release, never to commit.
  virtual PageCount Reclaim(PageCount wanted) = 0;
  // The same with pages that nobody holds but a stream may still be using, each
  // under its fence: for callers that have found nothing else and will wait.
  // What it could re-use itself meanwhile is lost to it.
  virtual PageCount ReclaimCooling(PageCount /*wanted*/) {
    return PageCount(0);
  }
  // Whether pages that Reclaimable counts come only with time, to Reclaim and
  // not to ReclaimCooling: parts of them were freed under fences of their own,
  // of which the driver can still speak. Whoever waits for such pages asks
  // this, then Reclaim, and again until this was false. Same rules as Reclaim.
  virtual bool AwaitsPartsOfPages() { return false; }
  // As Reclaim, or as both where `cooling`, of pages that are accounted to
  // `owner` or to owners below it (OwnerRegistry::IsWithin): called where that
  // owner is at its limit, and first where memory is short and it is beyond its
  // soft one. Those that cannot tell owners apart give nothing.
  virtual PageCount ReclaimFrom(OwnerId /*owner*/, PageCount /*wanted*/,
                                bool /*cooling*/) {
    return PageCount(0);
  }
  // The owner, and those below it, are to sleep. From here on nobody is handed
  // memory of theirs, and what nobody holds of it is decommitted; an error
  // refuses the sleep. Then AfterSleep says what became of it. Same rules as
  // Reclaim.
  virtual absl::Status BeforeSleep(OwnerId /*owner*/) {
    return absl::OkStatus();
  }
  virtual void AfterSleep(OwnerId /*owner*/, bool /*succeeded*/) {}
  // The owner, and all below it, is awake.
  virtual void AfterWake(OwnerId /*owner*/) {}
  // What compaction could free of it, beyond what Reclaim gives: for verdicts,
  // so it may take its time. Same rules as Reclaim.
  struct CompactionEstimate {
    PageCount mesh;
    PageCount relocation;  // beyond mesh
  };
  virtual CompactionEstimate EstimateCompaction() const { return {}; }
  // Whether BeforeSleep would have nothing against it now. Same rules as
  // Reclaim.
  virtual bool CanSleep(OwnerId /*owner*/) const { return true; }
  // How many Reclaim could give now. For verdicts and Trim. O(1). Same rules.
  virtual PageCount Reclaimable() const = 0;
  // Pages that nobody holds, which Reclaimable does not count: work that they
  // wait for is being captured into a graph, and is over for them only once the
  // capture has ended. For verdicts. Same rules.
  struct CapturedPages {
    PageCount pages;
    std::vector<AwaitedStream> streams;  // one may be named several times
  };
  virtual CapturedPages GetCapturedPages() const { return {}; }
  // Names the cache in verdicts: "parked KV ranges".
  virtual std::string ReclaimerName() const = 0;
};

// A contiguous range of device addresses. Owned by its DeviceMemory; the
// pointer is valid until ReleaseRange.
class AddressRange {
 public:
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  DeviceAddress address() const { return address_; }
  PageCount pages() const { return pages_; }
  OwnerId owner() const {
    return OwnerId(owner_.load(std::memory_order_relaxed));
  }
  // For the owner of the range: what lies here. Found again through
  // DeviceMemory::Find, by any thread: what was written before set_user_data is
  // visible to whoever reads it. Null until set.
  void set_user_data(void* data) {
    user_data_.store(data, std::memory_order_release);
  }
  void* user_data() const { return user_data_.load(std::memory_order_acquire); }

 protected:
  AddressRange(DeviceAddress address, PageCount pages, OwnerId owner)
      : address_(address), pages_(pages), owner_(owner.value()) {}
  ~AddressRange() = default;
  void set_owner(OwnerId owner) {
    owner_.store(owner.value(), std::memory_order_relaxed);
  }

 private:
  const DeviceAddress address_;
  const PageCount pages_;
  std::atomic<uint32_t> owner_;
  std::atomic<void*> user_data_{nullptr};
};

struct DeviceMemoryOptions {
  DeviceId device;
  // Bytes of a physical page: a power of two and a multiple of the device's
  // granularity, 2 to 32 MiB in practice.
  Bytes page_size = MiB(2);
  // At most so much physical memory; 0: what the device has free at start, less
  // the headroom.
  Bytes limit;
  // Of what the driver reports as free on the device, so much is left to the
  // display and to other processes: asked for when pages are created, since
  // their use changes. 0: nothing, and nobody asks.
  Bytes headroom;
  // Addresses reserved at start; 0: 16 times the limit, at least 64 GiB, or as
  // much of that as the driver gives. When they are used up, the error says so:
  // it is not lack of memory.
  Bytes address_space;
  // Unmapped pages kept as handles for re-use beyond this many go back to the
  // driver at once; default: keep all until Trim or memory is short.
  PageCount cache_limit = PageCount(UINT64_MAX);
  // A thread keeps this many pages cached, as the limit allows, so that commits
  // find handles that were made while the device computed. It fills up at start
  // and after commits; what Trim gave back it makes again after the next
  // commit. 0: there is no thread.
  PageCount prepare_ahead;
  // When pressure begins and ends.
  PressureThresholds pressure;
  // SetSoftLimit. 0: none.
  Bytes soft_limit;
  // Told of commits, decommits and failures; null: nobody. Outlives the memory.
  EventTrace* trace = nullptr;
};

// Statistics are declared once, here: X(type, name, what it means). All are
// O(1) to read, under the lock; physical pages are counted once.
//
// Of addresses, in ranges handed out: reserved = mapped + unmapped.
// Of physical pages: in_use = live + cooling + cached + quarantined.
#define QUIRE_DEVICE_MEMORY_STATISTICS(X)                                  \
  X(Bytes, page_size, "bytes of one physical page")                        \
  X(Bytes, limit, "the most that in_use may be")                           \
  X(Bytes, address_space, "addresses reserved from the driver in all")     \
  X(Bytes, reserved, "addresses in ranges handed out")                     \
  X(Bytes, mapped, "addresses of live, cooling and quarantined slots")     \
  X(Bytes, unmapped, "addresses handed out with nothing under them")       \
  X(Bytes, shared, "mapped slots beyond one a page: what sharing saves")   \
  X(Bytes, in_use, "physical memory created and not released")             \
  X(Bytes, live, "mapped and held by an owner")                            \
  X(Bytes, cooling, "given up, and still mapped until a fence completes")  \
  X(Bytes, cached, "prepared, not mapped: kept for re-use")                \
  X(Bytes, quarantined, "lost to calls that the driver refused")           \
  X(Bytes, asleep, "pages given up that come back with their owners")      \
  X(Bytes, asleep_on_host, "pinned memory that holds their contents")      \
  X(Bytes, asleep_on_disk, "disk space that holds their contents")         \
  X(Bytes, peak_in_use, "largest in_use so far")                           \
  X(Bytes, peak_live, "largest live so far")                               \
  X(Bytes, over_limit, "in_use beyond the limit, after it was lowered")    \
  X(Bytes, soft_limit, "beyond it there is pressure; 0: there is none")    \
  X(Bytes, growable, "in_use may still grow by this much: limit - in_use") \
  X(uint64_t, pages_created, "pages created by the driver so far")         \
  X(uint64_t, pages_released, "pages given back to the driver so far")     \
  X(uint64_t, commits, "commits that mapped something")                    \
  X(uint64_t, commits_from_cache, "of these, without creating a page")

struct DeviceMemoryStatistics {
  // Of the fields: raised with each that is added.
  static constexpr uint32_t kVersion = 4;

#define QUIRE_DECLARE_STATISTIC(type, name, help) type name = type();
  QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_DECLARE_STATISTIC)
#undef QUIRE_DECLARE_STATISTIC
};

// How much of a verdict is worth its time: kBrief leaves out what compaction
// would free and the recent events, for callers who try again.
enum class VerdictDetail { kBrief, kFull };

class DeviceMemory {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Create(
      Driver* driver, OwnerRegistry* owners, DeviceMemoryOptions options);
  // Waits for what cools and gives everything back to the driver, ranges that
  // were not released included; what was quarantined is tried once more.
  // REQUIRES: no other thread is in a call, every reclaimer and all hooks were
  // removed.
  ~DeviceMemory();

  Driver* driver() const;
  DeviceId device() const;
  Bytes page_size() const;
  OwnerRegistry* owners() const;
  // Whether this process is a child of the one that made the memory. One load.
  bool in_forked_child() const;
  // All addresses of this memory: what statistics call address_space, from
  // here.
  DeviceAddress first_address() const;

  // ---- Addresses ----
  // `alignment` 0: the page size. Otherwise a power of two, which may exceed
  // the page size. Errors: kInvalidArgument (no pages, alignment), and
  // kResourceExhausted for addresses, told apart from memory.
  absl::StatusOr<AddressRange*> ReserveRange(PageCount pages, OwnerId owner,
                                             Bytes alignment = Bytes(0));
  // Decommits what is live or asleep, under `fence`; the addresses return once
  // the last page has cooled. `range` is dead to the caller at once. What the
  // driver refuses to unmap is quarantined, and keeps its addresses.
  void ReleaseRange(AddressRange* range, const Fence& fence);
  // Accounts the range, live pages included, to another owner. O(pages), or
  // O(1) where the owner stays the same. Errors, which change nothing:
  // kFailedPrecondition where a page of the range is live or cooling under
  // another range as well, or asleep; kInvalidArgument where owner >=
  // kMaxOwners; kResourceExhausted with the verdict where the limits of the new
  // owner are against it, for which nothing is reclaimed.
  absl::Status SetOwner(AddressRange* range, OwnerId owner);
  // The range that contains `address`, or null. O(1), lock-free: one load from
  // a table indexed by page number.
  AddressRange* Find(DeviceAddress address) const;
  // Whether `address` lies in this device's reservation, in a range or not.
  bool Contains(DeviceAddress address) const;

  // ---- Backing ----
  // Backs the slots [first, first + count) of `range`; live ones stay as they
  // are, cooling ones become live again without a driver call. All or nothing:
  // after an error no slot of the range has changed, and no page was created.
  // Takes, in this order: cached pages; new ones under the limit; pages whose
  // fences have completed; what the reclaimers give; then waits for every
  // fence that can complete; then asks the hooks. Errors: kResourceExhausted
  // with the verdict (verdict.h); kInvalidArgument for slots outside the range;
  // kFailedPrecondition for slots that are asleep; kDataLoss where slots are
  // quarantined, by this call or before; the driver's own.
  absl::Status Commit(AddressRange* range, PageCount first, PageCount count);
  // As Commit, but does not wait and asks no hook: pages that are cooling are
  // not to be had. The verdict is brief.
  absl::Status TryCommit(AddressRange* range, PageCount first, PageCount count);
  // The same with a say in which page lies where: slot first + i gets pages[i],
  // which must be live under some slot of this memory and of the same owner, or
  // any page where that is PageHandle(). One page may be named more than once.
  // All slots must be unbacked. Other errors: kFailedPrecondition (slots that
  // are backed, pages that are not live or of another owner), kNotFound (no
  // such page).
  absl::Status CommitPages(AddressRange* range, PageCount first,
                           std::span<const PageHandle> pages);
  absl::Status TryCommitPages(AddressRange* range, PageCount first,
                              std::span<const PageHandle> pages);
  // The page under a slot; PageHandle() where it is not live. It stays valid
  // while that slot is live, whoever else maps it.
  PageHandle PageAt(const AddressRange* range, PageCount slot) const;
  // The same for several, appended to `pages`: none where they are not all in
  // the range.
  void AppendPages(const AddressRange* range, PageCount first, PageCount count,
                   std::vector<PageHandle>* pages) const;
  // Live slots from `first` on change to other live pages of the same owner:
  // slot first + i to pages[i], which may be the page it has. Two driver calls
  // for all of them, one after the other: the caller guarantees that nothing
  // uses the memory of these slots before the call has returned, and has copied
  // what it wants to keep. A page that no slot has any more is free. All or
  // nothing, except that slots are quarantined where the driver cannot put back
  // what it took away (kDataLoss). Asks no reclaimer and waits for nothing, so
  // that it may be called under a lock that a reclaimer takes. Errors: as for
  // CommitPages, and kFailedPrecondition for slots that are not live;
  // kResourceExhausted is one of mappings, the driver's, without a verdict.
  absl::Status Remap(AddressRange* range, PageCount first,
                     std::span<const PageHandle> pages);
  absl::Status Remap(AddressRange* range, PageCount slot, PageHandle page) {
    return Remap(range, slot, std::span<const PageHandle>(&page, 1));
  }
  // The live slots among [first, first + count) cool under `fence`, or are
  // unmapped at once where it is complete; those that are asleep are unbacked,
  // and what was saved of them goes; the rest stay as they are. An error
  // of the driver means that slots were quarantined: none is live afterwards.
  absl::Status Decommit(AddressRange* range, PageCount first, PageCount count,
                        const Fence& fence);
  // Live slots among [first, first + count). O(count).
  PageCount CommittedPages(const AddressRange* range, PageCount first,
                           PageCount count) const;

  // Prepare apart from commit, for those who commit under a lock of their own
  // that a reclaimer takes. Gather makes sure that `pages` are cached, that the
  // owner may have them, and that `addresses` side by side are free, as
  // ReserveRange and Commit would, with their errors; whoever comes first takes
  // them.
  absl::Status Gather(OwnerId owner, PageCount pages, PageCount addresses,
                      Bytes alignment, bool wait);
  // A range of pages.size() slots, each backed as by CommitPages, from cached
  // pages and free addresses only: creates no page, asks no reclaimer, waits
  // for nothing. Errors: kAborted where these are fewer than it takes (gather
  // and try again), and those of CommitPages; kResourceExhausted is one of
  // mappings, the driver's, without a verdict: see DescribeMappingShortage.
  absl::StatusOr<AddressRange*> TryMakeRange(OwnerId owner, Bytes alignment,
                                             std::span<const PageHandle> pages);
  // The same in two steps: a range of which nothing is backed, and pages under
  // slots of it, none of which is live. Slots that cool become live again.
  absl::StatusOr<AddressRange*> TryReserveRange(PageCount pages, OwnerId owner,
                                                Bytes alignment);
  absl::Status TryBackSlots(AddressRange* range, PageCount first,
                            PageCount count);
  // Unmaps what has cooled. Returns the pages that are cached now: what a
  // commit can have without creating one. Waits for nothing.
  PageCount Harvest();
  // Creates handles ahead until `count` are cached, or as many as the limit
  // allows, so that later commits create none. All or nothing where the driver
  // refuses.
  absl::Status Prepare(PageCount count);
  // Gives cached handles back to the driver until at most `keep` are left, what
  // has cooled and what reclaimers hold included. Waits for nothing. Callers
  // may hold locks that hooks take, so listeners are told by the layer above
  // (DeviceAllocator::Trim and Compact).
  CompactionReport Trim(PageCount keep = PageCount(0));

  // ---- Limits ----
  // May change at any time, also to less than is in use: nothing is taken from
  // anybody, growth stops until enough was given up, and the statistics show
  // what is beyond. Commits that wait see a change at once.
  //
  // The most that in_use may be. Error: kInvalidArgument for less than a page.
  absl::Status SetLimit(Bytes limit);
  // Beyond so much that is live, cooling or quarantined the memory is under
  // high pressure at least, for hooks to do something about it: nothing is
  // refused for its sake. 0: there is none. Error: kInvalidArgument for less
  // than a page. It may be above the limit, and means nothing then.
  absl::Status SetSoftLimit(Bytes limit);
  // Errors: kInvalidArgument for limits that contradict each other or hold no
  // page, and for owners out of bounds; kFailedPrecondition for a reserved
  // minimum that the limit of this memory does not allow any more, given what
  // others use and have reserved.
  absl::Status SetOwnerLimits(OwnerId owner, const OwnerLimits& limits);
  // O(levels of owners).
  OwnerStatistics GetOwnerStatistics(OwnerId owner) const;
  // Of all owners that have had a page or a limit here, by id. O(owners).
  std::vector<OwnerStatistics> GetOwnerStatistics() const;
  // The most pages that a commit for `owner` can have now, everything
  // reclaimable reclaimed and every cooling page waited for: what limits, other
  // owners' reservations and the headroom leave. `idle[id]` are live pages of
  // owner `id` that its reclaimer would give up; where that is not said they
  // count as used, and the result may be too small. Asks reclaimers, under the
  // same rules as Commit. O(owners).
  PageCount CalculateLargestCommit(OwnerId owner,
                                   std::span<const uint64_t> idle = {}) const;

  // Reclaimers are asked in the order of registration. RemoveReclaimer returns
  // when no thread is inside the reclaimer any more: call it without a lock
  // that Reclaim takes, and not from Reclaim.
  void AddReclaimer(PageReclaimer* reclaimer);
  void RemoveReclaimer(PageReclaimer* reclaimer);
  // ---- Hooks ----
  // Called in the order of registration. RemoveHooks returns when no thread is
  // inside the hooks any more: call it without a lock that they take, and not
  // from one of them.
  void AddHooks(MemoryHooks* hooks);
  void RemoveHooks(MemoryHooks* hooks);
  // For layers above whose own search has failed with `status`: whether a hook
  // gave up something, so that it is worth another search. False where `status`
  // has no verdict.
  bool AskOutOfMemoryHooks(const absl::Status& status);
  // Of the memory as a whole, without a lock.
  PressureLevel pressure() const;
  // As in the statistics.
  Bytes limit() const;

  // What all reclaimers could give now. O(reclaimers). Same rules as
  // Reclaimable.
  PageCount ReclaimablePages() const;
  // The error of a commit of `pages` pages for `owner` that cannot be had,
  // verdict included: for callers that see so before they try. Asks reclaimers,
  // under the same rules as Commit.
  absl::Status DescribeShortage(
      PageCount pages, OwnerId owner = kUnnamedOwner,
      VerdictDetail detail = VerdictDetail::kFull) const;
  // The same where the driver takes no more mappings, and said so: `refusal`.
  absl::Status DescribeMappingShortage(PageCount pages, OwnerId owner,
                                       const absl::Status& refusal) const;

  // ---- Compaction ----
  // Every live page of `owner`, and of the owners below it, is unmapped and
  // free for others, whatever it was used for; addresses, and who shares a page
  // with whom, stay. What reclaimers hold of the owner is not saved but freed;
  // slots that cool are left to cool. Asleep slots fault when touched, cannot
  // be committed, and may be decommitted or released.
  //
  // All or nothing: after an error everything is awake, with its contents
  // (kDataLoss apart: slots were quarantined). What sleeps already sleeps on
  // where it is; nothing to do is no error. Meanwhile, calls that change ranges
  // of the owner wait, all others do not.
  //
  // Errors: kFailedPrecondition without an open section of this memory, or
  // where another thread has one of the owners in hand; kInvalidArgument for
  // kDisk without a folder; what a reclaimer has against it (BeforeSleep);
  // kResourceExhausted where the host has no memory, or
  // the disk no room; those of the file, which name the folder; the driver's.
  absl::StatusOr<SleepReport> Sleep(const QuiescentSection& section,
                                    OwnerId owner,
                                    const SleepOptions& options = {});
  // All that sleeps of `owner`, and of those below it, is live again with its
  // contents, at the same addresses: of what slept above it, a part. Takes
  // pages as Commit does, waits as it does, with its errors. All or nothing:
  // after an error all of it sleeps on (kDataLoss apart). What is awake stays
  // as it is; nothing to do is no error. Needs no section, since nobody can be
  // using it.
  absl::StatusOr<SleepReport> Wake(OwnerId owner,
                                   const WakeOptions& options = {});
  // Whether a QuiescentSection (quiescent.h) of this memory is open, or waits
  // to be.
  bool in_quiescence() const;

  DeviceMemoryStatistics GetStatistics() const;
  // GetStatistics().live without the lock, as of some moment ago.
  Bytes live_bytes() const;
  // OK, or the first refusal of the driver that put memory into quarantine. The
  // memory stays usable.
  absl::Status Health() const;
  // Live bytes per owner, indexed by OwnerId, those of owners below it not
  // included: the sum is `live`. O(owners).
  std::vector<Bytes> GetLiveByOwner() const;
  // One entry per slot of a range that is live or cooling, in address order:
  // for page maps. O(pages).
  struct PageMapEntry {
    DeviceAddress address;
    PageHandle page;
    OwnerId owner;
    bool cooling;
  };
  std::vector<PageMapEntry> CalculatePageMap() const;
  // Walks everything; an error names the equation that does not hold.
  absl::Status CheckInvariants() const;

 private:
  friend class HookDeferral;
  class Impl;
  friend class QuiescentSection;
  explicit DeviceMemory(std::unique_ptr<Impl> impl);
  // kFailedPrecondition where there is a section already.
  absl::Status BeginQuiescence();
  void EndQuiescence();

  std::unique_ptr<Impl> impl_;
};

// Runs `operation`, which returns a Status or StatusOr, with hooks held back,
// and again where it was short of memory and a hook gave up something. For
// layers above, whose operations take locks of their own.
template <typename Operation>
auto WithOutOfMemoryHooks(DeviceMemory* memory, Operation operation) {
  const auto run = [&] {
    const HookDeferral deferral(memory);
    return operation();
  };
  auto result = run();
  for (int round = 0; round < kOutOfMemoryRounds && !result.ok(); ++round) {
    absl::Status status;
    if constexpr (std::is_same_v<decltype(result), absl::Status>) {
      status = result;
    } else {
      status = result.status();
    }
    if (!memory->AskOutOfMemoryHooks(status)) break;
    result = run();
  }
  return result;
}

}  // namespace quire

#endif  // QUIRE_ALLOC_DEVICE_MEMORY_H_
