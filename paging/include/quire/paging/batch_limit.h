// How many sequences may run at once, by how full the cache is.
//
// A batch that just fits has no room to grow: every sequence in it gets longer
// with every step, and soon one must be preempted and computed again. So the
// batch stops short of that: above one level of use the limit is half of what
// runs, and below another, lower one it is twice of what it was. Between the
// two it stays: a use that moves about one level alone does not move the limit.
//
// A limit that was halved takes effect as sequences end, since it admits none
// and preempts none. Until then it is not halved again, however full the cache
// still is; and a limit that holds nobody back is not doubled.
//
// O(1). Not thread-safe.

#ifndef QUIRE_PAGING_BATCH_LIMIT_H_
#define QUIRE_PAGING_BATCH_LIMIT_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace quire {

struct BatchLimitOptions {
  // Of CacheUse::fraction(): 0 <= grow_below <= halve_above. Halving above 1
  // never happens.
  double halve_above = 0.85;
  double grow_below = 0.60;
};

class BatchLimit {
 public:
  // `most` sequences at first, and at most. Errors: kInvalidArgument for 0, and
  // for levels out of order, NaN included.
  static absl::StatusOr<BatchLimit> Create(uint32_t most,
                                           const BatchLimitOptions& options);

  // Before each step: `use` of the cache by the `running` sequences.
  void Update(double use, uint32_t running);

  // 1 to `most`.
  uint32_t value() const { return value_; }
  uint64_t halvings() const { return halvings_; }
  uint64_t doublings() const { return doublings_; }

 private:
  BatchLimit(uint32_t most, const BatchLimitOptions& options)
      : options_(options), most_(most), value_(most) {}

  BatchLimitOptions options_;
  uint32_t most_;
  uint32_t value_;
  uint64_t halvings_ = 0;
  uint64_t doublings_ = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BATCH_LIMIT_H_
