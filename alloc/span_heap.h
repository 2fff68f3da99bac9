// The spans of an allocator, their slots, and the accounts of both.
//
// Knows what each byte that is mapped for the allocator is used as, and nothing
// of streams: who may have a cooling block, and when it is free, is for the
// caller to know.
//
// A small request takes a slot from a slab of its class; slabs with free slots
// stand in the class's list. When nothing is left of a slab it becomes a free
// range, which serves large requests and slabs of every class alike; the first
// empty slab of each class stays, so that one slot that comes and goes does not
// make a slab each time.
//
// Accounts, in bytes of mapped pages: mapped = live + cached + cooling + slack.
// Of a slab, slots are live, cooling or cached, and what is left at its end is
// slack, as are the pages that a large allocation has too many, from a range
// that was a little longer; a free range is cached as a whole.
//
// O(1), but for free ranges, which are found in O(log ranges), and for making a
// slab, which is O(slots). Not thread-safe. Makes driver calls only through
// Release of whole spans.

#ifndef QUIRE_ALLOC_SPAN_HEAP_H_
#define QUIRE_ALLOC_SPAN_HEAP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "alloc/range_cache.h"
#include "alloc/size_classes.h"
#include "alloc/slab.h"
#include "alloc/span.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

class SpanHeap {
 public:
  // `memory` and `classes` must outlive the heap. Slots are handed out in an
  // order that depends on `seed`. The ranges of spans that were not released
  // are the caller's to give back.
  SpanHeap(DeviceMemory* memory, const SizeClasses* classes, uint64_t seed);

  // The bytes and counts of spans and slots; the rest is 0.
  const AllocatorStatistics& accounts() const { return accounts_; }
  // Pages that nobody holds any of: of spans without a live block, and what a
  // re-used range has beyond its allocation.
  uint64_t reclaimable_pages() const { return reclaimable_pages_; }
  uint64_t free_range_pages() const { return free_ranges_.pages(); }
  // What slabs with live slots hold beside these: only moving them frees it.
  Bytes pinned_bytes() const;
  // The slot size of the largest class that has a slot free or cooling, or 0.
  Bytes LargestIdleSlot() const;

  // The span that holds `address`, or null.
  Span* Find(DeviceAddress address) const;
  // Null where an index is not used.
  const std::vector<std::unique_ptr<Span>>& spans() const { return spans_; }

  // ---- Taking: the block is live and must be described next ----
  // A free slot of a slab that exists.
  std::optional<Block> TakeSlot(int size_class);
  // A slot of a new slab in a free range that suits its class.
  std::optional<Block> TakeSlotOfNewSlab(int size_class);
  // A free range of `pages`, or up to an eighth more.
  Span* FindFreeRange(uint64_t pages, Bytes alignment) const {
    return free_ranges_.FindFit(pages, /*excess=*/pages / 8, alignment);
  }
  // The first `pages` pages of a free range.
  Block TakeRange(Span* free_range, uint64_t pages);
  // The same of a large block that cools, for the stream it was freed on.
  Block ReviveRange(Span* cooling, uint64_t pages);
  // A slot that cools, for the stream it was freed on.
  void ReviveSlot(Block block);
  // A range whose pages are all committed; the heap takes it.
  Block AddSlab(AddressRange* range, int size_class);
  Block AddLarge(AddressRange* range);
  void Describe(Block block, Bytes requested, StreamId stream, OwnerId owner);

  // ---- Giving back ----
  // A live block cools.
  void Cool(Block block);
  // A live or cooling block becomes free. Its span may become a free range.
  void Free(Block block);
  // Gives free ranges, empty slabs and pages that large allocations have too
  // many to the pool until these make `wanted` pages, or none is left. Returns
  // the pages given.
  uint64_t ReleaseFree(uint64_t wanted);
  // Gives the pages that a large allocation has too many to the pool, once
  // `fence` is complete.
  void ReleaseExcess(Span* span, const Fence& fence);
  // Gives a span to the pool, whose cooling blocks are over once `fence` is
  // complete. REQUIRES: it has no live block, and is in no cache of the caller.
  void Release(Span* span, const Fence& fence);

  absl::Status CheckInvariants() const;

 private:
  struct ClassState {
    std::vector<Span*> partial;  // slabs with free slots; an empty one is first
    uint64_t idle_slots = 0;     // not live, in all slabs of the class
    uint64_t empty_slabs = 0;
  };

  Span* AddSpan(AddressRange* range);
  void RemoveSpan(Span* span);
  void SetSlab(Span* span, int size_class, Bytes slot_size, uint32_t slots);
  void DropSlab(Span* span);
  void BecomeFreeRange(Span* span);
  Block Take(Span* span);
  // The pages that the span cannot give away while a block of it is live.
  uint64_t HeldPages(const Span& span) const;
  void AddPartial(Span* slab);
  void RemovePartial(Span* slab);
  void MoveToFront(Span* slab);
  absl::Status CheckSpan(const Span& span, AllocatorStatistics* sum) const;

  DeviceMemory* const memory_;
  const uint64_t page_bytes_;
  const SizeClasses& classes_;
  SlotOrder seeds_;

  std::vector<std::unique_ptr<Span>> spans_;
  std::vector<size_t> unused_indices_;
  std::vector<ClassState> states_;  // by size class
  RangeCache free_ranges_;
  AllocatorStatistics accounts_;
  uint64_t reclaimable_pages_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SPAN_HEAP_H_
