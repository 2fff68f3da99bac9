// A cache whose owner was asleep: see DeviceMemory::Sleep.
//
// What is kept for prompts goes when the owner falls asleep, as under any other
// pressure, and what sequences have comes back under the same addresses, shared
// as it was. But it comes back in other pages, and the books of those that are
// shared, or left under sequences that are swapped out, are kept by page.

#include "absl/container/flat_hash_map.h"
#include "paging/kv_cache_impl.h"

namespace quire {

void KvCache::Impl::AfterWake(OwnerId owner) {
  // Of what slept of an owner above, a part may wake: it may be this one.
  if (!memory_->owners()->IsWithin(options_.owner, owner)) return;
  MutexLock lock(&state_mutex_);
  std::vector<KvRegion*> regions = parked_.OldestFirst();
  for (const KvSequence& sequence : sequences_) {
    if (sequence.region) regions.push_back(sequence.region.get());
  }
  SharedPages::NewHandles handles;
  for (const KvRegion* const region : regions) {
    if (region->shared() == nullptr) continue;
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      const std::vector<PageHandle>& pages =
          region->shared()->parts[group].pages;
      for (size_t slot = 0; slot < pages.size(); ++slot) {
        const PageHandle page = memory_->PageAt(
            region->range(), Plus(geometry_.FirstPage(group), PageCount(slot)));
        if (page != pages[slot] && page != PageHandle())
          handles.emplace(pages[slot], page);
      }
    }
  }
  for (KvRegion* const region : regions) SharedPages::Rename(handles, region);
  shared_.Rename(handles);
  absl::flat_hash_map<PageHandle, std::shared_ptr<KeptPage>> kept_pages;
  for (auto& [page, kept] : kept_pages_) {
    const auto renamed = handles.find(page);
    if (renamed != handles.end()) kept->page = renamed->second;
    kept_pages.emplace(kept->page, std::move(kept));
  }
  kept_pages_ = std::move(kept_pages);
}

}  // namespace quire
