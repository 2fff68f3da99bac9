#include "alloc/pressure_gauge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quire {
namespace {

constexpr auto kNone = PressureLevel::kNone;
constexpr auto kHigh = PressureLevel::kHigh;
constexpr auto kCritical = PressureLevel::kCritical;
constexpr PressureThresholds kThresholds{0.8, 0.9, 0.1};

PressureLevel LevelAt(PressureGauge* gauge, uint64_t used) {
  const PressureLevel before = gauge->level();
  const bool changed = gauge->Update(used);
  EXPECT_EQ(changed, gauge->level() != before) << used;
  return gauge->level();
}

TEST(PressureGaugeTest, RisesAtThresholdsAndFallsFurtherDown) {
  PressureGauge gauge;
  gauge.SetLimits(UINT64_MAX, 100, kThresholds);
  EXPECT_TRUE(gauge.enabled());
  EXPECT_EQ(LevelAt(&gauge, 79), kNone);
  EXPECT_EQ(LevelAt(&gauge, 80), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 70), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 69), kNone);
  EXPECT_EQ(LevelAt(&gauge, 79), kNone);
  EXPECT_EQ(LevelAt(&gauge, 90), kCritical);
  EXPECT_EQ(LevelAt(&gauge, 80), kCritical);
  EXPECT_EQ(LevelAt(&gauge, 79), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 89), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 1000), kCritical);
  EXPECT_EQ(LevelAt(&gauge, 0), kNone);
}

TEST(PressureGaugeTest, WithoutALimitThereIsNone) {
  PressureGauge gauge;
  EXPECT_FALSE(gauge.enabled());
  EXPECT_EQ(LevelAt(&gauge, UINT64_MAX), kNone);
  gauge.SetLimits(UINT64_MAX, 10, kThresholds);
  EXPECT_EQ(LevelAt(&gauge, 10), kCritical);
  // Taken away again, it ends with the next look.
  gauge.SetLimits(UINT64_MAX, UINT64_MAX, kThresholds);
  EXPECT_FALSE(gauge.enabled());
  EXPECT_EQ(LevelAt(&gauge, 10), kNone);
}

TEST(PressureGaugeTest, BeyondASoftLimitItIsHigh) {
  PressureGauge gauge;
  gauge.SetLimits(50, UINT64_MAX, kThresholds);
  EXPECT_EQ(LevelAt(&gauge, 50), kNone);
  EXPECT_EQ(LevelAt(&gauge, 51), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 45), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 44), kNone);
  EXPECT_EQ(LevelAt(&gauge, 1000), kHigh);
  // Whichever comes first.
  gauge.SetLimits(90, 100, kThresholds);
  EXPECT_EQ(LevelAt(&gauge, 0), kNone);
  EXPECT_EQ(LevelAt(&gauge, 80), kHigh);
  gauge.SetLimits(10, 100, kThresholds);
  EXPECT_EQ(LevelAt(&gauge, 0), kNone);
  EXPECT_EQ(LevelAt(&gauge, 11), kHigh);
  EXPECT_EQ(LevelAt(&gauge, 90), kCritical);
}

TEST(PressureGaugeTest, TellsAgainstWhichLimitItIs) {
  PressureGauge gauge;
  EXPECT_EQ(gauge.limit(), UINT64_MAX);
  const auto limit_at = [&](uint64_t used) {
    (void)LevelAt(&gauge, used);
    return gauge.limit();
  };
  gauge.SetLimits(50, 100, kThresholds);
  EXPECT_EQ(limit_at(51), 50u);
  EXPECT_EQ(limit_at(85), 50u);
  EXPECT_EQ(limit_at(90), 100u);
  EXPECT_EQ(limit_at(60), 50u);
  EXPECT_EQ(limit_at(0), 50u);
  // The hard one makes it high first.
  gauge.SetLimits(90, 100, kThresholds);
  EXPECT_EQ(limit_at(85), 100u);
  gauge.SetLimits(50, UINT64_MAX, kThresholds);
  EXPECT_EQ(limit_at(1000), 50u);
  gauge.SetLimits(UINT64_MAX, UINT64_MAX, kThresholds);
  EXPECT_EQ(limit_at(1000), UINT64_MAX);
}

TEST(PressureGaugeTest, TheSmallestAndTheLargestLimitsWork) {
  for (const uint64_t limit : {uint64_t{1}, uint64_t{2}, UINT64_MAX - 1}) {
    PressureGauge gauge;
    gauge.SetLimits(UINT64_MAX, limit, kThresholds);
    EXPECT_EQ(LevelAt(&gauge, 0), kNone) << limit;
    EXPECT_EQ(LevelAt(&gauge, limit), kCritical) << limit;
    EXPECT_EQ(LevelAt(&gauge, 0), kNone) << limit;
  }
  PressureGauge gauge;
  gauge.SetLimits(UINT64_MAX - 1, UINT64_MAX, kThresholds);
  EXPECT_EQ(LevelAt(&gauge, UINT64_MAX - 1), kNone);
}

TEST(PressureGaugeTest, RefusesThresholdsThatMakeNoSense) {
  EXPECT_TRUE(CheckThresholds({}).ok());
  EXPECT_TRUE(CheckThresholds({1, 1, 0}).ok());
  const double nan = std::nan("");
  const std::vector<PressureThresholds> bad = {
      {0.9, 0.8, 0.1},  {0.9, 1.1, 0.1}, {0.5, 0.9, 0.5}, {0, 0.9, 0},
      {0.5, 0.9, -0.1}, {nan, 0.9, 0.1}, {0.5, nan, 0.1}, {0.5, 0.9, nan}};
  for (const PressureThresholds& thresholds : bad) {
    EXPECT_EQ(CheckThresholds(thresholds).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire
