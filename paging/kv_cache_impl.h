// The state of a KvCache. Internal: kv_cache.cc is the public face,
// kv_cache_records.h what is kept of a sequence, kv_cache_sequences.cc holds
// the sequences, kv_cache_backing.cc the pages under them, kv_cache_report.cc
// tells of both, kv_cache_ahead.cc maps pages that will be needed,
// kv_cache_window.cc drops tokens that no kernel sees, kv_cache_branches.cc
// leaves prefixes where prompts part, kv_cache_room.cc gives pages back while
// the device computes, kv_cache_prefix.cc is what is kept of
// sequences that are gone, kv_cache_tails.cc packs the ends of that,
// kv_cache_share.cc is how sequences share, kv_cache_swap.cc moves them to host
// memory and back, and kv_cache_sleep.cc finds their pages again after a sleep.
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

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/kv_cache_records.h"
#include "paging/kv_region.h"
#include "paging/page_ahead.h"
#include "paging/parked_regions.h"
#include "paging/prefix_index.h"
#include "paging/shared_pages.h"
#include "paging/swap_space.h"
#include "paging/swapped_rows.h"
#include "paging/tail_store.h"
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
        bare_(&geometry_, nullptr),
        index_({.block_tokens = std::max(options.prefix_block_tokens, 1u)}),
        shared_(&geometry_),
        tails_(memory, options.owner),
        horizon_(options.page_ahead.max_steps) {
    bare_.SetLimit(options.limit);
  }
  ~Impl();

  const RegionGeometry& geometry() const { return geometry_; }
  const KvCacheOptions& options() const { return options_; }

  absl::StatusOr<SequenceId> Admit(uint64_t tokens, const KvTokenLimit& limit)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::StatusOr<PromptAdmission> AdmitPrompt(std::span<const int32_t> tokens,
                                              const PromptOptions& options)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Publish(SequenceId sequence, std::span<const int32_t> tokens)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::StatusOr<SequenceId> Fork(SequenceId parent, StreamId stream)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  void AdvanceClock(uint64_t now) ABSL_LOCKS_EXCLUDED(state_mutex_);
  void ExpectPrompt(std::span<const int32_t> tokens, uint64_t turn)
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  void AdvanceTurn(uint64_t turn) ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::Status Step(std::span<const SequenceStep> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Shrink(SequenceId sequence, uint64_t length, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status Release(SequenceId sequence, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // Makes swapping possible. Once.
  absl::Status StartSwap();
  absl::Status SwapOut(SequenceId sequence, const Fence& fence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status SwapIn(SequenceId sequence)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  absl::StatusOr<KvLayerView> View(SequenceId sequence, uint32_t layer) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  void EndBatch(const Fence& fence) ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<KvKeptTokens> Kept(SequenceId sequence, uint32_t layer) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);

  // Starts the thread that maps ahead. Once.
  absl::Status StartAhead();
  absl::StatusOr<PageCount> PrepareAhead(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  bool PrepareRoom(std::span<const int32_t> prompt,
                   const SequenceGrowth& growth)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  bool KeepsAllTokens() const { return bare_.KeepsAllTokens(); }
  // The same of a sequence with a limit of its own.
  bool KeepsAllTokens(const KvTokenLimit& limit) const {
    return limit == options_.limit
               ? KeepsAllTokens()
               : limit.max_tokens == 0 &&
                     std::ranges::all_of(geometry_.layout().kinds(),
                                         [](const KvLayerKind& kind) {
                                           return kind.window == 0;
                                         });
  }
  absl::StatusOr<KvTokenLimit> LimitOf(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  uint64_t AdmissibleTokens() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  bool HasRoomFor(std::span<const SequenceGrowth> growths) const;
  CacheUse Use() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  KvCacheStatistics GetStatistics() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  absl::Status CheckInvariants() const
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // Pages of the owner, or of those below it, have other handles.
  void AfterWake(OwnerId owner) ABSL_LOCKS_EXCLUDED(state_mutex_);

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
  // Whether a commit waits for pages that cool and asks for more.
  enum class Patience { kWait, kNone };
  // Every change of a region's pages or tokens, so that the totals follow.
  template <typename Change>
  void Modify(KvRegion* region, Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    totals_.Subtract(*region);
    change(region);
    totals_.Add(*region);
    shared_.Update(region);
    PublishReclaimable();
  }
  // Pages: each once, of sequences where one has it.
  SlotTotals CountPages() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    const SharedPages::Excess& excess = shared_.excess();
    const uint64_t tails = tails_.pages().value();
    return {totals_.admitted - excess.admitted,
            totals_.parked - excess.parked + tails,
            totals_.cached - excess.parked + tails,
            totals_.spare - excess.spare + tails};
  }
  void PublishReclaimable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    reclaimable_.store(CountPages().spare, std::memory_order_relaxed);
  }

  static uint64_t SlotOf(SequenceId id) {
    return (id.value() & UINT32_MAX) - 1;
  }
  std::optional<size_t> FindSlot(SequenceId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status CheckLayer(uint32_t layer) const;
  SequenceId IdOf(size_t slot) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  bool HasFreeSlot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
    return sequences_.size() - free_slots_.size() < options_.max_sequences;
  }
  // Puts a region into a slot: the best parked one, or a reserved one; where
  // memory or addresses are short, the prefix that is to be given up next is
  // given up for it.
  absl::StatusOr<TakenRegion> TakeRegion(uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // The same with a region that has no pages.
  absl::StatusOr<TakenRegion> TakeEmptyRegion()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // A parked region whose prefix is pinned for the sequence.
  absl::StatusOr<TakenRegion> TakeHolder(const KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CheckLength(uint64_t tokens) const;
  static absl::Status NoSuchSequence(SequenceId id, const char* purpose);
  absl::Status CheckFreeSlot() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::StatusOr<std::unique_ptr<KvRegion>> ReserveRegion()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  SequenceId BeginSequence(size_t slot, uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  TakenRegion OpenSlot(ParkedRegions::Entry entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Of a sequence that was, and whose fence its region has.
  void EndSequence(size_t slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  void CloseSlot(size_t slot, std::optional<uint64_t> stamp)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  void Dispose(std::unique_ptr<KvRegion> region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // Checks the steps, and leaves in demands_ those that need more pages.
  absl::Status Examine(std::span<const SequenceStep> steps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // The same for what a step writes on pages that are shared.
  absl::Status ExamineShared(const KvSequence& sequence,
                             const SequenceStep& step)
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
  // Before a step of the sequence to `length`. Unless it is urgent, what is
  // held for a branch, or may be being copied, is left to later steps.
  absl::Status DropBehindWindows(KvSequence* sequence, uint64_t length,
                                 bool urgent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // These steps lack pages: what was left is dropped now. False where that
  // makes nothing spare.
  bool DropAtOnce(std::span<const SequenceStep> steps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // Gives back what no kernel sees or uses any more, a piece of it, while the
  // device computes. False where there is nothing to give.
  bool ReturnDropped() ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  PageCount ReturnBehindWindows()
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  absl::Status CheckGoingBack(const KvSequence& sequence, uint64_t length) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Of a sequence that ends, and has dropped tokens of what it published: what
  // the token behind that sees stays, where it is there, so that a prompt may
  // continue it.
  void KeepLastWindows(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  absl::StatusOr<PackedTail> TakeLastWindow(const KvRegion& region,
                                            uint32_t group, uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // No token of the region is in use any more. What is behind a gap is given
  // back under its fence.
  void Forget(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  Bytes KeptBytes(const KvSequence& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // ---- Branches (kv_cache_branches.cc) ----
  // The most tokens that a layer with a window, or under the limit, keeps.
  uint64_t LongestWindow() const;
  // Where the region's sequence will part from others, as it was found to do
  // when it was admitted; 0: nowhere.
  void SetBranch(KvRegion* region, uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Whether it has come there.
  bool IsAtBranch(const KvRegion& region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Whether this step of it is to leave the windows there.
  bool HoldsForBranch(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Makes the prefixes of these steps' sequences that have come to a branch.
  void KeepBranches(std::span<const SequenceStep> steps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // The same of one sequence, where pages are to be had at once. False where no
  // sequence has come to a branch.
  bool KeepBranchAhead() ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  // That a prefix of so many of the region's tokens takes.
  PageCount PagesOfBranch(const KvRegion& region, uint64_t tokens) const;
  void KeepBranch(KvRegion* holder)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status MakePrefix(KvRegion* holder, uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);

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
  PageDemand MostUrgent(uint32_t steps) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // A piece of what is done while the device computes: pages that were mapped,
  // and whether there may be more to do.
  struct AheadPiece {
    PageCount mapped;
    bool more = false;
  };
  absl::StatusOr<AheadPiece> PrepareOne(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  // Maps one run of pages; 0 where there is none to map, or no pages at once.
  absl::StatusOr<PageCount> MapMostUrgent(std::optional<uint32_t> steps)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);

  // ---- Time and room (kv_cache_room.cc) ----
  // Calls that began at `start`, and gave `returned` pages back, are over.
  void CountCalls(uint64_t start, PageCount returned)
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  // Pages to be given back at a time.
  PageCount PieceInTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // What may stay mapped behind sequences that ended, prefixes aside.
  PageCount ParkedLimit() const {
    return options_.eager_reclaim ? PageCount(0) : options_.max_parked;
  }
  bool LimitsParked() const { return ParkedLimit() != kAllParked; }
  // A piece of Trim. False where there is nothing to give back.
  bool TrimAhead() ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  // Gives back up to `most` pages beyond the limit.
  PageCount Trim(PageCount most, bool complete_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Of regions that were adopted with more pages than their sequences need.
  void TrimAdopted(PageCount most, PageCount* given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // By group, what the sequence needs now and as far as page-ahead may look.
  std::vector<PageCount> PagesSoon(const KvSequence& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // That an admission has to map of which the first `cached` tokens are there.
  PageCount PagesToAdmit(uint64_t cached, const SequenceGrowth& growth) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // Backs every demand, and leaves `headroom` pages obtainable: all or nothing.
  // True where pages had to be mapped.
  absl::StatusOr<bool> Back(std::span<PageDemand> demands, PageCount headroom)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // Backs a region that has no token in use for `tokens` tokens, but for what
  // has left its windows: up to behind[group], as KvRegion::behind of who had
  // them.
  absl::Status BackBehindGaps(KvRegion* region,
                              std::span<const PageCount> behind,
                              uint64_t tokens, PageCount headroom)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitPlan(std::span<const PlannedRun> plan, PageSupply supply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CommitRuns(std::span<const PlannedRun> runs, Patience patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // Waits until pages that the region shared, and gave back, are unmapped: a
  // commit would bring them back, and they may be others' by now.
  absl::Status AwaitUnsharing(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  std::vector<PlannedRun> WithMapAhead(std::span<const PlannedRun> plan) const;

  // Gives back the end of a part, which is no longer live even where the memory
  // refuses: the region is damaged then.
  absl::Status Decommit(KvRegion* region, const PageRun& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Decommits up to `wanted` spare slots, but the first kept[group] of each
  // part, after the tails that lie behind these; how many pages nobody needs
  // any more.
  absl::StatusOr<PageCount> GiveBack(KvRegion* region, PageCount wanted,
                                     std::span<const PageCount> kept = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The parked regions, oldest first, that are kept for a prefix, or are not.
  std::vector<KvRegion*> ParkedRegionsThatAre(bool cached) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Gives back what regions have to spare, but for prefixes, until `given` is
  // `wanted`.
  void ReclaimSpare(std::span<KvRegion* const> regions, PageCount wanted,
                    bool complete_only, PageCount* given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Gives back up to `wanted` pages that no sequence has and no kernel uses:
  // parked ones, and the ends of prefixes. Others need not wait for them.
  PageCount ReclaimIdle(PageCount wanted) ABSL_LOCKS_EXCLUDED(state_mutex_);
  PageCount SlotInRange(const PageRun& run) const {
    return Plus(geometry_.FirstPage(run.group), run.first);
  }

  // ---- Prefixes (kv_cache_prefix.cc) ----
  PrefixHit FindPrefix(std::span<const int32_t> tokens, StreamId stream)
      ABSL_LOCKS_EXCLUDED(state_mutex_);
  // Whether rows from `tokens` on may be written: on no page that is shared.
  bool IsWritableFrom(const KvRegion& region, uint64_t tokens) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  void SetPrefix(KvRegion* region, PrefixEntryId prefix)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  void DropPrefix(KvRegion* region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The region has no prefix, and no page that lies elsewhere too.
  void ForgetPrefix(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // After pages were given back: the prefix ends where they do.
  void CutPrefix(KvRegion* region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The parked region whose prefix is to be given up next and that nobody uses
  // any more, with its prefix forgotten; none where there is none, or where it
  // has fewer than `least` pages, or more than `most`: it would give up more
  // than is needed.
  ParkedRegions::Entry TakeVictim(PageCount least, PageCount most)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // By group; none for a region without a prefix.
  std::vector<PageCount> PagesOfPrefix(const KvRegion& region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // What nobody expects of the prefix is not kept for prompts any more. True
  // where something was.
  bool CutToExpected(const KvRegion& region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  void ReclaimPrefixes(PageCount wanted, bool complete_only, PageCount* given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status CheckSharing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // ---- Packed tails (kv_cache_tails.cc) ----
  // Rows of a cached prefix on a page that could be packed.
  struct LooseTail {
    KvRegion* region;
    uint32_t group;
    PageCount slot;
    Bytes size;
  };
  // In the order of giving up.
  std::vector<LooseTail> LooseTails()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Packs tails until `given` is `wanted`, if that is to be had.
  void PackTails(PageCount wanted, PageCount* given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // All of one region's. False, and nothing has changed, where the driver or
  // the memory refuses.
  bool Pack(std::span<const LooseTail> loose)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  template <typename Predicate>
  void FreeTailsIf(KvRegion* region, Predicate predicate)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The region's tails, but those that lie within the first kept[group] pages.
  void FreeTails(KvRegion* region, std::span<const PageCount> kept = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Those that no row of the prefix needs, or whose pages before them are gone.
  void FreeLooseEnds(KvRegion* region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  static const PackedTail* FindTail(const KvRegion& region, uint32_t group);
  // The tokens whose rows lie on the region's pages or in its tails.
  uint64_t TokensHeld(const KvRegion& region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The tails of a region that a sequence has adopted, and backed, are copied
  // to its pages. After an error the prefix ends before them.
  absl::Status UnpackTails(KvRegion* region, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CheckTails() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // ---- Sharing (kv_cache_share.cc) ----
  absl::StatusOr<PromptAdmission> AdmitPromptOn(const PrefixHit& hit,
                                                uint64_t length,
                                                const PromptOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // The target's prefix is what the holder has of its first `tokens` tokens.
  void HoldLike(const KvRegion& holder, uint64_t tokens, KvRegion* target)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Pages of a group that rows of `tokens` tokens fill.
  uint64_t FullPages(uint32_t group, uint64_t tokens) const;
  // Tokens whose rows fill pages in every group: a beginning of a multiple of
  // so many is shared without a copy.
  uint64_t AlignedTokens() const;
  struct SharedRows {
    uint64_t tokens;  // that the target has
    uint64_t length;  // for which it is backed
    // Kernels see windows of sequences of so many tokens, or more; 0: as the
    // holder's do.
    uint64_t seen_from;
  };
  // Maps what of the tokens can be shared whole, backs the target, and copies
  // the rest.
  absl::Status ShareRows(KvRegion* holder, KvRegion* target,
                         const SharedRows& rows, PageCount headroom,
                         StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status MapShared(KvRegion* holder, KvRegion* target, uint64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  absl::Status CopyRows(KvRegion* holder, KvRegion* target, uint64_t tokens,
                        StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  struct RowCopy {
    DeviceAddress to;
    DeviceAddress from;
    Bytes size;
  };
  // Bytes [from, to) of a group's part.
  void AppendRows(const KvRegion& holder, const KvRegion& target,
                  uint32_t group, uint64_t from, uint64_t to,
                  std::vector<RowCopy>* copies) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // From the holder, and the tail store where that has tails of it.
  absl::Status QueueCopies(std::span<const RowCopy> copies, KvRegion* holder,
                           KvRegion* target, StreamId stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // Pages that the sequence in the slot is to write were others' too, whose
  // kernels may read them still.
  absl::Status AwaitLateReaders(size_t slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // Gives the sequence in the slot, which was shrunk, pages of its own where
  // rows behind its length lie on pages that are shared.
  absl::Status Unshare(size_t slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  void LosePage(size_t slot, uint32_t group, uint64_t page)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  DeviceAddress AddressOf(const KvRegion& region, uint32_t group,
                          uint64_t offset) const {
    return DeviceAddress(region.range()->address().value() +
                         geometry_.Offset(group).value() + offset);
  }

  // ---- Swap (kv_cache_swap.cc) ----
  // The slot of a sequence that is on the device, and why there is none.
  std::optional<size_t> FindResident(SequenceId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status NotResident(SequenceId id, const char* purpose) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // SwapOut with the host memory that is pinned. Where that is too little,
  // nothing has changed, and `unpinned` blocks are needed.
  absl::Status SwapOutToPinned(SequenceId id, const Fence& fence,
                               uint64_t* unpinned)
      ABSL_LOCKS_EXCLUDED(operation_mutex_, state_mutex_);
  // Finds host memory for what the region has: in blocks, or, where its pages
  // lie elsewhere too, in kept pages. Null where `unpinned` blocks are needed.
  absl::StatusOr<std::unique_ptr<SwappedRows>> SetAside(const KvRegion& region,
                                                        uint64_t* unpinned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Queues copies of what is in blocks, in either direction.
  enum class SwapDirection { kOut, kIn };
  absl::Status CopyBlocks(const KvRegion& region, const SwappedRows& rows,
                          SwapDirection direction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status CopyPages(DeviceAddress pages, std::byte* host, Bytes size,
                         SwapDirection direction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Queues copies of kept pages under slots that are to go, unless they were
  // written before.
  absl::Status WriteOut(const KvRegion& region, const SwappedRows& rows,
                        std::span<const PageRun> runs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // The region keeps so many pages of each part, and none is in use.
  void Retreat(KvRegion* region, std::span<const PageCount> kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // The page that who came back before has for the rows of a kept page, in the
  // same slot; PageHandle(): nobody does.
  PageHandle FindReturned(const KeptPage& page, uint32_t group,
                          size_t slot) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  // Maps these under a sequence that comes back.
  absl::Status MapReturned(KvRegion* region, const SwappedRows& rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // The sequence is back: those that are not may have its pages.
  void ShowReturned(SequenceId id, KvRegion* region, const SwappedRows& rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  // Puts the first slots of a group on the books of shared pages.
  void EnterFirst(KvRegion* region, uint32_t group, uint64_t slots)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status ReadIn(KvRegion* region, const SwappedRows& rows,
                      std::span<const PageCount> mapped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_);
  // The sequence is not swapped out any more: it is back, or released.
  void EndSwap(KvSequence* sequence, std::span<const PageCount> mapped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(operation_mutex_, state_mutex_);
  std::vector<PageCount> MappedPages(const KvRegion& region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  void Unkeep(KeptPage& page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  void ReclaimSwapped(PageCount wanted, PageCount* given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);
  absl::Status CheckSwapped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  // Completes behind all that is queued on the stream.
  Fence FenceBehind(StreamId stream) const;
  // The region's fence is behind this one, and behind the copies that others
  // make from it. An error of the driver changes nothing.
  absl::Status SetFence(KvRegion* region, const Fence& fence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  PageSupply GetSupply() const;
  absl::Status Shortage(PageCount wanted, PageCount headroom) const;
  absl::Status CheckRegion(const KvRegion& region, bool asleep,
                           SlotTotals* counted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  DeviceMemory* const memory_;
  const RegionGeometry geometry_;
  const KvCacheOptions options_;
  KvRegion bare_;  // for arithmetic, and the same ever after

  mutable Mutex operation_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  mutable Mutex state_mutex_;
  // Of Step: regions that need pages, and slots that need pages of their own.
  std::vector<PageDemand> demands_ ABSL_GUARDED_BY(operation_mutex_);
  std::vector<size_t> on_shared_pages_ ABSL_GUARDED_BY(operation_mutex_);
  // Regions of sequences with a branch to come.
  uint64_t branches_ ABSL_GUARDED_BY(operation_mutex_) = 0;
  // Null where there is no swap space. Destroyed after those who have blocks.
  std::unique_ptr<SwapSpace> swap_space_;
  StreamId copy_stream_;  // calls with it are made under state_mutex_
  // By handle: those that lie under a sequence that is swapped out.
  absl::flat_hash_map<PageHandle, std::shared_ptr<KeptPage>> kept_pages_
      ABSL_GUARDED_BY(state_mutex_);
  std::vector<KvSequence> sequences_ ABSL_GUARDED_BY(state_mutex_);
  std::vector<size_t> free_slots_ ABSL_GUARDED_BY(state_mutex_);
  ParkedRegions parked_ ABSL_GUARDED_BY(state_mutex_);
  PrefixIndex index_ ABSL_GUARDED_BY(state_mutex_);
  absl::flat_hash_map<PrefixEntryId, KvRegion*> holders_
      ABSL_GUARDED_BY(state_mutex_);
  SharedPages shared_ ABSL_GUARDED_BY(state_mutex_);
  TailStore tails_ ABSL_GUARDED_BY(state_mutex_);
  // Of copies to the tail store; StreamId() before the first one.
  StreamId tail_stream_ ABSL_GUARDED_BY(state_mutex_);
  SlotTotals totals_ ABSL_GUARDED_BY(state_mutex_);
  uint64_t tokens_ ABSL_GUARDED_BY(state_mutex_) = 0;
  // Of GetStatistics, what is counted as it happens.
  KvCacheStatistics counted_ ABSL_GUARDED_BY(state_mutex_);
  // Batches that were ended, and what the last one waits for.
  uint64_t batch_ ABSL_GUARDED_BY(state_mutex_) = 1;
  Fence batch_fence_ ABSL_GUARDED_BY(state_mutex_);
  // Sequences have pages behind their windows, or readers, that ReturnDropped
  // is to see.
  bool dropped_ ABSL_GUARDED_BY(state_mutex_) = false;
  uint64_t attempted_steps_ ABSL_GUARDED_BY(state_mutex_) = 0;
  // There may be pages beyond ParkedLimit, under parked regions or under those
  // that these sequences have adopted.
  bool trim_ ABSL_GUARDED_BY(state_mutex_) = false;
  std::vector<SequenceId> adopted_ ABSL_GUARDED_BY(state_mutex_);
  // The batch of the last step that the horizon was told of, and the step after
  // which PrepareRoom was called last.
  uint64_t timed_batch_ ABSL_GUARDED_BY(state_mutex_) = 0;
  uint64_t room_step_ ABSL_GUARDED_BY(state_mutex_) = UINT64_MAX;
  AheadHorizon horizon_ ABSL_GUARDED_BY(state_mutex_);
  // Admit and Step that wait for operation_mutex_: the thread lets them pass.
  std::atomic<uint32_t> waiting_{0};
  // Whether MapMostUrgent is in a driver call.
  std::atomic<bool> mapping_ahead_{false};
  // CountPages().spare, to be read from under the locks of others.
  std::atomic<uint64_t> reclaimable_{0};
  std::unique_ptr<PrepareThread> ahead_thread_;  // null: none
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_IMPL_H_
