#include "alloc/owner_heap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// How much longer than a request a range may be: a part of the request. Pages
// that are kept for graphs serve nothing else, so there it may be as long
// again: graphs of ever smaller shapes that share a pool then take at most
// about twice what the largest takes.
constexpr uint64_t kFitDivisor = 256;
constexpr uint64_t kFitDivisorForGraphs = 1;

// The first slab of a class: so many bytes, and so many slots, at least.
constexpr uint64_t kFirstSlabBytes = 64 << 10;
constexpr uint64_t kFirstSlabSlots = 4;

// Comebacks in a row that make a class keep its slab, and how many slabs may be
// made, of any class, before one is no comeback any more, or has not been used
// for too long to be kept: some times the number of classes.
constexpr uint32_t kComebacksToKeep = 2;
constexpr uint64_t kSoon = 1000;

}  // namespace

OwnerHeap::OwnerHeap(OwnerId owner, DeviceMemory* memory,
                     const SizeClasses* classes, SpanTable* spans,
                     MappedTotal* total, uint64_t seed)
    : owner_(owner),
      memory_(memory),
      page_bytes_(memory->page_size().value()),
      classes_(*classes),
      spans_(spans),
      total_(total),
      order_(seed),
      states_(classes->count()),
      seams_(page_bytes_) {}

HeapAccounts OwnerHeap::accounts() const {
  HeapAccounts accounts;
  accounts.mapped_bytes = MappedPages() * page_bytes_;
  accounts.free_bytes = free_bytes_;
  accounts.cooling_bytes = cooling_bytes_ + seams_.ending_bytes();
  accounts.slack_bytes = slab_slack_bytes_ + seams_.page_count() * page_bytes_ -
                         seams_.mapped_bytes() - seams_.ending_bytes();
  accounts.held_bytes = span_bytes_ - free_bytes_ - cooling_bytes_;
  accounts.slabs = slabs_;
  return accounts;
}

void OwnerHeap::SetAsleep(bool asleep) {
  const bool wakes = std::exchange(asleep_, asleep) && !asleep;
  if (!wakes) return;
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->heap != this) continue;
    if (!span->head.none()) {
      seams_.SetHandle(span->head.page,
                       memory_->PageAt(span->range, PageCount(0)));
    }
    if (!span->tail.none()) {
      seams_.SetHandle(
          span->tail.page,
          memory_->PageAt(span->range, PageCount(span->slots_of_pages() - 1)));
    }
  }
}

uint64_t OwnerHeap::pinned_bytes() const {
  if (asleep_ || kept_for_graphs_) return 0;
  const HeapAccounts now = accounts();
  return now.mapped_bytes - now.held_bytes - reclaimable_pages() * page_bytes_;
}

Bytes OwnerHeap::LargestRoom() const {
  if (asleep_) return Bytes(0);
  Bytes slot;
  for (int i = classes_.count() - 1; i >= 0 && slot.zero(); --i) {
    if (states_[i].idle_slots > 0) slot = classes_.slot_size(i);
  }
  return std::max(slot, Bytes(seams_.LargestRoom()));
}

// ---- Streams ----------------------------------------------------------------

OwnerHeap::FreeLists::const_iterator OwnerHeap::FreeListPosition(
    StreamId stream) const {
  return std::lower_bound(
      free_lists_.begin(), free_lists_.end(), stream,
      [](const auto& list, StreamId id) { return list->stream() < id; });
}

StreamFreeList* OwnerHeap::FindFreeList(StreamId stream) {
  if (recent_list_ != nullptr && recent_list_->stream() == stream) {
    return recent_list_;
  }
  const auto position = FreeListPosition(stream);
  if (position == free_lists_.end() || (*position)->stream() != stream) {
    return nullptr;
  }
  recent_list_ = position->get();
  return recent_list_;
}

