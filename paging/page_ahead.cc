#include "paging/page_ahead.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

// Of a mean that follows its samples: some ten of them count.
constexpr double kWeight = 0.1;
// Of a peak, per step: forgotten within some hundred steps, the time in which a
// sequence of 128-token pages crosses its next boundary.
constexpr double kFading = 0.99;

void Follow(double* mean, double sample) {
  *mean = *mean == 0 ? sample : *mean + kWeight * (sample - *mean);
}

}  // namespace

void AheadHorizon::OnStep(uint64_t now, PageCount pages) {
  if (last_step_ && now > *last_step_)
    Follow(&interval_, static_cast<double>(now - *last_step_));
  last_step_ = now;
  peak_ = std::max(peak_ * kFading, static_cast<double>(pages.value()));
}

void AheadHorizon::OnMapped(uint64_t nanoseconds, PageCount pages) {
  if (pages.zero()) return;
  Follow(&page_cost_,
         static_cast<double>(nanoseconds) / static_cast<double>(pages.value()));
}

uint32_t AheadHorizon::steps() const {
  if (max_steps_ == 0) return 0;
  if (interval_ == 0) return 1;
  const double steps = 1 + std::ceil(peak_ * page_cost_ / interval_);
  return static_cast<uint32_t>(
      std::min(steps, static_cast<double>(max_steps_)));
}

}  // namespace quire
