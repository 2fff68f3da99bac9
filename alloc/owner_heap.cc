#include "alloc/owner_heap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

void SetInherits(Block block, bool inherits) {
  AtomicSlotRecord& record = block.record();
  record.store(record.load().WithInherits(inherits));
}

// How much longer than a request a range may be: a part of the request. Pages
// that are kept for graphs serve nothing else, so there it may be as long
// again: graphs of ever smaller shapes that share a pool then take at most
// about twice what the largest takes.
constexpr uint64_t kFitDivisor = 64;
constexpr uint64_t kFitDivisorForGraphs = 1;

// The first slab of a class: so many bytes, and so many slots, at least.
constexpr uint64_t kFirstSlabBytes = 64 << 10;
constexpr uint64_t kFirstSlabSlots = 4;

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
      const uint64_t slot = (span->head.none() ? 0 : 1) + span->whole_pages;
      seams_.SetHandle(span->tail.page,
                       memory_->PageAt(span->range, PageCount(slot)));
    }
  }
}

uint64_t OwnerHeap::pinned_bytes() const {
  if (asleep_) return 0;
  if (kept_for_graphs_) return 0;
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

StreamFreeList* OwnerHeap::FindFreeList(StreamId stream) {
  if (recent_list_ != nullptr && recent_list_->stream() == stream) {
    return recent_list_;
  }
  const auto position = std::lower_bound(
      free_lists_.begin(), free_lists_.end(), stream,
      [](const auto& list, StreamId id) { return list->stream() < id; });
  if (position == free_lists_.end() || (*position)->stream() != stream) {
    return nullptr;
  }
  recent_list_ = position->get();
  return recent_list_;
}

StreamFreeList* OwnerHeap::MakeFreeList(StreamId stream) {
  if (StreamFreeList* const list = FindFreeList(stream)) return list;
  const auto position = std::lower_bound(
      free_lists_.begin(), free_lists_.end(), stream,
      [](const auto& list, StreamId id) { return list->stream() < id; });
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
  ClassState& state = states_[size_class];
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

Block OwnerHeap::Take(Span* span) {
  ClassState& state = states_[span->size_class];
  if (span->out() == 0) {
    free_pages_ -= span->whole_pages;
    --state.empty_slabs;
  }
  if (span->reclaimable()) BecomeBusy(*span);
  --state.idle_slots;
  const Block block = {span, span->free_slots.Take(&order_)};
  if (span->free_slots.free_count() == 0) RemovePartial(span);
  free_bytes_ -= span->slot_size;
  SetInherits(block, false);
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
  SetInherits({span, 0}, false);
  return {span, 0};
}

void OwnerHeap::Revive(Block block) {
  Span* const slab = HostOf(block.span);
  if (slab->reclaimable()) BecomeBusy(*slab);
  --slab->cooling;
  cooling_bytes_ -= slab->slot_size;
  if (!slab->large()) --states_[slab->size_class].idle_slots;
  SetInherits(block, true);
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
  QUIRE_ASSIGN_OR_RETURN(
      Span* const span,
      AddSeamSpan(FirstSlabBytes(size_class), kDefaultAlignment, {}));
  SetSlab(span, size_class);
  total_->UpdatePeak();
  return absl::OkStatus();
}

SeamPlan OwnerHeap::PlanLarge(uint64_t bytes, Bytes alignment) const {
  return seams_.Plan(bytes, alignment.value() <= kSeamBytes);
}

absl::StatusOr<Span*> OwnerHeap::AddSeamSpan(
    uint64_t bytes, Bytes alignment, std::span<const PageHandle> donated) {
  SeamPlan plan = PlanLarge(bytes, alignment);
  std::vector<PageHandle> pages(plan.slots());
  if (!plan.head.none()) pages.front() = seams_.HandleOf(plan.head.page);
  if (!plan.tail.none() && !plan.tail_is_new) {
    pages.back() = seams_.HandleOf(plan.tail.page);
  }
  std::copy(donated.begin(), donated.end(),
            pages.begin() + (plan.head.none() ? 0 : 1));
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         memory_->TryMakeRange(owner_, alignment, pages));
  const uint64_t before = MappedPages();
  seams_.Place(&plan);
  if (plan.tail_is_new) {
    seams_.SetHandle(plan.tail.page,
                     memory_->PageAt(range, PageCount(plan.slots() - 1)));
  }
  Span* const span = AddSpan(range);
  span->base += plan.head.offset;
  span->head = plan.head;
  span->tail = plan.tail;
  span->whole_pages = plan.whole_pages;
  span_pages_ += plan.whole_pages;
  CountMapped(before);
  return span;
}

absl::StatusOr<Block> OwnerHeap::AddLarge(uint64_t bytes, Bytes alignment,
                                          StreamId stream, uint64_t prepared,
                                          uint64_t* missing) {
  const SeamPlan plan = PlanLarge(bytes, alignment);
  *missing = plan.new_pages() - std::min(plan.new_pages(), prepared);
  StreamFreeList* const list = FindFreeList(stream);
  std::vector<Donation> donations;
  std::vector<PageHandle> donated;
  if (*missing > 0 && list != nullptr) {
    // The rest of a new page at the end may serve any stream.
    donations = FindDonations(list, std::min(*missing, plan.whole_pages));
    for (const Donation& donation : donations) {
      const uint64_t end =
          (donation.donor->head.none() ? 0 : 1) + donation.donor->whole_pages;
      for (uint64_t i = end - donation.pages; i < end; ++i) {
        donated.push_back(memory_->PageAt(donation.donor->range, PageCount(i)));
      }
    }
    *missing -= donated.size();
  }
  QUIRE_ASSIGN_OR_RETURN(Span* const span,
                         AddSeamSpan(bytes, alignment, donated));
  SetLarge(span, bytes);
  span->last_slot_size = bytes;
  span->last_slot_count = 1;
  SetInherits({span, 0}, !donations.empty());
  for (const Donation& donation : donations) Donate(list, donation);
  total_->UpdatePeak();
  return Block{span, 0};
}

std::vector<OwnerHeap::Donation> OwnerHeap::FindDonations(StreamFreeList* list,
                                                          uint64_t wanted) {
  std::vector<Donation> donations;
  const auto consider = [&](Span* donor) {
    const uint64_t pages = std::min(donor->whole_pages, wanted);
    if (pages == 0) return;
    // Where the driver records no fence, the range must stay as it is.
    std::optional<Fence> fence = list->FenceOf(donor);
    if (!fence) return;
    donations.push_back({donor, pages, *std::move(fence)});
    wanted -= pages;
  };
  // The smallest that has them all, else the largest first: as few as possible.
  const auto& ranges = list->ranges().spans();
  const auto enough = ranges.lower_bound(wanted * page_bytes_);
  if (enough != ranges.end()) consider(*enough);
  for (auto range = ranges.rbegin(); range != ranges.rend() && wanted > 0;
       ++range) {
    if (donations.empty() || donations.front().donor != *range) {
      consider(*range);
    }
  }
  return donations;
}

void OwnerHeap::Donate(StreamFreeList* list, const Donation& donation) {
  Span* const donor = donation.donor;
  list->RemoveRange(donor);
  if (donation.pages == donor->whole_pages) {
    Release(donor, donation.fence);
    return;
  }
  Revive({donor, 0});
  Shrink(
      donor,
      donor->head.length + (donor->whole_pages - donation.pages) * page_bytes_,
      donation.fence);
  Cool({donor, 0});
  list->Push({donor, 0});
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
    if (block.span->out() == 0) DropGuest(block.span);
  }
  if (slab->out() > 0) return;
  free_pages_ += slab->whole_pages;
  ++state.empty_slabs;
  KeepOrPark(slab);
}