StreamFreeList* OwnerHeap::MakeFreeList(StreamId stream) {
  if (StreamFreeList* const list = FindFreeList(stream)) return list;
  const auto position = FreeListPosition(stream);
  recent_list_ = free_lists_
                     .insert(position, std::make_unique<StreamFreeList>(
                                           memory_->driver(), memory_->device(),
                                           stream, classes_.count()))
                     ->get();
  return recent_list_;
}

void OwnerHeap::DropEmptyFreeLists() {
  std::erase_if(free_lists_, [](const auto& list) { return list->empty(); });
  recent_list_ = nullptr;
}

// ---- Spans ------------------------------------------------------------------

void OwnerHeap::CountMapped(uint64_t before) {
  // Differences may be negative; sums never are.
  total_->bytes += (MappedPages() - before) * page_bytes_;
  if (MappedPages() > before) {
    total_->made_bytes += (MappedPages() - before) * page_bytes_;
  }
}

Span* OwnerHeap::AddSpan(AddressRange* range) {
  Span* const span = spans_->Add(range);
  span->heap = this;
  return span;
}

void OwnerHeap::SetSlab(Span* span, int size_class) {
  const uint64_t slot_size = classes_.slot_size(size_class).value();
  const auto slots = static_cast<uint32_t>(RoomOf(*span) / slot_size);
  spans_->SetRecords(span, slots);
  span->size_class = size_class;
  span->SetSlots(slot_size, slots);
  span->last_slot_size = slot_size;
  span->last_slot_count = slots;
  span->free_slots.Reset(slots);
  span_bytes_ += span->capacity();
  free_bytes_ += span->capacity();
  slab_slack_bytes_ += RoomOf(*span) - span->capacity();
  BecomeIdle(*span);
  free_pages_ += span->whole_pages;
  ++slabs_;
  ++slabs_made_;
  ClassState& state = states_[size_class];
  if (state.slabs == 0) {
    const bool comeback =
        state.released_at > 0 && slabs_made_ - state.released_at <= kSoon;
    state.comebacks = comeback ? state.comebacks + 1 : 0;
  }
  ++state.slabs;
  ++state.empty_slabs;
  state.idle_slots += slots;
  AddPartial(span);
}

// What of the slab still cools is nobody's account from here on.
void OwnerHeap::DropSlab(Span* span) {
  span_bytes_ -= span->capacity();
  free_bytes_ -= span->free_slots.free_count() * span->slot_size;
  cooling_bytes_ -= span->cooling * span->slot_size;
  slab_slack_bytes_ -= RoomOf(*span) - span->capacity();
  BecomeBusy(*span);
  ClassState& state = states_[span->size_class];
  --slabs_;
  --state.slabs;
  if (span->out() == 0) {
    free_pages_ -= span->whole_pages;
    --state.empty_slabs;
  }
  state.idle_slots -= span->slot_count;
  if (span->list_position != SIZE_MAX) RemovePartial(span);
  span->cooling = 0;
}

// Of one slot, which is held.
void OwnerHeap::SetLarge(Span* span, uint64_t bytes) {
  spans_->SetRecords(span, 1);
  span->size_class = kLargeClass;
  span->SetSlots(bytes, 1);
  span_bytes_ += bytes;
}

void OwnerHeap::Park(Span* span) {
  span->parked = true;
  free_bytes_ += span->slot_size;
  free_pages_ += span->whole_pages;
  BecomeIdle(*span);
  parked_.Insert(span);
}

void OwnerHeap::Unpark(Span* span) {
  parked_.Remove(span);
  span->parked = false;
  free_bytes_ -= span->slot_size;
  free_pages_ -= span->whole_pages;
  BecomeBusy(*span);
}

void OwnerHeap::BecomeIdle(const Span& span) {
  reclaimable_pages_ += span.whole_pages;
  seams_.SetIdle(span.head, true);
  seams_.SetIdle(span.tail, true);
}

void OwnerHeap::BecomeBusy(const Span& span) {
  reclaimable_pages_ -= span.whole_pages;
  seams_.SetIdle(span.head, false);
  seams_.SetIdle(span.tail, false);
}

void OwnerHeap::AddPartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  slab->list_position = partial.size();
  partial.push_back(slab);
}

