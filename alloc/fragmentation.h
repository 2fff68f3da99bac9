// The two ratios of every kind of allocator statistics.

#ifndef QUIRE_ALLOC_FRAGMENTATION_H_
#define QUIRE_ALLOC_FRAGMENTATION_H_

#include <cstdint>

namespace quire {

inline double RatioOf(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0
                    : static_cast<double>(part) / static_cast<double>(whole);
}

template <typename Statistics>
double InternalFragmentation(const Statistics& statistics) {
  return RatioOf(statistics.live_bytes - statistics.requested_bytes,
                 statistics.live_bytes);
}

template <typename Statistics>
double ExternalFragmentation(const Statistics& statistics) {
  return RatioOf(statistics.mapped_bytes - statistics.live_bytes,
                 statistics.mapped_bytes);
}

}  // namespace quire

#endif  // QUIRE_ALLOC_FRAGMENTATION_H_