void OwnerHeap::KeepOrPark(Span* slab) {
  if (states_[slab->size_class].empty_slabs > 1) {
    DropSlab(slab);
    SetLarge(slab, RoomOf(*slab));
    Park(slab);
  } else {
    MoveToFront(slab);
  }
}

void OwnerHeap::FinishCooling(Block block) {
  Revive(block);
  Free(block);
}

uint64_t OwnerHeap::ReleaseFree(uint64_t wanted, const Fence& fence) {
  if (kept_for_graphs_) return 0;
  const uint64_t before = MappedPages();
  const auto given = [&] { return before - MappedPages(); };
  // Ranges that end within pages stand in the way of others that may: without
  // them new ends fit better, and what they hold is little.
  if (wanted > 0) {
    std::vector<Span*> with_seams;
    std::copy_if(parked_.spans().begin(), parked_.spans().end(),
                 std::back_inserter(with_seams),
                 [](const Span* span) { return span->has_seams(); });
    for (Span* const span : with_seams) Release(span, fence);
  }
  while (given() < wanted && !parked_.empty()) {
    Span* const span = parked_.FindVictim((wanted - given()) * page_bytes_);
    Release(span, fence);
  }
  for (const ClassState& state : states_) {
    if (given() >= wanted) break;
    if (state.empty_slabs > 0) Release(state.partial.front(), fence);
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

void OwnerHeap::EndPiece(const SeamPiece& piece, const Fence& fence) {
  if (piece.none() || !seams_.Unmap(piece)) return;
  if (fence.IsComplete().value_or(false)) {
    seams_.EndUse(piece);
  } else {
    endings_.push_back({fence, piece});
  }
}

void OwnerHeap::PollEndings() {
  std::erase_if(endings_, [this](const Ending& ending) {
    if (!ending.fence.IsComplete().value_or(false)) return false;
    seams_.EndUse(ending.piece);
    return true;
  });
}

void OwnerHeap::Shrink(Span* span, uint64_t bytes, const Fence& fence) {
  const uint64_t before = MappedPages();
  const uint64_t first_slot = span->head.none() ? 0 : 1;
  const uint64_t whole_bytes = bytes - std::min(bytes, span->head.length);
  const uint64_t kept = std::min(span->whole_pages,
                                 (whole_bytes + page_bytes_ - 1) / page_bytes_);
  const uint64_t whole_end =
      span->head.length + span->whole_pages * page_bytes_;
  const bool keeps_tail = !span->tail.none() && bytes > whole_end;
  if (keeps_tail || span->slot_size == bytes) return;
  uint64_t dropped = span->whole_pages - kept;
  if (!span->tail.none()) ++dropped;
  if (dropped == 0) return;
  // An error means that the driver keeps the pages: they are not ours any more.
  (void)memory_->Decommit(span->range, PageCount(first_slot + kept),
                          PageCount(dropped), fence);
  EndPiece(span->tail, fence);
  span->tail = SeamPiece();
  span_pages_ -= span->whole_pages - kept;
  span->whole_pages = kept;
  const uint64_t left = span->head.length + kept * page_bytes_;
  span_bytes_ -= span->slot_size - left;
  span->SetSlots(left, 1);
  span->last_slot_size = left;
  CountMapped(before);
}

// ---- Checks -----------------------------------------------------------------

absl::Status OwnerHeap::CheckSpan(const Span& span, Sums* sums) const {
  const auto broken = [&span](const std::string& what) {
    return absl::InternalError(absl::StrFormat(
        "span of %u bytes at %#x: %s", span.capacity(), span.base, what));
  };
  if (spans_->Find(span.address()) != &span) {
    return broken("not found by its address");
  }
  if (span.host != nullptr) {
    ++sums->guests;
    return CheckGuest(span);
  }
  sums->hosted += span.guests;
  const uint64_t slots = span.whole_pages + (span.head.none() ? 0 : 1) +
                         (span.tail.none() ? 0 : 1);
  if (!asleep_ &&
      memory_->CommittedPages(span.range, PageCount(0), span.range->pages()) !=
          PageCount(slots)) {
    return broken("so many pages are not committed");
  }
  sums->span_pages += span.whole_pages;
  sums->span_bytes += span.capacity();
  sums->cooling += span.cooling * span.slot_size;
  if (span.reclaimable()) sums->reclaimable += span.whole_pages;
  if (span.empty()) sums->free_pages += span.whole_pages;
  const uint64_t room =
      span.head.length + span.whole_pages * page_bytes_ + span.tail.length;
  if (span.large()) {
    if (span.slot_count != 1 || span.slot_size != room) {
      return broken("its pages are of another length");
    }
    if (span.parked != parked_.spans().contains(const_cast<Span*>(&span))) {
      return broken("its place among the parked ranges is wrong");
    }
    if (span.parked) sums->free += span.slot_size;
    if (span.cooling > 1 || (span.parked && span.cooling > 0)) {
      return broken("cools more than once");
    }
    return absl::OkStatus();
  }
  if (span.capacity() > room) return broken("its slots do not fit");
  if (span.free_slots.CalculateFree() != span.free_slots.free_count() ||
      span.free_slots.size() != span.slot_count) {
    return broken("its free slots are miscounted");
  }
  sums->slack += room - span.capacity();
  sums->free += span.free_slots.free_count() * span.slot_size;
  ++sums->slabs;
  for (uint32_t i = 0; i < span.slot_count; ++i) {
    if (span.free_slots.IsFree(i) &&
        span.records[i].load().use() == SlotUse::kLive) {
      return broken(absl::StrFormat("slot %u is free and live", i));
    }
  }
  const std::vector<Span*>& partial = states_[span.size_class].partial;
  const bool listed = span.list_position != SIZE_MAX;
  if (listed != (span.free_slots.free_count() > 0) ||
      (listed && (span.list_position >= partial.size() ||
                  partial[span.list_position] != &span))) {
    return broken("its place in the list of its class is wrong");
  }
  sums->idle_slots[span.size_class] +=
      span.free_slots.free_count() + span.cooling;
  sums->empty_slabs[span.size_class] += span.out() == 0 ? 1 : 0;
  ++sums->slabs_of[span.size_class];
  return absl::OkStatus();
}

absl::Status OwnerHeap::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(seams_.CheckInvariants());
  Sums sums;
  sums.idle_slots.resize(states_.size());
  sums.empty_slabs.resize(states_.size());
  sums.slabs_of.resize(states_.size());
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->heap != this) continue;
    QUIRE_RETURN_IF_ERROR(CheckSpan(*span, &sums));
  }
  for (const auto& [what, walked, kept] :
       {std::tuple{"whole pages", sums.span_pages, span_pages_},
        {"bytes of spans", sums.span_bytes, span_bytes_},
        {"free bytes", sums.free, free_bytes_},
        {"cooling bytes", sums.cooling, cooling_bytes_},
        {"slack at the ends of slabs", sums.slack, slab_slack_bytes_},
        {"slabs", sums.slabs, slabs_},
        {"reclaimable pages", sums.reclaimable, reclaimable_pages_},
        {"free pages", sums.free_pages, free_pages_},
        {"guests of slabs", sums.guests, sums.hosted}}) {
    if (walked == kept) continue;
    return absl::InternalError(absl::StrFormat(
        "heap of owner %u: %s is %u by walking the spans, %u by the accounts",
        owner_.value(), what, walked, kept));
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    const ClassState& state = states_[i];
    if (sums.idle_slots[i] != state.idle_slots ||
        sums.slabs_of[i] != state.slabs ||
        sums.empty_slabs[i] != state.empty_slabs || state.empty_slabs > 1 ||
        (state.empty_slabs == 1 && state.partial.front()->out() > 0)) {
      return absl::InternalError(absl::StrFormat(
          "heap of owner %u, class %u: %u idle slots (%u walked), %u empty "
          "slabs (%u walked), or the empty one is not the first",
          owner_.value(), i, state.idle_slots, sums.idle_slots[i],
          state.empty_slabs, sums.empty_slabs[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
