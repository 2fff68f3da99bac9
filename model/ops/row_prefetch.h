// Asks memory for the rows that come next, in the order of memory: the kernels'
// own order, a little of each of several rows, is too many short streams for
// hardware to foresee.
//
// Into the first level of the cache where the next rows fit there beside those
// in use. Longer ones would push these out, and go to the second: BF16 rows of
// 1,024 went from 11 to 17 GB/s, Q8_0 rows of 4,096 from 10 to 15 (AMD EPYC, 32
// KiB; eight rows of 8.5 KiB together are better off in the first level, and of
// 9 KiB in the second).

#ifndef QUIRE_MODEL_OPS_ROW_PREFETCH_H_
#define QUIRE_MODEL_OPS_ROW_PREFETCH_H_

#include <cstddef>
#include <cstdint>

namespace quire {

class RowPrefetch {
 public:
  // `rows` are those after the ones in use, and as many bytes.
  RowPrefetch(const uint8_t* rows, size_t bytes)
      : next_(rows), is_far_(bytes > kNearBytes) {}

  // The next `count` bytes.
  void Advance(size_t count) {
    if (is_far_) {
      for (size_t i = 0; i < count; i += kLine)
        __builtin_prefetch(next_ + i, 0, kSecondLevel);
    } else {
      for (size_t i = 0; i < count; i += kLine)
        __builtin_prefetch(next_ + i, 0, kFirstLevel);
    }
    next_ += count;
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kNearBytes = 9000;
  static constexpr int kFirstLevel = 3;
  static constexpr int kSecondLevel = 2;

  const uint8_t* next_;
  const bool is_far_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_ROW_PREFETCH_H_
