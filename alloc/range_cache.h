// Large ranges that hold no allocation, ordered for best fit.
//
// Ranges are not split: how much longer a range may be than a request is the
// caller's to say, and pages that are given back serve any range.
//
// O(log ranges); a request whose alignment exceeds that of most ranges may look
// at every one that is large enough. Not thread-safe.

#ifndef QUIRE_ALLOC_RANGE_CACHE_H_
#define QUIRE_ALLOC_RANGE_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/btree_set.h"
#include "alloc/span.h"
#include "quire/alloc/units.h"

namespace quire {

class RangeCache {
 public:
  bool empty() const { return spans_.empty(); }
  size_t size() const { return spans_.size(); }
  const auto& spans() const { return spans_; }

  // REQUIRES: a span that is in no cache, of one slot.
  void Insert(Span* span) { spans_.insert(span); }
  // REQUIRES: the span is in this cache.
  void Remove(Span* span) { spans_.erase(span); }
  // The smallest range of at least `bytes` and at most `excess` more, the
  // lowest address among equals; null where there is none. REQUIRES: alignment
  // is a power of two.
  Span* FindFit(uint64_t bytes, uint64_t excess, Bytes alignment) const;
  // The same of exactly `pages` whole pages.
  Span* FindWholePages(uint64_t pages, uint64_t page_bytes) const;
  // What to give back when `wanted` bytes are: the smallest range that covers
  // them all, else the largest there is. REQUIRES: not empty.
  Span* FindVictim(uint64_t wanted) const;

 private:
  struct BySizeThenAddress {
    using is_transparent = void;
    bool operator()(const Span* a, const Span* b) const {
      return a->slot_size != b->slot_size ? a->slot_size < b->slot_size
                                          : a->base < b->base;
    }
    bool operator()(const Span* a, uint64_t bytes) const {
      return a->slot_size < bytes;
    }
    bool operator()(uint64_t bytes, const Span* b) const {
      return bytes < b->slot_size;
    }
  };

  absl::btree_set<Span*, BySizeThenAddress> spans_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RANGE_CACHE_H_
