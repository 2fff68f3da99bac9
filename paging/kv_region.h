// One sequence's addresses and the pages under them: arithmetic only.
//
// A region is ONE address range for all layer groups, cut into one page-aligned
// part per group, rather than a range per group:
//   - it exists or it does not: reserving and releasing have no half-way state
//     that would have to be rolled back;
//   - all regions of a cache are of one size, so that addresses never fragment
//     and any parked region fits any sequence;
//   - an address leads to its sequence by one look-up.
// A range per group would save nothing: parts of different groups are never
// adjacent pages, so that commits are per group either way.
//
//   | group 0: capacity pages | group 1: capacity pages | ... | last group |
//   | committed ... unbacked  | committed ... unbacked  |
//
// Backing is a prefix of each part, but for what has left the window of its
// layers:
//
//   | sinks | gone | behind the window | window | further pages | unbacked |
//           `------ not needed -------'         `- not needed -'
//   `needed'                           `needed -'
//
// What is gone has no page any more: slots from the sinks on, in this order, so
// that there is one gap. Committed pages that the tokens in use do not need are
// *spare*: no kernel queued since touches them, so they may be given back at
// any time, under the region's fence. In a parked region no token is in use,
// there is no gap and every page is spare.

#ifndef QUIRE_PAGING_KV_REGION_H_
#define QUIRE_PAGING_KV_REGION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/prefix_index.h"
#include "paging/shared_pages.h"
#include "paging/tail_store.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

// A sum of page counts; what does not fit stays at the largest number, which
// every comparison with a supply refuses.
constexpr PageCount Plus(PageCount a, PageCount b) {
  return PageCount(SaturatingAdd(a.value(), b.value()));
}

// Whether a fence that is recorded later on these streams covers this one.
bool IsOnStreams(const Fence& fence, std::span<const StreamId> streams);

// What all regions of a cache have in common. Immutable.
class RegionGeometry {
 public:
  // Errors: kInvalidArgument where max_tokens is 0 or a region does not fit in
  // 64 bits of address. REQUIRES: page_size > 0.
  static absl::StatusOr<RegionGeometry> Create(const KvLayout& layout,
                                               uint64_t max_tokens,
                                               Bytes page_size);

  const KvLayout& layout() const { return layout_; }
  uint64_t max_tokens() const { return max_tokens_; }
  Bytes page_size() const { return page_size_; }
  // Of addresses, over all groups.
  PageCount pages() const { return pages_; }

  // Where a group's part starts. REQUIRES: group < layout().groups().
  PageCount FirstPage(uint32_t group) const { return first_pages_[group]; }
  Bytes Offset(uint32_t group) const;
  // The pages that `tokens` tokens need in one group, and in all of them.
  // REQUIRES: tokens <= max_tokens().
  PageCount PagesOf(uint32_t group, uint64_t tokens) const;
  PageCount PagesOf(uint64_t tokens) const;
  // The pages that `tokens` tokens fill.
  PageCount FilledBy(uint32_t group, uint64_t tokens) const;
  // The most tokens that `pages` pages of a group hold.
  uint64_t TokensWithin(uint32_t group, PageCount pages) const;

 private:
  RegionGeometry(const KvLayout& layout, uint64_t max_tokens, Bytes page_size,
                 PageCount pages)
      : layout_(layout),
        max_tokens_(max_tokens),
        page_size_(page_size),
        pages_(pages) {}

  KvLayout layout_;
  uint64_t max_tokens_;
  Bytes page_size_;
  PageCount pages_;
  std::vector<PageCount> first_pages_;  // by group
};

// Page slots of one group's part, counted from the start of the part.
struct PageRun {
  uint32_t group;
  PageCount first;
  PageCount count;
};

// Not thread-safe: the cache's state lock guards it.
class KvRegion {
 public:
  // `geometry` must outlive the region. `range` may be null in tests of the
  // arithmetic.
  KvRegion(const RegionGeometry* geometry, AddressRange* range);

  AddressRange* range() const { return range_; }

  // Where the pages of a part end: all slots before it are live, but the gap.
  PageCount committed(uint32_t group) const { return parts_[group].committed; }
  // REQUIRES: not within what is behind the window. O(groups).
  void set_committed(uint32_t group, PageCount count);
  // The slots that are gone; none where the count is 0.
  PageRun Gap(uint32_t group) const;
  // Live pages, of one part and of all.
  PageCount live(uint32_t group) const;
  PageCount committed() const { return total_committed_; }
  // The run, which is one of SpareRuns, of BehindGaps, or the end of a part,
  // has no pages any more.
  void Remove(const PageRun& run);

