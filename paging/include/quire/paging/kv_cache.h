// Contiguous KV regions: every sequence's cache is one run of addresses per
// layer group, and physical pages appear under it only as it grows.
//
// Life of a sequence: Admit reserves addresses for the longest it may get (or
// adopts the parked region with the least mapping work) and checks page
// headroom; Step makes sure, before the kernels run, that pages are there for
// the lengths to come; Release parks the region *still mapped*, for the next
// sequence. Parked pages are given back when memory is needed elsewhere: the
// cache is a PageReclaimer of its DeviceMemory.
//
// Mapping pages takes driver calls. With page-ahead the pages of the next steps
// are mapped while the device computes, by a thread or by PrepareAhead, so that
// Step finds them. They are spare until a length needs them, like all pages
// that no length needs: pressure elsewhere may take them.
//
// Where layers have windows, or a sequence a limit, pages whose tokens no later
// kernel sees are given back, addresses staying as they are: when EndBatch has
// told what the kernels queued so far wait for, and the next Step of the
// sequence begins.
//
// Sequences share what they have in common. Publish says which tokens the rows
// of a sequence belong to; AdmitPrompt maps the pages of the longest published
// beginning of a prompt under the new sequence, whoever has them, also a
// sequence that was released: its pages are kept for that until memory is
// needed, their partly used last pages packed together before any is given up
// (docs/kv_sharing.md); then those of low priority go first, then those that no
// waiting prompt begins with (ExpectPrompt), and of these the ones used least
// recently. Fork makes a sequence with all rows of another. Rows on a page that
// cannot be shared whole are copied on the device. No page is written while it
// is shared. A sequence that drops tokens, behind a window or the limit of the
// cache, is found by the beginning that all of its layers still have, and, once
// it is released, where it ended: its last windows are kept.
//
// A sequence can be swapped out: its rows are copied to pinned host memory, on
// a stream of the cache and while kernels run, and its pages are free when that
// is done. SwapIn brings them back under the same addresses. Pages that others
// have too stay where they are until they have not and memory is short; they
// are copied once, whoever else swaps out with them. Meanwhile the sequence can
// be released, and nothing else.
//
// Unbacked addresses fault; they are never aliased to a page of zeros, which
// would turn a missing Step into silent corruption.
//
// Calls that change sequences wait for one another.
//
// In a forked child, calls fail with kFailedPrecondition, do nothing, or return
// empty values, and destroying the cache is harmless.

#ifndef QUIRE_PAGING_KV_CACHE_H_
#define QUIRE_PAGING_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct PageAheadOptions {
  // The most steps ahead that pages are mapped for; how many it is within that
  // follows from measured times. 0: there is no page-ahead.
  uint32_t max_steps = 0;
  // A thread maps after each Step; else it is for the caller to call
  // PrepareAhead.
  bool thread = false;
  // Nanoseconds of a clock that never goes back, from any thread; null: the
  // system's. A simulation passes its own.
  std::function<uint64_t()> clock;
};

// KvCacheOptions::max_parked: there is no limit.
inline constexpr PageCount kAllParked = PageCount(UINT64_MAX);

struct KvCacheOptions {
  // The most tokens that one sequence may have: its addresses. Those of all
  // sequences together, admitted and parked, must fit in the address space of
  // the DeviceMemory.
  uint64_t max_sequence_length = 0;
  uint32_t max_sequences = 256;
  OwnerId owner = kUnnamedOwner;
  // Pages that Admit leaves free for the growth of those already admitted.
  PageCount headroom = PageCount(0);
  // Pages that a Step or Admit that has to map maps beyond what the lengths
  // need, per group: fewer, longer runs. Only where they are free at once.
  PageCount map_ahead = PageCount(0);
  PageAheadOptions page_ahead;
  // Of sequences that are admitted without one of their own: max_cache_len.
  KvTokenLimit limit;
  // Pages of a sequence that ends, and those behind its windows, are given back
  // at once, under their fence, and its region is parked as addresses; else the
  // region is parked still mapped, and pages are given back when somebody needs
  // them. With page-ahead it gives them back while the device computes, once
  // their fence is complete, as far as the time of a step goes.
  bool eager_reclaim = false;
  // Else: the pages that may stay so, but those kept for prompts. What is
  // beyond is given back in the same way, of what was parked first, and so is
  // what an adopted region has too many of, and what is behind windows.
  PageCount max_parked = kAllParked;
  // Tokens of a block: published rows are found block by block. 0: nothing is
  // published.
  uint32_t prefix_block_tokens = 16;
  // For AdmitPrompt without options, Fork without a stream, and of the kernels
  // that follow a SwapIn: they wait for its copies. StreamId(): SwapIn waits
  // for them, and there is no such Fork.
  StreamId stream;
  // Pinned host memory for sequences that are swapped out, at most: vLLM's
  // swap_space. Whole pages of it are used. 0: nothing is swapped out.
  Bytes swap_space;
};

