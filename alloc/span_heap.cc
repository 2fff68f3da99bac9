#include "alloc/span_heap.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {

SpanHeap::SpanHeap(DeviceMemory* memory, const SizeClasses* classes,
                   uint64_t seed)
    : memory_(memory),
      page_bytes_(memory->page_size().value()),
      classes_(*classes),
      seeds_(seed),
      states_(classes->count()) {}

Bytes SpanHeap::pinned_bytes() const {
  return Bytes(accounts_.mapped_bytes - accounts_.live_bytes -
               reclaimable_pages_ * page_bytes_);
}

Bytes SpanHeap::LargestIdleSlot() const {
  for (int i = classes_.count() - 1; i >= 0; --i) {
    if (states_[i].idle_slots > 0) return classes_.slot_size(i);
  }
  return Bytes(0);
}

// The range's user data is the index of its span plus one. What somebody else
// keeps with a range of theirs is never taken for a span: it would have to be
// the index of one with that very range.
Span* SpanHeap::Find(DeviceAddress address) const {
  const AddressRange* const range = memory_->Find(address);
  if (range == nullptr) return nullptr;
  const auto number = reinterpret_cast<uintptr_t>(range->user_data());
  if (number == 0 || number > spans_.size()) return nullptr;
  Span* const span = spans_[number - 1].get();
  return span != nullptr && span->range == range ? span : nullptr;
}

// ---- Spans ------------------------------------------------------------------

Span* SpanHeap::AddSpan(AddressRange* range) {
  if (unused_indices_.empty()) {
    unused_indices_.push_back(spans_.size());
    spans_.emplace_back();
  }
  const size_t index = unused_indices_.back();
  unused_indices_.pop_back();
  spans_[index] = std::make_unique<Span>();
  Span* const span = spans_[index].get();
  span->range = range;
  span->pages = range->pages().value();
  span->index = index;
  range->set_user_data(reinterpret_cast<void*>(uintptr_t{index} + 1));
  const uint64_t bytes = span->pages * page_bytes_;
  accounts_.mapped_bytes += bytes;
  accounts_.cached_bytes += bytes;
  accounts_.peak_mapped_bytes =
      std::max(accounts_.peak_mapped_bytes, accounts_.mapped_bytes);
  reclaimable_pages_ += span->pages;
  return span;
}

void SpanHeap::RemoveSpan(Span* span) {
  const uint64_t bytes = span->pages * page_bytes_;
  accounts_.mapped_bytes -= bytes;
  accounts_.cached_bytes -= bytes;
  reclaimable_pages_ -= span->pages;
  unused_indices_.push_back(span->index);
  spans_[span->index].reset();
}

void SpanHeap::SetSlab(Span* span, int size_class, Bytes slot_size,
                       uint32_t slots) {
  span->slab = std::make_unique<Slab>(slot_size, slots, seeds_.Next());
  span->size_class = size_class;
  span->last_slot_size = slot_size;
  span->last_slot_count = slots;
  const uint64_t slack = span->pages * page_bytes_ - slots * slot_size.value();
  accounts_.cached_bytes -= slack;
  accounts_.slack_bytes += slack;
  if (span->large()) return;
  ++accounts_.slab_count;
  ++states_[size_class].empty_slabs;
  states_[size_class].idle_slots += slots;
  AddPartial(span);
}

// What of the slab still cools is counted as cached from here on: the caller
// knows a fence for it.
void SpanHeap::DropSlab(Span* span) {
  const Slab& slab = *span->slab;
  const uint64_t slot_size = slab.slot_size().value();
  const uint64_t slack =
      span->pages * page_bytes_ - slab.slot_count() * slot_size;
  accounts_.cached_bytes += slack;
  accounts_.slack_bytes -= slack;
  accounts_.cached_bytes += slab.cooling_count() * slot_size;
  accounts_.cooling_bytes -= slab.cooling_count() * slot_size;
  if (!span->large()) {
    ClassState& state = states_[span->size_class];
    --accounts_.slab_count;
    if (slab.empty()) --state.empty_slabs;
    state.idle_slots -= slab.slot_count();
    if (span->list_position != SIZE_MAX) RemovePartial(span);
  }
  span->slab.reset();
}