  // Whether no sequence has it.
  bool parked() const { return parked_; }
  void set_parked(bool parked) { parked_ = parked; }

  // Whether the driver refused a call, and slots are lost: such a region is
  // released and never parked.
  bool damaged() const { return damaged_; }
  void set_damaged() { damaged_ = true; }

  // The tokens that kernels may touch: the longest length since the region was
  // taken or shrunk, not the last length, since a kernel that was queued for a
  // longer one may still run.
  uint64_t used_tokens() const { return used_tokens_; }
  // O(1) where no page boundary is crossed on the way up, O(groups) elsewhere.
  void set_used_tokens(uint64_t tokens);

  // The most tokens that need no other pages than used_tokens does, and the
  // most whose pages are all committed. O(1).
  uint64_t quiet_tokens() const { return quiet_tokens_; }
  uint64_t mapped_tokens() const { return mapped_tokens_; }
  // set_used_tokens for a step within the same pages.
  // REQUIRES: tokens <= quiet_tokens().
  void UseQuietly(uint64_t tokens) {
    used_tokens_ = std::max(used_tokens_, tokens);
  }

  // Committed pages that used_tokens does not need. O(1).
  PageCount spare() const { return spare_; }

  // ---- Windows ----
  // For the sequence that begins. REQUIRES: no token was dropped.
  void SetLimit(const KvTokenLimit& limit);
  // What a kernel that is queued from now on sees is in the last tokens of
  // `length` or more: what is behind their windows becomes spare. O(groups).
  void DropBehind(uint64_t length);
  // The least length for which DropBehind would find a page.
  uint64_t drop_at() const { return drop_at_; }
  // Whether nothing was dropped that a sequence which goes back to `length` may
  // see. O(groups).
  bool CanGoBackTo(uint64_t length) const;
  const KvTokenLimit& limit() const { return limit_; }
  // What a layer of a kind keeps under the limit.
  const KvLayerKind& kept_kind(uint32_t kind) const { return kinds_[kind]; }
  // The sequence is to have the first `tokens` tokens, those of its prompt, in
  // steps of at most `step_tokens`; 0: nothing is known of that. Until Forget.
  void SetPrompt(uint64_t tokens, uint64_t step_tokens) {
    prompt_tokens_ = tokens;
    prompt_step_ = step_tokens;
  }
  // Of the prompt, what a sequence of `length` tokens has after its next step.
  uint64_t PromptAfterStep(uint64_t length) const {
    return std::min(prompt_tokens_, SaturatingAdd(length, prompt_step_));
  }
  // Whether a part never drops anything: no window, and no limit.
  bool KeepsAllTokens(uint32_t group) const {
    return KindOf(group).window == 0;
  }
  // The same of all parts.
  bool KeepsAllTokens() const;
  // Where the slots end that keep nothing for a sequence of `length` tokens.
  PageCount BehindWindow(uint32_t group, uint64_t length) const;
  // The first tokens whose rows every layer still has. O(groups).
  uint64_t WholeTokens() const;
  // Of spare(), what is behind the windows.
  PageCount behind() const { return behind_; }
  // Where the part begins to keep something again, behind its sinks.
  PageCount behind(uint32_t group) const { return parts_[group].behind; }
  // What used_tokens needs of the part, and has, in at most two runs.
  std::vector<PageRun> NeededRuns(uint32_t group) const;
  // After Forget: what was behind the window is gone again. REQUIRES: the
  // part's sinks are committed, and nothing else of it.
  void ReopenGap(uint32_t group, PageCount behind);
  // Behind the gaps: the rest of those parts, to be given back before the
  // region is parked.
  std::vector<PageRun> BehindGaps() const;
  // The next sequence begins: no token is in use, and none was dropped.
  // REQUIRES: BehindGaps() are gone.
  void Forget();

  // Pages that would have to be mapped for `tokens` tokens. O(groups).
  PageCount MappingWork(uint64_t tokens) const;
  // Pages that the growth of a sequence of the region takes at its peak beyond
  // those that it needs now. What it has of the layers with windows lies
  // wherever a page begins. O(groups).
  PageCount PagesToGrow(const SequenceGrowth& growth) const;
  // The runs that used_tokens needs and that are not committed.
  void AppendMissing(std::vector<PageRun>* runs) const;
  // Spare pages to give back, `wanted` in all or as many as there are: those
  // behind the windows first, which the sequence never needs again, then from
  // the longest parts, since the next sequence, if shorter, needs their tails
  // least. The first kept[group] pages of each part, if told, stay.
  std::vector<PageRun> SpareRuns(PageCount wanted,
                                 std::span<const PageCount> kept = {}) const;

