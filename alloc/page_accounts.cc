#include "alloc/page_accounts.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

uint32_t* CountOf(PageRecord* page, SlotState state) {
  switch (state) {
    case SlotState::kUnbacked:
    case SlotState::kAsleep:
      return nullptr;
    case SlotState::kLive:
      return &page->live;
    case SlotState::kCooling:
      return &page->cooling;
    case SlotState::kQuarantined:
      return &page->quarantined;
  }
  return nullptr;
}

template <typename... Parts>
absl::Status Broken(Parts... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}

}  // namespace

void PageAccounts::Move(PageRecord* page, SlotState from, SlotState to) {
  if (from == to) return;
  const SlotState before = page->state();
  if (uint32_t* const count = CountOf(page, from)) --*count;
  if (uint32_t* const count = CountOf(page, to)) ++*count;
  const SlotState after = page->state();
  // A slot more or less of a page under several is nothing to the owners.
  if (before != after) {
    Leave(before, page->owner);
    Enter(after, page->owner);
  }
  if (from == SlotState::kUnbacked) ++mapped_slots_;
  if (to == SlotState::kUnbacked) --mapped_slots_;
}

void PageAccounts::UpdatePeaks(OwnerId owner) {
  peak_live_ = std::max(peak_live_, live_);
  owners_.UpdatePeaks(owner);
}

void PageAccounts::Enter(SlotState state, OwnerId owner) {
  switch (state) {
    case SlotState::kUnbacked:
    case SlotState::kAsleep:
      break;
    case SlotState::kLive:
      owners_.Enter(owner);
      ++live_;
      break;
    case SlotState::kCooling:
      ++cooling_;
      break;
    case SlotState::kQuarantined:
      ++quarantined_;
      break;
  }
}

void PageAccounts::Leave(SlotState state, OwnerId owner) {
  switch (state) {
    case SlotState::kUnbacked:
    case SlotState::kAsleep:
      break;
    case SlotState::kLive:
      owners_.Leave(owner);
      --live_;
      break;
    case SlotState::kCooling:
      --cooling_;
      break;
    case SlotState::kQuarantined:
      --quarantined_;
      break;
  }
}

absl::Status PageAccounts::CheckInvariants(
    const std::vector<const ManagedRange*>& ranges) const {
  const OwnerRegistry no_names;
  PageAccounts counted(&no_names);
  std::unordered_map<const PageRecord*, PageRecord> pages;
  for (const ManagedRange* range : ranges) {
    for (const PageSlot& slot : range->slots) {
      if (slot.page == nullptr) continue;
      const auto [entry, is_new] =
          pages.try_emplace(slot.page, slot.page->handle);
      PageRecord& page = entry->second;
      page.owner = slot.page->owner;
      counted.Move(&page, SlotState::kUnbacked, slot.state);
      if (slot.state != SlotState::kQuarantined &&
          page.owner != range->owner()) {
        return Broken("page ", page.handle.value(), " of owner ",
                      page.owner.value(), " is under the range at ",
                      range->address().value(), " of owner ",
                      range->owner().value());
      }
    }
  }
  for (const auto& [original, page] : pages) {
    if (original->live != page.live || original->cooling != page.cooling ||
        original->quarantined != page.quarantined) {
      return Broken("page ", page.handle.value(),
                    " counts as live, cooling, quarantined: ", original->live,
                    ", ", original->cooling, ", ", original->quarantined,
                    " slots; found: ", page.live, ", ", page.cooling, ", ",
                    page.quarantined);
    }
  }
  if (counted.live_ != live_ || counted.cooling_ != cooling_ ||
      counted.quarantined_ != quarantined_ ||
      counted.mapped_slots_ != mapped_slots_) {
    return Broken(
        "pages counted as live, cooling, quarantined, and slots: ", live_, ", ",
        cooling_, ", ", quarantined_, ", ", mapped_slots_,
        "; found: ", counted.live_, ", ", counted.cooling_, ", ",
        counted.quarantined_, ", ", counted.mapped_slots_);
  }
  std::vector<uint64_t> own;
  for (const OwnerAccount& account : counted.owners_.accounts()) {
    own.push_back(account.own);
  }
  return owners_.CheckInvariants(own);
}

}  // namespace quire
