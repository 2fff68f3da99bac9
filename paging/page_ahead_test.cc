#include "paging/page_ahead.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

void Simulate(AheadHorizon* horizon, uint64_t* now, int steps,
              uint64_t interval, uint64_t pages, uint64_t page_cost) {
  for (int i = 0; i < steps; ++i) {
    *now += interval;
    horizon->OnStep(*now, PageCount(pages));
    horizon->OnMapped(pages * page_cost, PageCount(pages));
  }
}

TEST(AheadHorizonTest, OneStepUntilAnythingIsMeasured) {
  AheadHorizon horizon(8);
  EXPECT_EQ(horizon.steps(), 1u);
  horizon.OnStep(5, PageCount(100));
  EXPECT_EQ(horizon.steps(), 1u);
  EXPECT_EQ(AheadHorizon(0).steps(), 0u);
}

TEST(AheadHorizonTest, AsManyStepsAsTheMappingTakes) {
  // 72 pages of 0.5 ms are 36 ms: two steps of 25 ms, and the next one.
  AheadHorizon horizon(16);
  uint64_t now = 0;
  Simulate(&horizon, &now, 100, 25 * kMillisecond, 72, kMillisecond / 2);
  EXPECT_EQ(horizon.steps(), 3u);
}

TEST(AheadHorizonTest, FollowsTheCostOfACall) {
  AheadHorizon horizon(16);
  uint64_t now = 0;
  Simulate(&horizon, &now, 100, 25 * kMillisecond, 10, 40'000);
  EXPECT_EQ(horizon.steps(), 2u);
  Simulate(&horizon, &now, 100, 25 * kMillisecond, 10, 10 * kMillisecond);
  EXPECT_EQ(horizon.steps(), 5u);
  Simulate(&horizon, &now, 200, 25 * kMillisecond, 10, 40'000);
  EXPECT_EQ(horizon.steps(), 2u);
}

TEST(AheadHorizonTest, StopsAtTheCap) {
  AheadHorizon horizon(4);
  uint64_t now = 0;
  Simulate(&horizon, &now, 100, kMillisecond, 1000, kMillisecond);
  EXPECT_EQ(horizon.steps(), 4u);
}

TEST(AheadHorizonTest, RemembersABurstForAWhile) {
  AheadHorizon horizon(16);
  uint64_t now = 0;
  Simulate(&horizon, &now, 10, 10 * kMillisecond, 1, kMillisecond);
  EXPECT_EQ(horizon.steps(), 2u);
  Simulate(&horizon, &now, 1, 10 * kMillisecond, 50, kMillisecond);
  EXPECT_EQ(horizon.steps(), 6u);
  Simulate(&horizon, &now, 10, 10 * kMillisecond, 0, kMillisecond);
  EXPECT_GE(horizon.steps(), 5u);
  Simulate(&horizon, &now, 1000, 10 * kMillisecond, 0, kMillisecond);
  EXPECT_LE(horizon.steps(), 2u);
}

TEST(AheadHorizonTest, CallsMayTakeHalfOfTheShortestStep) {
  AheadHorizon horizon(8);
  EXPECT_TRUE(horizon.InTime());
  horizon.OnCalls(100 * kMillisecond);
  EXPECT_TRUE(horizon.InTime()) << "no step was measured";
  uint64_t now = 0;
  for (const uint64_t interval : {1, 40, 20, 30})
    horizon.OnStep(now += interval * kMillisecond, PageCount(0));
  horizon.OnCalls(9 * kMillisecond);
  EXPECT_TRUE(horizon.InTime());
  horizon.OnCalls(2 * kMillisecond);
  EXPECT_FALSE(horizon.InTime());
  EXPECT_EQ(horizon.ReturnsInTime(), PageCount(0));
  horizon.OnStep(now += 30 * kMillisecond, PageCount(0));
  EXPECT_TRUE(horizon.InTime());
}

// A step as short does not come any more: within a hundred and ten steps the
// shortest one is taken to be three times as long.
TEST(AheadHorizonTest, ForgetsTheShortestStep) {
  AheadHorizon horizon(8);
  uint64_t now = 0;
  for (const uint64_t interval : {1, 10})
    horizon.OnStep(now += interval * kMillisecond, PageCount(0));
  for (int i = 0; i < 110; ++i)
    horizon.OnStep(now += 30 * kMillisecond, PageCount(0));
  horizon.OnCalls(14 * kMillisecond);
  EXPECT_TRUE(horizon.InTime());
  horizon.OnCalls(2 * kMillisecond);
  EXPECT_FALSE(horizon.InTime());
}

TEST(AheadHorizonTest, AsManyPagesAsTheTimeThatIsLeftTakes) {
  AheadHorizon horizon(8);
  uint64_t now = 0;
  EXPECT_EQ(horizon.ReturnsInTime(), PageCount(UINT64_MAX));
  for (int i = 0; i < 3; ++i)
    horizon.OnStep(now += 20 * kMillisecond, PageCount(0));
  horizon.OnReturned(1 * kMillisecond, PageCount(40));
  EXPECT_EQ(horizon.ReturnsInTime(), PageCount(400));
  horizon.OnCalls(5 * kMillisecond);
  EXPECT_EQ(horizon.ReturnsInTime(), PageCount(200));
}

}  // namespace
}  // namespace quire