struct PromptOptions {
  // Where the kernels of the sequence run, which are ordered after those that
  // wrote what was published: rows are copied here. StreamId(): no rows are
  // copied, and a beginning is shared only as far as whole pages go.
  StreamId stream;
  // Of what the sequence publishes, once it is released: the larger, the later
  // it is given up. From the time `retain_until` of AdvanceClock on it is 0.
  int32_t priority = 0;
  uint64_t retain_until = UINT64_MAX;
  // As AdmitPromptInSteps has it.
  uint64_t step_tokens = UINT64_MAX;
  std::optional<KvTokenLimit> limit;  // as in SequenceOptions
};

struct KvCacheStatistics {
  uint32_t sequences = 0;  // admitted
  uint32_t parked_regions = 0;
  // Lengths at the last Step, summed, but of what is swapped out.
  uint64_t tokens = 0;
  Bytes used;       // what the layers keep of these tokens, shared or not
  Bytes committed;  // pages under admitted sequences
  Bytes parked;     // pages under parked regions
  // Pages that pressure elsewhere may take: all that are parked, and those of
  // admitted sequences that no length of theirs needs.
  Bytes reclaimable;
  Bytes reserved;          // addresses
  uint64_t adoptions = 0;  // admissions served by a parked region
  uint64_t steps = 0;
  uint64_t steps_without_mapping = 0;
  // Steps that called the driver, or found the cache calling it ahead.
  uint64_t steps_waited = 0;
  // Runs of pages mapped by Admit and Step, whose callers wait, and ahead.
  uint64_t runs_mapped = 0;
  uint64_t runs_mapped_ahead = 0;
  uint64_t pages_mapped_ahead = 0;
  uint32_t steps_ahead = 0;  // how far page-ahead looks now
  // What more pages would be committed and parked if none were shared. Pages
  // count once in all figures here.
  Bytes shared;
  // Of parked: kept for prompts to come, with the partly used pages behind.
  Bytes cached_prefixes;
  Bytes packed_tails;  // of these, pages that ends of prefixes share
  uint64_t tails_packed = 0;
  uint64_t windows_kept = 0;   // where sequences ended, for prompts
  uint64_t branches_kept = 0;  // of these, where they part from others
  uint64_t prompts = 0;        // AdmitPrompt, as far as admitted
  uint64_t prompt_tokens = 0;
  uint64_t prefix_hits = 0;       // of prompts: part of it was there
  uint64_t prefix_tokens = 0;     // of prompt_tokens: so many
  uint64_t prefixes_evicted = 0;  // regions that lost the last of theirs
  uint64_t forks = 0;
  uint64_t pages_unshared = 0;     // copied since they were to be written
  uint32_t swapped_sequences = 0;  // now; of those admitted
  Bytes swap_space;                // at most, in whole pages
  Bytes swap_taken;                // by sequences that are swapped out
  Bytes swap_pinned;               // allocated so far
  uint64_t swaps_out = 0;
  uint64_t swaps_in = 0;
  Bytes bytes_swapped_out;  // copied to the host, and back
  Bytes bytes_swapped_in;
};

