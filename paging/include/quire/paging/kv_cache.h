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
// Unbacked addresses fault; they are never aliased to a page of zeros, which
// would turn a missing Step into silent corruption.
//
// Thread-safe; Admit, Step, Shrink and Release wait for one another. Kernels
// that use a sequence must be ordered by the caller: after Step, and before the
// fence given to Shrink or Release, which must cover *every* kernel queued so
// far that uses the sequence. A fence must be able to complete without a
// further call of the cache: where memory is short, Admit and Step wait for it.

#ifndef QUIRE_PAGING_KV_CACHE_H_
#define QUIRE_PAGING_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/paging/kv_layout.h"

namespace quire {

using SequenceId = Id<struct SequenceIdTag, uint64_t>;  // 0 names none

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
};

struct KvCacheStatistics {
  uint32_t sequences = 0;  // admitted
  uint32_t parked_regions = 0;
  uint64_t tokens = 0;  // lengths at the last Step, summed
  Bytes used;           // tokens * TokenBytes
  Bytes committed;      // pages under admitted sequences
  Bytes parked;         // pages under parked regions
  // Pages that pressure elsewhere may take: all that are parked, and those of
  // admitted sequences that no length of theirs needs.
  Bytes reclaimable;
  Bytes reserved;          // addresses
  uint64_t adoptions = 0;  // admissions served by a parked region
  uint64_t steps = 0;
  uint64_t steps_without_mapping = 0;
};

struct SequenceStep {
  SequenceId sequence;
  uint64_t length;  // tokens that must be backed after the step
};

class KvCache : private PageReclaimer {
 public:
  // `memory` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(
      DeviceMemory* memory, const KvLayout& layout,
      const KvCacheOptions& options);
  // Gives every region back. REQUIRES: no kernel uses a sequence any more.
  ~KvCache() override;

  const KvLayout& layout() const;
  uint64_t max_sequence_length() const;

  // Takes a sequence of `tokens` tokens and backs them, where the headroom is
  // left. Errors, all of which change nothing: kInvalidArgument for more than
  // max_sequence_length tokens; kResourceExhausted where pages, addresses or
  // sequence slots do not suffice (the message says which): the caller may
  // queue it and try again.
  absl::StatusOr<SequenceId> Admit(uint64_t tokens);
  // Backs every sequence up to its length: all, or none and an error, which is
  // kResourceExhausted where memory is short and the hooks of the device memory
  // gave up nothing; they may release sequences of this cache. A length below the last one keeps
  // the pages (Shrink gives them back). O(steps) where nothing is mapped.
  absl::Status Step(std::span<const SequenceStep> steps);
  // Gives back the pages behind `length` tokens, when `fence` completes. What
  // lay there is lost, also where a Step brings the pages back. Pages that the
  // driver refuses to unmap are an error, and lost to this sequence: release
  // it.
  absl::Status Shrink(SequenceId sequence, uint64_t length, const Fence& fence);
  // The id is dead at once. The region is parked, and adopted by no other
  // sequence before `fence` completes.
  absl::Status Release(SequenceId sequence, const Fence& fence);

  // Base addresses of token 0 of `layer`; token t is t * row_stride further on.
  struct LayerView {
    DeviceAddress keys;
    DeviceAddress values;
    Bytes row_stride;
  };
  absl::StatusOr<LayerView> View(SequenceId sequence, uint32_t layer) const;
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const;

  // The longest sequence that Admit would take now, as far as pages and slots
  // go; 0 where it would take none. O(log max_sequence_length).
  uint64_t AdmissibleTokens() const;

  KvCacheStatistics GetStatistics() const;
  absl::Status CheckInvariants() const;

 private:
  class Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  PageCount Reclaim(PageCount wanted) override;
  PageCount ReclaimFrom(OwnerId owner, PageCount wanted, bool cooling) override;
  PageCount Reclaimable() const override;
  std::string ReclaimerName() const override;
  DeviceMemory* memory_ = nullptr;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_H_