  // True where no kernel uses the spare pages, or those that cool, any more. An
  // event that cannot be queried counts as not complete: the region stays
  // parked, and the driver's error shows at the next mapping.
  bool FenceIsComplete();
  const Fence& fence() const { return fence_; }
  // REQUIRES: it covers the copies that others make from the region, or they
  // are complete. They stay known until they are, for fences to come.
  void set_fence(const Fence& fence) { fence_ = fence; }

  // Pages were given back under a fence that may not be complete; `shared`:
  // others have some of them.
  void AddCooling(const Fence& fence, bool shared);
  const std::vector<Fence>& cooling() const { return cooling_; }
  bool HasCooled() const;
  // Whether pages that others have may be cooling here.
  bool unsharing() const { return unsharing_; }
  void EndUnsharing() { unsharing_ = false; }

  // ---- Sharing ----
  // What stands in the books of SharedPages, which keeps it; null: nothing.
  SharedSlots* shared() const { return shared_.get(); }
  void set_shared(std::unique_ptr<SharedSlots> shared) {
    shared_ = std::move(shared);
  }
  // Whose rows are known by their tokens: none, or an entry of the index.
  PrefixEntryId prefix() const { return prefix_; }
  void set_prefix(PrefixEntryId prefix) { prefix_ = prefix; }
  // Tokens after which the sequence parts from others; 0: nothing is known of
  // that, or it is past.
  uint64_t branch() const { return branch_; }
  void set_branch(uint64_t tokens) {
    branch_ = tokens;
    branch_held_ = false;
  }
  // Whether a step has left the windows there where they were, for a prefix
  // that is to be made of them.
  bool branch_held() const { return branch_held_; }
  void hold_branch() { branch_held_ = true; }
  // Rows of the prefix that lie in the tail store, at most one tail a group:
  // only parked regions have any.
  std::span<const PackedTail> packed() const { return packed_; }
  void set_packed(std::vector<PackedTail> packed) {
    packed_ = std::move(packed);
  }
  // Others copy from the region on `stream` until `fence` completes. Before
  // they are queued, FencesOffStream, of what was queued on other streams, must
  // be complete: the caller waits, without the lock.
  std::vector<Fence> FencesOffStream(StreamId stream) const;
  void AddReader(const Fence& fence) { fence_ = readers_ = fence; }
  // Whether others may be copying, and whether they are known not to be any
  // more. An event that cannot be queried counts as not complete.
  bool has_readers() const { return readers_ != Fence(); }
  const Fence& readers() const { return readers_; }
  bool SettleReaders();

  // An error names what does not hold.
  absl::Status CheckInvariants() const;

 private:
  struct Part {
    PageCount committed;
    PageCount needed;  // where the pages end that used_tokens needs
    // Slots [sinks, behind) keep nothing; of them [sinks, gone) have no page.
    PageCount sinks;
    PageCount gone;
    PageCount behind;
  };

  const KvLayerKind& KindOf(uint32_t group) const {
    return kinds_[geometry_->layout().GroupKind(group)];
  }
  void CountNeeded();
  void CountSpare();
  void CountDropAt();
  void AppendTails(PageCount wanted, std::span<const PageCount> kept,
                   std::vector<PageRun>* runs) const;
  uint64_t CountMappedTokens() const;

  // What a step looks at: in one cache line.
  uint64_t used_tokens_ = 0;
  uint64_t quiet_tokens_ = 0;
  uint64_t mapped_tokens_ = 0;
  uint64_t drop_at_ = UINT64_MAX;
  std::unique_ptr<SharedSlots> shared_;

  const RegionGeometry* geometry_;
  AddressRange* range_;
  std::vector<Part> parts_;  // by group
  KvTokenLimit limit_;
  uint64_t prompt_tokens_ = 0;
  uint64_t prompt_step_ = 0;
  std::vector<KvLayerKind> kinds_;  // of the layout, under the limit
  PageCount total_committed_;
  PageCount spare_;
  PageCount behind_;
  bool parked_ = true;
  bool damaged_ = false;
  Fence fence_;    // of what was queued so far, readers included
  Fence readers_;  // the last one of AddReader
  std::vector<Fence> cooling_;
  bool unsharing_ = false;
  PrefixEntryId prefix_;
  uint64_t branch_ = 0;
  bool branch_held_ = false;
  std::vector<PackedTail> packed_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_REGION_H_