void OwnerHeap::RemovePartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  partial[slab->list_position] = partial.back();
  partial[slab->list_position]->list_position = slab->list_position;
  partial.pop_back();
  slab->list_position = SIZE_MAX;
}

// Slots are taken from the slab at the back, so the one at the front is the
// last to be used.
void OwnerHeap::MoveToFront(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  Span* const first = partial.front();
  std::swap(partial[0], partial[slab->list_position]);
  std::swap(first->list_position, slab->list_position);
}

// ---- Taking -----------------------------------------------------------------

Block OwnerHeap::Take(Span* span, uint32_t slot) {
  ClassState& state = states_[span->size_class];
  if (span->out() == 1) {
    free_pages_ -= span->whole_pages;
    --state.empty_slabs;
  }
  // Whether it was before.
  if (span->out() - 1 == span->cooling) BecomeBusy(*span);
  --state.idle_slots;
  const Block block = {span, slot};
  if (span->free_slots.free_count() == 0) RemovePartial(span);
  free_bytes_ -= span->slot_size;
  block.SetInherits(false);
  return block;
}

std::optional<Block> OwnerHeap::TakeSlot(int size_class, Bytes alignment) {
  const std::vector<Span*>& partial = states_[size_class].partial;
  // A slab that starts on a page has the alignment of its slots.
  for (size_t i = partial.size(); i-- > 0;) {
    if (alignment.value() <= kSeamBytes || !partial[i]->has_seams()) {
      return Take(partial[i]);
    }
  }
  return std::nullopt;
}

std::optional<Block> OwnerHeap::TakeSlotNear(Block held) {
  Span* const span = held.span;
  if (span->list_position == SIZE_MAX) return TakeSlot(span->size_class);
  return Take(span, span->free_slots.TakeNear(held.slot, &order_));
}

std::optional<Block> OwnerHeap::TakeSlotOfNewSlab(int size_class) {
  Span* const range = parked_.FindWholePages(
      classes_.slab_pages(size_class).value(), page_bytes_);
  if (range == nullptr) return std::nullopt;
  Unpark(range);
  span_bytes_ -= range->slot_size;
  SetSlab(range, size_class);
  return Take(range);
}

uint64_t OwnerHeap::LargestExcess(uint64_t bytes) const {
  return bytes / (kept_for_graphs_ ? kFitDivisorForGraphs : kFitDivisor);
}

Span* OwnerHeap::FindParked(uint64_t bytes, Bytes alignment) const {
  return parked_.FindFit(bytes, LargestExcess(bytes), alignment);
}

Block OwnerHeap::TakeParked(Span* span) {
  Unpark(span);
  const Block block = {span, 0};
  block.SetInherits(false);
  return block;
}

void OwnerHeap::Revive(Block block) {
  Span* const slab = HostOf(block.span);
  if (slab->reclaimable()) BecomeBusy(*slab);
  --slab->cooling;
  cooling_bytes_ -= slab->slot_size;
  if (!slab->large()) --states_[slab->size_class].idle_slots;
  block.SetInherits(true);
}

absl::Status OwnerHeap::AddSlab(int size_class, uint64_t pages) {
  const std::vector<PageHandle> any(pages);
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         memory_->TryMakeRange(owner_, Bytes(0), any));
  const uint64_t before = MappedPages();
  Span* const span = AddSpan(range);
  span->whole_pages = pages;
  span_pages_ += pages;
  CountMapped(before);
  total_->UpdatePeak();
  SetSlab(span, size_class);
  return absl::OkStatus();
}

uint64_t OwnerHeap::FirstSlabBytes(int size_class) const {
  const uint64_t slot_size = classes_.slot_size(size_class).value();
  const uint64_t bytes = std::max(kFirstSlabBytes, kFirstSlabSlots * slot_size);
  if (states_[size_class].slabs > 0 || bytes > page_bytes_ / 4) return 0;
  return bytes;
}

