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
// Admit, Step, Shrink and Release wait for one another.

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
#include "quire/paging/sequence_cache.h"

namespace quire {

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

class KvCache : public SequenceCache, private PageReclaimer {
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
  absl::StatusOr<SequenceId> Admit(uint64_t tokens) override;
  // O(steps) where nothing is mapped.
  absl::Status Step(std::span<const SequenceStep> steps) override;
  absl::Status Shrink(SequenceId sequence, uint64_t length,
                      const Fence& fence) override;
  // The region is parked, and adopted by no other sequence before `fence`
  // completes.
  absl::Status Release(SequenceId sequence, const Fence& fence) override;
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const override;
  // O(log max_sequence_length).
  uint64_t AdmissibleTokens() const override;
  CacheUse Use() const override;
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const override;

  // Contiguous.
  absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                   uint32_t layer) const override;
  absl::Status CheckInvariants() const override;

  KvCacheStatistics GetStatistics() const;

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