class KvCache : public SequenceCache,
                public SequenceSwap,
                private PageReclaimer {
 public:
  // `memory` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(
      DeviceMemory* memory, const KvLayout& layout,
      const KvCacheOptions& options);
  // Gives every region back. REQUIRES: no kernel uses a sequence any more.
  ~KvCache() override;

  // ---- SequenceCache, of pages ----
  const KvLayout& layout() const override;
  uint64_t max_sequence_length() const override;
  // Of sequences without a limit of their own.
  bool KeepsAllTokens() const override;
  absl::StatusOr<SequenceId> Admit(
      uint64_t tokens,
      std::optional<KvTokenLimit> limit = std::nullopt) override;
  // Layers with windows have of cached rows what the next token sees: the
  // sequence cannot go back behind them. Errors beyond those of Admit: the
  // driver's, for a copy.
  absl::StatusOr<PromptAdmission> AdmitPrompt(
      std::span<const int32_t> tokens) override;
  absl::StatusOr<PromptAdmission> AdmitPrompt(std::span<const int32_t> tokens,
                                              const PromptOptions& options);
  absl::StatusOr<PromptAdmission> AdmitPromptInSteps(
      std::span<const int32_t> tokens, uint64_t step_tokens,
      const SequenceOptions& options = {}) override;
  // Tokens count as far as no layer has dropped any, and where the sequence has
  // no limit of its own. O(tokens that were not published before).
  absl::Status Publish(SequenceId sequence,
                       std::span<const int32_t> tokens) override;
  // O(tokens). Counts for who holds the most of them, where that is kept after
  // its sequence.
  void ExpectPrompt(std::span<const int32_t> tokens, uint64_t turn) override;
  void AdvanceTurn(uint64_t turn) override;
  // A step to fewer tokens is refused as Shrink is. O(steps) where no sequence
  // crosses into a new page. Rows that are written again after a Shrink get
  // pages of their own where theirs are shared: this waits for the fence of the
  // Shrink. Without a Shrink that is kFailedPrecondition.
  absl::Status Step(std::span<const SequenceStep> steps) override;
  // Another error: kFailedPrecondition where a window of the length has tokens
  // that were dropped.
  absl::Status Shrink(SequenceId sequence, uint64_t length,
                      const Fence& fence) override;
  // The region is parked, and adopted by no other sequence before `fence`
  // completes.
  absl::Status Release(SequenceId sequence, const Fence& fence) override;
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const override;
  // O(log max_sequence_length).
  uint64_t AdmissibleTokens() const override;
  bool HasRoomFor(std::span<const SequenceGrowth> growths) const override;
  // With page-ahead. O(tokens + regions), and the driver's calls.
  bool PrepareRoom(std::span<const int32_t> prompt,
                   const SequenceGrowth& growth) override;
  // PrepareAhead, with page-ahead.
  absl::Status PrepareNextSteps() override;
  CacheUse Use() const override;
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const override;

  // Contiguous.
  absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                   uint32_t layer) const override;
  absl::Status CheckInvariants() const override;

  void EndBatch(const Fence& fence) override;  // O(1)
  // Which tokens of the sequence the layer keeps: the others may be gone.
  absl::StatusOr<KvKeptTokens> Kept(SequenceId sequence, uint32_t layer) const;
  // Of the sequence: its own, or the cache's.
  absl::StatusOr<KvTokenLimit> LimitOf(SequenceId sequence) const;

  // Maps what the sequences that the last Step named will need in the next
  // `steps` steps (at most max_steps; by default as many as are in time, given
  // what calls cost), the most urgent first. Takes pages only where they are to
  // be had at once, the headroom included, and those that are parked or kept
  // for prompts: where there are no more, that is no error. Unmaps what windows
  // have left, and what is beyond max_parked, where there is such a limit, and
  // makes prefixes where prompts part. For while the device computes: without
  // `steps` all but what the next step needs ends after half of the shortest
  // step of late, counted from the last Step and with Admit, Release and
  // PrepareRoom, and is continued behind the next one. Returns the pages
  // mapped. Errors: the driver's.
  absl::StatusOr<PageCount> PrepareAhead(
      std::optional<uint32_t> steps = std::nullopt);
  // Shares whole pages, and copies the rows behind them at once; of layers that
  // drop tokens, all that are left. Takes the addresses of a sequence.
  absl::StatusOr<SequenceId> Fork(SequenceId parent) override;
  // The same, with the copies on `stream`.
  absl::StatusOr<SequenceId> Fork(SequenceId parent, StreamId stream);
  // ---- SequenceSwap ----
  // This cache; null where swap_space is 0.
  SequenceSwap* swap() override;
  // What was published of the sequence is not found any more. Errors, beyond
  // kNotFound: kResourceExhausted where the swap space does not suffice;
  // kFailedPrecondition where there is none, where the sequence is swapped out
  // already, or has lost pages to a refusal of the driver; the driver's.
  absl::Status SwapOut(SequenceId sequence, const Fence& fence) override;
  // Errors: those of Step; kFailedPrecondition where it is not swapped out; the
  // driver's; kDataLoss where the driver refused to unmap its pages when it was
  // swapped out: it cannot come back, release it.
  absl::Status SwapIn(SequenceId sequence) override;

  void AdvanceClock(uint64_t now) override;

  KvCacheStatistics GetStatistics() const;

 private:
  class Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  PageCount Reclaim(PageCount wanted) override;
  PageCount ReclaimFrom(OwnerId owner, PageCount wanted, bool cooling) override;
  PageCount Reclaimable() const override;
  void AfterWake(OwnerId owner) override;
  std::string ReclaimerName() const override;
  DeviceMemory* memory_ = nullptr;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_H_