void SpanHeap::BecomeFreeRange(Span* span) {
  DropSlab(span);
  free_ranges_.Insert(span);
}

void SpanHeap::AddPartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  slab->list_position = partial.size();
  partial.push_back(slab);
}

void SpanHeap::RemovePartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  partial[slab->list_position] = partial.back();
  partial[slab->list_position]->list_position = slab->list_position;
  partial.pop_back();
  slab->list_position = SIZE_MAX;
}

// Slots are taken from the slab at the back, so the one at the front is the
// last to be used.
void SpanHeap::MoveToFront(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  Span* const first = partial.front();
  std::swap(partial[0], partial[slab->list_position]);
  std::swap(first->list_position, slab->list_position);
}

uint64_t SpanHeap::HeldPages(const Span& span) const {
  return span.large() ? span.slab->slot_size().value() / page_bytes_
                      : span.pages;
}

// ---- Taking -----------------------------------------------------------------

Block SpanHeap::Take(Span* span) {
  Slab& slab = *span->slab;
  const uint64_t slot_size = slab.slot_size().value();
  if (slab.live_count() == 0) reclaimable_pages_ -= HeldPages(*span);
  if (!span->large()) {
    ClassState& state = states_[span->size_class];
    if (slab.empty()) --state.empty_slabs;
    --state.idle_slots;
  }
  const Block block = {span, slab.Take()};
  if (!span->large() && slab.free_count() == 0) RemovePartial(span);
  accounts_.cached_bytes -= slot_size;
  accounts_.live_bytes += slot_size;
  ++accounts_.live_allocations;
  return block;
}

std::optional<Block> SpanHeap::TakeSlot(int size_class) {
  const std::vector<Span*>& partial = states_[size_class].partial;
  if (partial.empty()) return std::nullopt;
  return Take(partial.back());
}

std::optional<Block> SpanHeap::TakeSlotOfNewSlab(int size_class) {
  Span* const range =
      free_ranges_.FindFit(classes_.slab_pages(size_class).value(),
                           /*excess=*/0, kDefaultAlignment);
  if (range == nullptr) return std::nullopt;
  free_ranges_.Remove(range);
  SetSlab(range, size_class, classes_.slot_size(size_class),
          classes_.slots_per_slab(size_class));
  return Take(range);
}

Block SpanHeap::TakeRange(Span* free_range, uint64_t pages) {
  free_ranges_.Remove(free_range);
  SetSlab(free_range, kLargeClass, Bytes(pages * page_bytes_), 1);
  return Take(free_range);
}

Block SpanHeap::ReviveRange(Span* cooling, uint64_t pages) {
  DropSlab(cooling);
  SetSlab(cooling, kLargeClass, Bytes(pages * page_bytes_), 1);
  return Take(cooling);
}

void SpanHeap::ReviveSlot(Block block) {
  Slab& slab = *block.span->slab;
  if (slab.live_count() == 0) reclaimable_pages_ -= block.span->pages;
  slab.Revive(block.slot);
  --states_[block.span->size_class].idle_slots;
  accounts_.cooling_bytes -= slab.slot_size().value();
  accounts_.live_bytes += slab.slot_size().value();
  ++accounts_.live_allocations;
}

Block SpanHeap::AddSlab(AddressRange* range, int size_class) {
  Span* const span = AddSpan(range);
  SetSlab(span, size_class, classes_.slot_size(size_class),
          classes_.slots_per_slab(size_class));
  return Take(span);
}

Block SpanHeap::AddLarge(AddressRange* range) {
  Span* const span = AddSpan(range);
  SetSlab(span, kLargeClass, Bytes(span->pages * page_bytes_), 1);
  return Take(span);
}

void SpanHeap::Describe(Block block, Bytes requested, StreamId stream,
                        OwnerId owner) {
  block.span->slab->Describe(block.slot, requested, stream, owner);
  accounts_.requested_bytes += requested.value();
  accounts_.peak_requested_bytes =
      std::max(accounts_.peak_requested_bytes, accounts_.requested_bytes);
}

