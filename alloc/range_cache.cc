#include "alloc/range_cache.h"

namespace quire {

Span* RangeCache::FindFit(uint64_t pages, uint64_t excess,
                          Bytes alignment) const {
  for (auto it = spans_.lower_bound(pages);
       it != spans_.end() && (*it)->pages - pages <= excess; ++it) {
    if ((*it)->address().value() % alignment.value() == 0) return *it;
  }
  return nullptr;
}

Span* RangeCache::FindVictim(uint64_t wanted) const {
  const auto it = spans_.lower_bound(wanted);
  return it != spans_.end() ? *it : *spans_.rbegin();
}

}  // namespace quire
