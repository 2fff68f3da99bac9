#include "quire/paging/batch_limit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

BatchLimit Make(uint32_t most, BatchLimitOptions options = {}) {
  return *BatchLimit::Create(most, options);
}

TEST(BatchLimitTest, HalvesWhatRunsAboveTheUpperLevel) {
  BatchLimit limit = Make(256);
  EXPECT_EQ(limit.value(), 256u);
  limit.Update(0.85, 100);  // not above
  EXPECT_EQ(limit.value(), 256u);
  limit.Update(0.851, 100);
  EXPECT_EQ(limit.value(), 50u);
  EXPECT_EQ(limit.halvings(), 1u);
}

TEST(BatchLimitTest, IsNotHalvedAgainBeforeItTookEffect) {
  BatchLimit limit = Make(256);
  limit.Update(0.9, 100);
  for (uint32_t running = 100; running > 50; --running)
    limit.Update(0.9, running);
  EXPECT_EQ(limit.value(), 50u);
  limit.Update(0.9, 50);
  EXPECT_EQ(limit.value(), 25u);
  EXPECT_EQ(limit.halvings(), 2u);
}

TEST(BatchLimitTest, DoublesBelowTheLowerLevelWhereItHoldsSomebodyBack) {
  BatchLimit limit = Make(300);
  limit.Update(0.9, 160);
  ASSERT_EQ(limit.value(), 80u);
  limit.Update(0.6, 80);  // not below
  limit.Update(0.5, 79);  // nobody is held back
  EXPECT_EQ(limit.value(), 80u);
  limit.Update(0.599, 80);
  EXPECT_EQ(limit.value(), 160u);
  limit.Update(0.5, 160);
  EXPECT_EQ(limit.value(), 300u);  // never beyond
  limit.Update(0.5, 300);
  EXPECT_EQ(limit.value(), 300u);
  EXPECT_EQ(limit.doublings(), 2u);
}

// A use that swings about one level moves the limit once at most.
TEST(BatchLimitTest, HoldsStillBetweenTheLevels) {
  BatchLimit limit = Make(64);
  limit.Update(0.86, 40);
  ASSERT_EQ(limit.value(), 20u);
  for (int i = 0; i < 100; ++i) limit.Update(i % 2 == 0 ? 0.61 : 0.84, 20);
  EXPECT_EQ(limit.value(), 20u);
}

TEST(BatchLimitTest, OneAlwaysRuns) {
  BatchLimit limit = Make(8);
  for (uint32_t running : {8u, 4u, 2u, 1u, 1u, 0u}) limit.Update(1.0, running);
  EXPECT_EQ(limit.value(), 1u);
}

TEST(BatchLimitTest, LevelsAreOptions) {
  BatchLimit never = Make(8, {.halve_above = 1, .grow_below = 0});
  never.Update(1.0, 8);
  EXPECT_EQ(never.value(), 8u);
  BatchLimit early = Make(8, {.halve_above = 0.2, .grow_below = 0.2});
  early.Update(0.3, 8);
  EXPECT_EQ(early.value(), 4u);
  early.Update(0.1, 4);
  EXPECT_EQ(early.value(), 8u);
  BatchLimit large = Make(UINT32_MAX, {.halve_above = 0.5, .grow_below = 0.5});
  large.Update(0.9, 3'000'000'000);
  large.Update(0.1, 1'500'000'000);
  large.Update(0.1, 3'000'000'000);
  EXPECT_EQ(large.value(), UINT32_MAX);
}

TEST(BatchLimitTest, RejectsLevelsThatCannotWork) {
  EXPECT_FALSE(BatchLimit::Create(0, {}).ok());
  for (const BatchLimitOptions& options :
       {BatchLimitOptions{.halve_above = 0.5, .grow_below = 0.6},
        BatchLimitOptions{.halve_above = 0.5, .grow_below = -0.1},
        BatchLimitOptions{.halve_above = NAN, .grow_below = 0.1},
        BatchLimitOptions{.halve_above = 0.5, .grow_below = NAN}}) {
    EXPECT_EQ(BatchLimit::Create(8, options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire
