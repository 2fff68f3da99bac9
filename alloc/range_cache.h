// Mapped ranges that hold no allocation, ordered for best fit.
//
// Ranges are not split: how many pages too many a request takes is the caller's
// to say, and pages that are given back serve any range.
//
// O(log ranges); a request whose alignment exceeds the page size may look at
// every range that is large enough. Not thread-safe.

#ifndef QUIRE_ALLOC_RANGE_CACHE_H_
#define QUIRE_ALLOC_RANGE_CACHE_H_

#include <cstdint>
#include <set>

#include "alloc/span.h"
#include "quire/alloc/units.h"

namespace quire {

class RangeCache {
 public:
  bool empty() const { return spans_.empty(); }
  size_t size() const { return spans_.size(); }
  uint64_t pages() const { return pages_; }  // of all of them
  const auto& spans() const { return spans_; }

  // REQUIRES: a span that is in no cache.
  void Insert(Span* span) {
    spans_.insert(span);
    pages_ += span->pages;
  }
  // REQUIRES: the span is in this cache.
  void Remove(Span* span) {
    spans_.erase(span);
    pages_ -= span->pages;
  }
  // The smallest range of at least `pages` and at most `excess` more, the
  // lowest address among equals; null where there is none. REQUIRES: alignment
  // is a power of two.
  Span* FindFit(uint64_t pages, uint64_t excess, Bytes alignment) const;
  // What to give back when `wanted` pages are: the smallest range that covers
  // them all, else the largest there is. REQUIRES: not empty.
  Span* FindVictim(uint64_t wanted) const;

 private:
  struct BySizeThenAddress {
    using is_transparent = void;
    bool operator()(const Span* a, const Span* b) const {
      return a->pages != b->pages ? a->pages < b->pages
                                  : a->address() < b->address();
    }
    bool operator()(const Span* a, uint64_t pages) const {
      return a->pages < pages;
    }
    bool operator()(uint64_t pages, const Span* b) const {
      return pages < b->pages;
    }
  };

  std::set<Span*, BySizeThenAddress> spans_;
  uint64_t pages_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RANGE_CACHE_H_
