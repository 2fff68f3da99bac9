// Ranges that share their first and last pages with their neighbours, and pages
// that cooling ranges give to others of their stream.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "alloc/owner_heap.h"
#include "quire/alloc/status_macros.h"

namespace quire {

// ---- Taking -----------------------------------------------------------------

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
            pages.begin() + plan.first_whole_slot());
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
      const uint64_t end = donation.donor->end_of_whole_slots();
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
  Block{span, 0}.SetInherits(!donations.empty());
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
  const uint64_t whole_bytes = bytes - std::min(bytes, span->head.length);
  const uint64_t kept = std::min(span->whole_pages,
                                 (whole_bytes + page_bytes_ - 1) / page_bytes_);
  const bool keeps_tail =
      !span->tail.none() && bytes > RoomOf(*span) - span->tail.length;
  if (keeps_tail || span->slot_size == bytes) return;
  uint64_t dropped = span->whole_pages - kept;
  if (!span->tail.none()) ++dropped;
  if (dropped == 0) return;
  // An error means that the driver keeps the pages: they are not ours any more.
  (void)memory_->Decommit(span->range,
                          PageCount(span->first_whole_slot() + kept),
                          PageCount(dropped), fence);
  EndPiece(span->tail, fence);
  span->tail = SeamPiece();
  span_pages_ -= span->whole_pages - kept;
  span->whole_pages = kept;
  const uint64_t left = RoomOf(*span);
  span_bytes_ -= span->slot_size - left;
  span->SetSlots(left, 1);
  span->last_slot_size = left;
  CountMapped(before);
}

}  // namespace quire
