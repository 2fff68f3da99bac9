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
// Of the shortest step, the part that calls may take meanwhile: the next one
// may be shorter, and what maps its pages comes on top.
constexpr double kBudget = 0.5;
// A first guess, before the cost of giving pages back is known.
constexpr uint64_t kFirstReturns = 16;

void Follow(double* mean, double sample) {
  *mean = *mean == 0 ? sample : *mean + kWeight * (sample - *mean);
}

}  // namespace

void AheadHorizon::OnStep(uint64_t now, PageCount pages) {
  if (last_step_ && now > *last_step_) {
    const auto interval = static_cast<double>(now - *last_step_);
    shortest_ = Measured() ? std::min(shortest_ / kFading, interval) : interval;
    Follow(&interval_, interval);
  }
  last_step_ = now;
  spent_ = 0;
  peak_ = std::max(peak_ * kFading, static_cast<double>(pages.value()));
}

void AheadHorizon::OnMapped(uint64_t nanoseconds, PageCount pages) {
  if (pages.zero()) return;
  Follow(&page_cost_,
         static_cast<double>(nanoseconds) / static_cast<double>(pages.value()));
}

void AheadHorizon::OnReturned(uint64_t nanoseconds, PageCount pages) {
  if (pages.zero()) return;
  Follow(&return_cost_,
         static_cast<double>(nanoseconds) / static_cast<double>(pages.value()));
}

double AheadHorizon::Budget() const { return kBudget * shortest_; }

bool AheadHorizon::InTime() const {
  return spent_ == 0 || !Measured() || static_cast<double>(spent_) < Budget();
}

PageCount AheadHorizon::ReturnsInTime() const {
  if (!InTime()) return PageCount(0);
  if (!Measured()) return PageCount(UINT64_MAX);
  if (return_cost_ == 0) return PageCount(kFirstReturns);
  const double left =
      std::max(Budget() - static_cast<double>(spent_), 0.0) / return_cost_;
  return PageCount(std::max<uint64_t>(static_cast<uint64_t>(left), 1));
}

uint32_t AheadHorizon::steps() const {
  if (max_steps_ == 0) return 0;
  if (!Measured()) return 1;
  const double steps = 1 + std::ceil(peak_ * page_cost_ / interval_);
  return static_cast<uint32_t>(
      std::min(steps, static_cast<double>(max_steps_)));
}

}  // namespace quire
