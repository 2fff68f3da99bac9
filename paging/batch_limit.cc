#include "quire/paging/batch_limit.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {

absl::StatusOr<BatchLimit> BatchLimit::Create(
    uint32_t most, const BatchLimitOptions& options) {
  if (most == 0)
    return absl::InvalidArgumentError("batch limit: at most 0 sequences");
  if (!(options.grow_below >= 0 && options.grow_below <= options.halve_above))
    return absl::InvalidArgumentError(absl::StrCat(
        "batch limit: grow below ", options.grow_below, " and halve above ",
        options.halve_above, ": 0 <= grow <= halve must hold"));
  return BatchLimit(most, options);
}

void BatchLimit::Update(double use, uint32_t running) {
  if (use > options_.halve_above && running <= value_ && running > 1) {
    value_ = running / 2;
    ++halvings_;
  } else if (use < options_.grow_below && running >= value_ && value_ < most_) {
    value_ = value_ > most_ / 2 ? most_ : value_ * 2;
    ++doublings_;
  }
}

}  // namespace quire
