#include "alloc/range_cache.h"

namespace quire {

Span* RangeCache::FindFit(uint64_t bytes, uint64_t excess,
                          Bytes alignment) const {
  for (auto it = spans_.lower_bound(bytes);
       it != spans_.end() && (*it)->slot_size - bytes <= excess; ++it) {
    if ((*it)->base % alignment.value() == 0) return *it;
  }
  return nullptr;
}

Span* RangeCache::FindWholePages(uint64_t pages, uint64_t page_bytes) const {
  const uint64_t bytes = pages * page_bytes;
  for (auto it = spans_.lower_bound(bytes);
       it != spans_.end() && (*it)->slot_size == bytes; ++it) {
    if (!(*it)->has_seams()) return *it;
  }
  return nullptr;
}

Span* RangeCache::FindVictim(uint64_t wanted) const {
  const auto it = spans_.lower_bound(wanted);
  return it != spans_.end() ? *it : *spans_.rbegin();
}

}  // namespace quire