absl::Status OwnerHeap::AddFirstSlab(int size_class) {
  return AddSeamSlab(size_class, FirstSlabBytes(size_class)).status();
}

absl::StatusOr<Span*> OwnerHeap::AddSeamSlab(int size_class, uint64_t bytes) {
  QUIRE_ASSIGN_OR_RETURN(Span* const span,
                         AddSeamSpan(bytes, kDefaultAlignment, {}));
  SetSlab(span, size_class);
  total_->UpdatePeak();
  return span;
}

// ---- Giving back ------------------------------------------------------------

void OwnerHeap::Cool(Block block) {
  Span* const slab = HostOf(block.span);
  ++slab->cooling;
  cooling_bytes_ += slab->slot_size;
  if (!slab->large()) ++states_[slab->size_class].idle_slots;
  if (slab->reclaimable()) BecomeIdle(*slab);
}

void OwnerHeap::Free(Block block) {
  if (block.span->large()) {
    Park(block.span);
    return;
  }
  Span* const slab = HostOf(block.span);
  ClassState& state = states_[slab->size_class];
  free_bytes_ += slab->slot_size;
  slab->free_slots.Put(block.slot);
  ++state.idle_slots;
  if (slab->list_position == SIZE_MAX) AddPartial(slab);
  if (slab->reclaimable()) BecomeIdle(*slab);
  if (slab != block.span) {
    block.span->free_slots.Put(block.slot);
    if (block.span->out() == 0) DropGuest(block.span, Fence());
  }
  if (slab->out() > 0) return;
  free_pages_ += slab->whole_pages;
  ++state.empty_slabs;
  KeepOrPark(slab);
}

void OwnerHeap::KeepOrPark(Span* slab) {
  ClassState& state = states_[slab->size_class];
  if (state.empty_slabs > 1) {
    DropSlab(slab);
    SetLarge(slab, RoomOf(*slab));
    Park(slab);
  } else {
    state.emptied_at = slabs_made_;
    MoveToFront(slab);
  }
}

bool OwnerHeap::ComesBack(const ClassState& state) const {
  return state.comebacks >= kComebacksToKeep &&
         slabs_made_ - state.emptied_at <= kSoon;
}

void OwnerHeap::FinishCooling(Block block) {
  Revive(block);
  Free(block);
}

void OwnerHeap::ReleaseSeams(const Fence& fence) {
  if (kept_for_graphs_) return;
  std::vector<Span*> with_seams;
  std::copy_if(parked_.spans().begin(), parked_.spans().end(),
               std::back_inserter(with_seams),
               [](const Span* span) { return span->has_seams(); });
  for (Span* const span : with_seams) Release(span, fence);
}

uint64_t OwnerHeap::ReleaseFree(uint64_t wanted, Keep keep,
                                const Fence& fence) {
  if (kept_for_graphs_) return 0;
  const uint64_t before = MappedPages();
  const auto given = [&] { return before - MappedPages(); };
  if (wanted > 0) ReleaseSeams(fence);
  while (given() < wanted && !parked_.empty()) {
    Span* const span = parked_.FindVictim((wanted - given()) * page_bytes_);
    Release(span, fence);
  }
  for (ClassState& state : states_) {
    if (given() >= wanted) break;
    if (state.empty_slabs == 0) continue;
    if (keep == Keep::kComebacks && ComesBack(state)) continue;
    state.released_at = slabs_made_;
    Release(state.partial.front(), fence);
  }
  return given();
}

void OwnerHeap::Release(Span* span, const Fence& fence) {
  const uint64_t before = MappedPages();
  AddressRange* const range = span->range;
  if (!span->large()) {
    DropSlab(span);
  } else {
    if (span->parked) {
      Unpark(span);
    } else {
      Revive({span, 0});
    }
    span_bytes_ -= span->slot_size;
  }
  span_pages_ -= span->whole_pages;
  EndPiece(span->head, fence);
  EndPiece(span->tail, fence);
  spans_->Remove(span);
  CountMapped(before);
  memory_->ReleaseRange(range, fence);
}

}  // namespace quire