// ---- Giving back ------------------------------------------------------------

void SpanHeap::Cool(Block block) {
  Span* const span = block.span;
  Slab& slab = *span->slab;
  accounts_.requested_bytes -= slab.slot(block.slot).requested.value();
  accounts_.live_bytes -= slab.slot_size().value();
  accounts_.cooling_bytes += slab.slot_size().value();
  --accounts_.live_allocations;
  slab.Cool(block.slot);
  if (!span->large()) ++states_[span->size_class].idle_slots;
  if (slab.live_count() == 0) reclaimable_pages_ += HeldPages(*span);
}

void SpanHeap::Free(Block block) {
  Span* const span = block.span;
  Slab& slab = *span->slab;
  // A live block is over at once: it cools for no time.
  if (slab.slot(block.slot).use == SlotUse::kLive) Cool(block);
  accounts_.cooling_bytes -= slab.slot_size().value();
  accounts_.cached_bytes += slab.slot_size().value();
  slab.Free(block.slot);
  if (span->large()) {
    BecomeFreeRange(span);
    return;
  }
  if (span->list_position == SIZE_MAX) AddPartial(span);
  if (!slab.empty()) return;
  if (++states_[span->size_class].empty_slabs > 1) {
    BecomeFreeRange(span);
  } else {
    MoveToFront(span);
  }
}

uint64_t SpanHeap::ReleaseFree(uint64_t wanted) {
  uint64_t given = 0;
  while (given < wanted && !free_ranges_.empty()) {
    Span* const span = free_ranges_.FindVictim(wanted - given);
    given += span->pages;
    free_ranges_.Remove(span);
    Release(span, Fence());
  }
  for (const ClassState& state : states_) {
    if (given >= wanted) break;
    if (state.empty_slabs == 0) continue;
    Span* const slab = state.partial.front();
    given += slab->pages;
    Release(slab, Fence());
  }
  for (size_t i = 0; i < spans_.size() && given < wanted; ++i) {
    Span* const span = spans_[i].get();
    if (span == nullptr || span->reclaimable()) continue;
    const uint64_t before = span->pages;
    // The range was free as a whole when it was taken, so nothing uses these.
    if (before > HeldPages(*span)) ReleaseExcess(span, Fence());
    given += before - span->pages;
  }
  return given;
}

void SpanHeap::ReleaseExcess(Span* span, const Fence& fence) {
  const uint64_t held = HeldPages(*span);
  const uint64_t excess = span->pages - held;
  if (excess == 0) return;
  // An error means that the driver keeps the pages: they are not ours anymore.
  (void)memory_->Decommit(span->range, PageCount(held), PageCount(excess),
                          fence);
  span->pages = held;
  reclaimable_pages_ -= excess;
  accounts_.mapped_bytes -= excess * page_bytes_;
  accounts_.slack_bytes -= excess * page_bytes_;
}

void SpanHeap::Release(Span* span, const Fence& fence) {
  AddressRange* const range = span->range;
  if (!span->free()) DropSlab(span);
  RemoveSpan(span);
  memory_->ReleaseRange(range, fence);
}

// ---- Checks -----------------------------------------------------------------

