#include "paging/shared_pages.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "paging/kv_region.h"

namespace quire {

SharedPages::Excess SharedPages::Uses::GetExcess() const {
  const uint64_t parked = slots - admitted;
  Excess excess;
  excess.admitted = admitted - (admitted > 0 ? 1 : 0);
  excess.parked = parked - (admitted == 0 && parked > 0 ? 1 : 0);
  excess.spare = slots - needed - (needed == 0 && slots > 0 ? 1 : 0);
  return excess;
}

void SharedPages::Count(const SharedSlots& slots, const SharedSlots::Part& part,
                        size_t first, bool add) {
  for (size_t slot = first; slot < part.pages.size(); ++slot) {
    const auto it = pages_.try_emplace(part.pages[slot]).first;
    Uses& uses = it->second;
    const Excess before = uses.GetExcess();
    const auto count = [&](uint64_t* number, bool counts) {
      if (counts) *number = add ? *number + 1 : *number - 1;
    };
    count(&uses.slots, true);
    count(&uses.admitted, !slots.parked);
    count(&uses.needed, slot < part.needed);
    const Excess after = uses.GetExcess();
    excess_.admitted = excess_.admitted - before.admitted + after.admitted;
    excess_.parked = excess_.parked - before.parked + after.parked;
    excess_.spare = excess_.spare - before.spare + after.spare;
    if (uses.slots == 0) pages_.erase(it);
  }
}

void SharedPages::Settle(SharedSlots* slots) const {
  slots->all_needed = true;
  slots->end_token = 0;
  const uint64_t page = geometry_->page_size().value();
  for (uint32_t group = 0; group < slots->parts.size(); ++group) {
    const SharedSlots::Part& part = slots->parts[group];
    slots->all_needed &= part.needed == part.pages.size();
    const uint64_t row = geometry_->layout().RowBytes(group).value();
    slots->end_token =
        std::max(slots->end_token, (part.pages.size() * page + row - 1) / row);
  }
}

void SharedPages::Enter(KvRegion* region, uint32_t group,
                        std::span<const PageHandle> pages) {
  if (region->shared() == nullptr) {
    auto fresh = std::make_unique<SharedSlots>();
    fresh->parts.resize(geometry_->layout().groups());
    fresh->parked = region->parked();
    region->set_shared(std::move(fresh));
  }
  SharedSlots* const slots = region->shared();
  SharedSlots::Part& part = slots->parts[group];
  const size_t entered = part.pages.size();
  if (pages.size() <= entered) return;
  part.pages.assign(pages.begin(), pages.end());
  part.stamps.resize(pages.size(), ++last_stamp_);
  part.needed =
      std::min(pages.size(),
               static_cast<size_t>(
                   geometry_->PagesOf(group, region->used_tokens()).value()));
  Count(*slots, part, entered, /*add=*/true);
  Settle(slots);
}

void SharedPages::Update(KvRegion* region) {
  SharedSlots* const slots = region->shared();
  if (slots == nullptr ||
      (!region->parked() && !slots->parked && slots->all_needed &&
       region->used_tokens() >= slots->end_token))
    return;
  bool empty = true;
  for (const SharedSlots::Part& part : slots->parts)
    Count(*slots, part, 0, /*add=*/false);
  slots->parked = region->parked();
  for (uint32_t group = 0; group < slots->parts.size(); ++group) {
    SharedSlots::Part& part = slots->parts[group];
    Cut(&part, static_cast<size_t>(region->committed(group).value()),
        region->fence());
    part.needed =
        std::min(part.pages.size(),
                 static_cast<size_t>(
                     geometry_->PagesOf(group, region->used_tokens()).value()));
    Count(*slots, part, 0, /*add=*/true);
    empty &= part.pages.empty();
  }
  Settle(slots);
  if (empty) region->set_shared(nullptr);
}

// Of the pages that are cut off, some are the last ones of their kind, and the
// slots of all parts of the region may be off the books while it is updated.
void SharedPages::Cut(SharedSlots::Part* part, size_t slots,
                      const Fence& fence) {
  if (slots >= part->pages.size()) return;
  const bool over = fence.IsComplete().value_or(false);
  for (size_t slot = slots; slot < part->pages.size(); ++slot) {
    const PageHandle page = part->pages[slot];
    if (!pages_.contains(page)) {
      late_.erase(page);
    } else if (!over) {
      std::vector<Fence>& fences = late_[page];
      std::erase_if(fences, [&](const Fence& old) {
        return IsOnStreams(old, fence.streams());
      });
      fences.push_back(fence);
    }
  }
  part->pages.resize(slots);
  part->stamps.resize(slots);
}

std::vector<Fence> SharedPages::LateReaders(const KvRegion& region,
                                            uint32_t group,
                                            size_t first) const {
  std::vector<Fence> fences;
  if (late_.empty() || region.shared() == nullptr) return fences;
  const std::vector<PageHandle>& pages = region.shared()->parts[group].pages;
  for (size_t slot = first; slot < pages.size(); ++slot) {
    const auto late = late_.find(pages[slot]);
    if (late == late_.end()) continue;
    for (const Fence& fence : late->second) {
      if (std::ranges::find(fences, fence) == fences.end() &&
          !fence.IsComplete().value_or(false))
        fences.push_back(fence);
    }
  }
  return fences;
}

void SharedPages::Strike(KvRegion* region, uint32_t group, size_t first) {
  SharedSlots* const slots = region->shared();
  if (slots == nullptr || first >= slots->parts[group].pages.size()) return;
  SharedSlots::Part& part = slots->parts[group];
  Count(*slots, part, first, /*add=*/false);
  Cut(&part, first, region->fence());
  part.needed = std::min(part.needed, first);
  Settle(slots);
}

void SharedPages::Strike(KvRegion* region) {
  if (region->shared() == nullptr) return;
  for (uint32_t group = 0; group < region->shared()->parts.size(); ++group)
    Strike(region, group, 0);
  region->set_shared(nullptr);
}

void SharedPages::Rename(const NewHandles& handles, KvRegion* region) {
  if (region->shared() == nullptr) return;
  for (SharedSlots::Part& part : region->shared()->parts) {
    for (PageHandle& page : part.pages) {
      const auto renamed = handles.find(page);
      if (renamed != handles.end()) page = renamed->second;
    }
  }
}

void SharedPages::Rename(const NewHandles& handles) {
  absl::flat_hash_map<PageHandle, Uses> pages;
  for (const auto& [page, uses] : pages_) {
    const auto renamed = handles.find(page);
    pages[renamed == handles.end() ? page : renamed->second] = uses;
  }
  pages_ = std::move(pages);
  absl::flat_hash_map<PageHandle, std::vector<Fence>> late;
  for (auto& [page, fences] : late_) {
    const auto renamed = handles.find(page);
    late[renamed == handles.end() ? page : renamed->second] = std::move(fences);
  }
  late_ = std::move(late);
}

bool SharedPages::AnyShared(const KvRegion& region, uint32_t group,
                            size_t first) const {
  if (region.shared() == nullptr) return false;
  const std::vector<PageHandle>& pages = region.shared()->parts[group].pages;
  return std::any_of(
      pages.begin() +
          static_cast<std::ptrdiff_t>(std::min(first, pages.size())),
      pages.end(), [&](PageHandle page) { return UsesOf(page).slots > 1; });
}

size_t SharedPages::SharedFirst(const KvRegion& region, uint32_t group) const {
  if (region.shared() == nullptr) return 0;
  const std::vector<PageHandle>& pages = region.shared()->parts[group].pages;
  size_t slot = 0;
  while (slot < pages.size() && UsesOf(pages[slot]).slots > 1) ++slot;
  return slot;
}

size_t SharedPages::NeededElsewhere(const KvRegion& region,
                                    uint32_t group) const {
  if (region.shared() == nullptr) return 0;
  const SharedSlots::Part& part = region.shared()->parts[group];
  size_t slot = 0;
  while (slot < part.pages.size() &&
         UsesOf(part.pages[slot]).needed > (slot < part.needed ? 1 : 0))
    ++slot;
  return slot;
}

uint64_t SharedPages::NeededElsewhere(const KvRegion& region) const {
  uint64_t slots = 0;
  for (uint32_t group = 0; group < geometry_->layout().groups(); ++group)
    slots += NeededElsewhere(region, group);
  return slots;
}

}  // namespace quire
