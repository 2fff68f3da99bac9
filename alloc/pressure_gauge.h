// Turns use and a limit into a level of pressure, with hysteresis.
//
// Not thread-safe. Counts are pages.

#ifndef QUIRE_ALLOC_PRESSURE_GAUGE_H_
#define QUIRE_ALLOC_PRESSURE_GAUGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "quire/alloc/memory_hooks.h"

namespace quire {

// kInvalidArgument where the thresholds are not as they must be.
absl::Status CheckThresholds(const PressureThresholds& thresholds);

class PressureGauge {
 public:
  // No limit: no pressure, whatever the use.
  PressureGauge() = default;

  // UINT64_MAX for a limit that there is not. REQUIRES: CheckThresholds.
  void SetLimits(uint64_t soft, uint64_t hard,
                 const PressureThresholds& thresholds);
  // Whether the level has changed.
  bool Update(uint64_t used);

  PressureLevel level() const { return level_; }
  // The limit that the level was reached against; without pressure, the one
  // against which it would begin. UINT64_MAX where there is none.
  uint64_t limit() const {
    return level_ == PressureLevel::kCritical ? critical_.limit : high_.limit;
  }
  // False where no use leads to pressure.
  bool enabled() const { return high_.exists(); }

 private:
  // Pressure begins when use reaches `begin`, and ends when it falls below
  // `end`.
  struct Band {
    uint64_t begin = UINT64_MAX;
    uint64_t end = UINT64_MAX;
    uint64_t limit = UINT64_MAX;  // that it is a part of
    bool exists() const { return begin != UINT64_MAX; }
    bool Holds(bool before, uint64_t used) const {
      return exists() && used >= (before ? end : begin);
    }
  };

  Band high_;
  Band critical_;
  PressureLevel level_ = PressureLevel::kNone;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PRESSURE_GAUGE_H_