absl::Status SpanHeap::CheckSpan(const Span& span,
                                 AllocatorStatistics* sum) const {
  const auto broken = [&span](const std::string& what) {
    return absl::InternalError(absl::StrFormat("span of %u pages at %#x: %s",
                                               span.pages,
                                               span.address().value(), what));
  };
  if (Find(span.address()) != &span) return broken("not found by its address");
  if (memory_->CommittedPages(span.range, PageCount(0), span.range->pages()) !=
      PageCount(span.pages)) {
    return broken("so many are not committed");
  }
  const uint64_t bytes = span.pages * page_bytes_;
  sum->mapped_bytes += bytes;
  if (span.free()) {
    if (!free_ranges_.spans().contains(const_cast<Span*>(&span))) {
      return broken("free, but not among the free ranges");
    }
    sum->cached_bytes += bytes;
    return absl::OkStatus();
  }
  const Slab& slab = *span.slab;
  QUIRE_RETURN_IF_ERROR(slab.CheckInvariants());
  const uint64_t slot_size = slab.slot_size().value();
  if (slab.slot_count() * slot_size > bytes) {
    return broken("its slots do not fit");
  }
  sum->slack_bytes += bytes - slab.slot_count() * slot_size;
  sum->live_bytes += slab.live_count() * slot_size;
  sum->cooling_bytes += slab.cooling_count() * slot_size;
  sum->cached_bytes += slab.free_count() * slot_size;
  sum->live_allocations += slab.live_count();
  for (uint32_t i = 0; i < slab.slot_count(); ++i) {
    if (slab.slot(i).use != SlotUse::kLive) continue;
    if (slab.slot(i).requested > slab.slot_size()) {
      return broken("a slot is smaller than what was asked for");
    }
    sum->requested_bytes += slab.slot(i).requested.value();
  }
  if (span.large()) {
    if (slab.empty()) return broken("free, but not a free range");
    return absl::OkStatus();
  }
  ++sum->slab_count;
  const std::vector<Span*>& partial = states_[span.size_class].partial;
  const bool listed = span.list_position != SIZE_MAX;
  if (listed != (slab.free_count() > 0) ||
      (listed && (span.list_position >= partial.size() ||
                  partial[span.list_position] != &span))) {
    return broken("its place in the list of its class is wrong");
  }
  return absl::OkStatus();
}

absl::Status SpanHeap::CheckInvariants() const {
  AllocatorStatistics sum;
  uint64_t reclaimable = 0;
  uint64_t free_spans = 0;
  std::vector<ClassState> states(states_.size());
  for (const std::unique_ptr<Span>& span : spans_) {
    if (span == nullptr) continue;
    QUIRE_RETURN_IF_ERROR(CheckSpan(*span, &sum));
    reclaimable += span->pages - (span->reclaimable() ? 0 : HeldPages(*span));
    if (span->free()) {
      ++free_spans;
    } else if (!span->large()) {
      ClassState& state = states[span->size_class];
      state.idle_slots += span->slab->slot_count() - span->slab->live_count();
      state.empty_slabs += span->slab->empty() ? 1 : 0;
    }
  }
  const auto check = [](const char* what, uint64_t walked, uint64_t kept) {
    if (walked == kept) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat(
        "allocator: %s is %u by walking the spans, %u by the accounts", what,
        walked, kept));
  };
  for (const auto& [what, member] :
       {std::pair{"requested", &AllocatorStatistics::requested_bytes},
        {"live", &AllocatorStatistics::live_bytes},
        {"cached", &AllocatorStatistics::cached_bytes},
        {"cooling", &AllocatorStatistics::cooling_bytes},
        {"slack", &AllocatorStatistics::slack_bytes},
        {"mapped", &AllocatorStatistics::mapped_bytes},
        {"live allocations", &AllocatorStatistics::live_allocations},
        {"slabs", &AllocatorStatistics::slab_count}}) {
    QUIRE_RETURN_IF_ERROR(check(what, sum.*member, accounts_.*member));
  }
  QUIRE_RETURN_IF_ERROR(
      check("live + cached + cooling + slack", accounts_.mapped_bytes,
            accounts_.live_bytes + accounts_.cached_bytes +
                accounts_.cooling_bytes + accounts_.slack_bytes));
  QUIRE_RETURN_IF_ERROR(
      check("reclaimable pages", reclaimable, reclaimable_pages_));
  QUIRE_RETURN_IF_ERROR(check("free ranges", free_spans, free_ranges_.size()));
  for (size_t i = 0; i < states.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(
        check("idle slots", states[i].idle_slots, states_[i].idle_slots));
    QUIRE_RETURN_IF_ERROR(
        check("empty slabs", states[i].empty_slabs, states_[i].empty_slabs));
    if (states_[i].empty_slabs > 1 ||
        (states_[i].empty_slabs == 1 &&
         !states_[i].partial.front()->slab->empty())) {
      return absl::InternalError(absl::StrFormat(
          "allocator: %u empty slabs of class %u, or not the first in its list",
          states_[i].empty_slabs, i));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
