// Of each stream the largest of its free blocks, to find the first stream in
// order that has one of a given size without asking all of them.
//
// A complete binary tree over the numbers of the streams, which drivers count
// from 1, each node with the largest of its children. Memory is O(highest
// number); all operations are O(log n).

#ifndef QUIRE_BENCH_POLICIES_STREAM_MAXIMA_H_
#define QUIRE_BENCH_POLICIES_STREAM_MAXIMA_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace quire {

class StreamMaxima {
 public:
  // `largest` 0: it has none.
  void Set(uint64_t stream, uint64_t largest);
  // The first stream, from `from` on, that has `size` or more. REQUIRES: size >
  // 0.
  std::optional<uint64_t> FindFirst(uint64_t from, uint64_t size) const;

 private:
  void Grow(uint64_t leaves);

  uint64_t leaves_ = 0;  // 0, or a power of two
  // The root is at 1, the children of i at 2i and 2i + 1.
  std::vector<uint64_t> largest_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_STREAM_MAXIMA_H_
