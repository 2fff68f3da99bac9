#include "alloc/pressure_gauge.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// At least one page: an empty memory is under no pressure.
uint64_t ShareOf(uint64_t limit, double fraction) {
  const double share = std::ceil(static_cast<double>(limit) * fraction);
  // A limit near 2^64 rounds up to what an integer does not hold.
  if (share >= static_cast<double>(limit)) return std::max<uint64_t>(limit, 1);
  return std::max<uint64_t>(static_cast<uint64_t>(share), 1);
}

}  // namespace

const char* PressureLevelName(PressureLevel level) {
  switch (level) {
    case PressureLevel::kNone:
      return "none";
    case PressureLevel::kHigh:
      return "high";
    case PressureLevel::kCritical:
      return "critical";
  }
  return "unknown";
}

absl::Status CheckThresholds(const PressureThresholds& thresholds) {
  // Written so that NaN is refused.
  if (thresholds.hysteresis >= 0 && thresholds.hysteresis < thresholds.high &&
      thresholds.high <= thresholds.critical && thresholds.critical <= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("pressure thresholds high ", thresholds.high, ", critical ",
                   thresholds.critical, ", hysteresis ", thresholds.hysteresis,
                   ": 0 <= hysteresis < high <= critical <= 1 does not hold"));
}

void PressureGauge::SetLimits(uint64_t soft, uint64_t hard,
                              const PressureThresholds& thresholds) {
  high_ = Band();
  critical_ = Band();
  if (hard != UINT64_MAX) {
    const auto band = [&](double threshold) {
      return Band{ShareOf(hard, threshold),
                  ShareOf(hard, threshold - thresholds.hysteresis), hard};
    };
    high_ = band(thresholds.high);
    critical_ = band(thresholds.critical);
  }
  // Below UINT64_MAX, so that the page beyond it can be counted.
  if (soft < high_.begin) {
    high_ = {soft + 1, ShareOf(soft, 1 - thresholds.hysteresis), soft};
  }
}

bool PressureGauge::Update(uint64_t used) {
  const PressureLevel before = level_;
  if (critical_.Holds(before == PressureLevel::kCritical, used)) {
    level_ = PressureLevel::kCritical;
  } else if (high_.Holds(before != PressureLevel::kNone, used)) {
    level_ = PressureLevel::kHigh;
  } else {
    level_ = PressureLevel::kNone;
  }
  return level_ != before;
}

}  // namespace quire
