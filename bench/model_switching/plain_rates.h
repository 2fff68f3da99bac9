// What a switch is measured against: how long it takes to move as many bytes by
// the plainest means there are.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_PLAIN_RATES_H_
#define QUIRE_BENCH_MODEL_SWITCHING_PLAIN_RATES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// Seconds that memcpy takes for `bytes` from host memory into pages of a
// software device that nobody has touched: what those are of a model that wakes
// up after its pages were given back.
absl::StatusOr<double> MeasureCopy(Bytes bytes, Bytes page_size);

// Seconds that reading all of the files takes, one after the other, without
// what the page cache has of them.
absl::StatusOr<double> MeasureRead(const std::vector<std::string>& paths);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_PLAIN_RATES_H_
