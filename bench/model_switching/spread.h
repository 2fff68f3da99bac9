// A figure over a day: how often, its mean and its worst.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_SPREAD_H_
#define QUIRE_BENCH_MODEL_SWITCHING_SPREAD_H_

#include <algorithm>
#include <cstddef>

#include "nlohmann/json.hpp"

namespace quire {

struct Spread {
  double mean = 0;
  double worst = 0;
  size_t count = 0;

  void Add(double value) {
    mean += (value - mean) / static_cast<double>(++count);
    worst = std::max(worst, value);
  }

  // Null where there was none.
  nlohmann::json ToJson() const {
    if (count == 0) return {};
    return {{"mean", mean}, {"worst", worst}, {"count", count}};
  }
};

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_SPREAD_H_
