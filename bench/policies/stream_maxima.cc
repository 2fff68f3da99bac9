#include "bench/policies/stream_maxima.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace quire {

void StreamMaxima::Grow(uint64_t leaves) {
  std::vector<uint64_t> grown(2 * leaves, 0);
  if (leaves_ > 0) {
    std::copy(largest_.begin() + static_cast<int64_t>(leaves_), largest_.end(),
              grown.begin() + static_cast<int64_t>(leaves));
  }
  for (uint64_t i = leaves - 1; i > 0; --i) {
    grown[i] = std::max(grown[2 * i], grown[2 * i + 1]);
  }
  leaves_ = leaves;
  largest_ = std::move(grown);
}

void StreamMaxima::Set(uint64_t stream, uint64_t largest) {
  if (stream >= leaves_) {
    if (largest == 0) return;
    Grow(std::bit_ceil(stream + 1));
  }
  uint64_t i = leaves_ + stream;
  largest_[i] = largest;
  for (i /= 2; i > 0; i /= 2) {
    const uint64_t of_both = std::max(largest_[2 * i], largest_[2 * i + 1]);
    if (largest_[i] == of_both) return;
    largest_[i] = of_both;
  }
}

std::optional<uint64_t> StreamMaxima::FindFirst(uint64_t from,
                                                uint64_t size) const {
  if (from >= leaves_) return std::nullopt;
  uint64_t i = leaves_ + from;
  // To the first node, of those that begin at `from` or behind, that has one.
  while (largest_[i] < size) {
    while (i % 2 == 1) i /= 2;
    if (i == 0) return std::nullopt;
    ++i;
  }
  while (i < leaves_) {
    i *= 2;
    if (largest_[i] < size) ++i;
  }
  return i - leaves_;
}

}  // namespace quire
