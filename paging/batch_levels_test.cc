#include "quire/paging/batch_levels.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(BatchLevelsTest, WhatIsGivenIsTaken) {
  EXPECT_EQ(CompleteBatchLevels({}, {}).halve_above, 0.85);
  EXPECT_EQ(CompleteBatchLevels({}, {}).grow_below, 0.6);
  // Out of order too: BatchLimit::Create says so.
  const BatchLimitOptions both = CompleteBatchLevels(0.2, 0.7);
  EXPECT_EQ(both.halve_above, 0.2);
  EXPECT_EQ(both.grow_below, 0.7);
}

TEST(BatchLevelsTest, TheOtherLevelFollows) {
  // Half of the upper level: half of the lower one, 0.6 x 0.425 / 0.85.
  EXPECT_DOUBLE_EQ(CompleteBatchLevels(0.425, {}).grow_below, 0.3);
  EXPECT_DOUBLE_EQ(CompleteBatchLevels(0.0, {}).grow_below, 0);
  EXPECT_EQ(CompleteBatchLevels(1.0, {}).grow_below, 0.6);
  // Half of the room above: 1 - 0.2 / 0.4 x 0.15.
  EXPECT_DOUBLE_EQ(CompleteBatchLevels({}, 0.8).halve_above, 0.925);
  EXPECT_DOUBLE_EQ(CompleteBatchLevels({}, 1.0).halve_above, 1);
  EXPECT_EQ(CompleteBatchLevels({}, 0.1).halve_above, 0.85);
}

TEST(BatchLevelsTest, OneLevelAloneIsNeverOutOfOrder) {
  for (int percent = 0; percent <= 100; ++percent) {
    const double level = percent / 100.0;
    EXPECT_TRUE(BatchLimit::Create(8, CompleteBatchLevels(level, {})).ok())
        << level;
    EXPECT_TRUE(BatchLimit::Create(8, CompleteBatchLevels({}, level)).ok())
        << level;
  }
}

}  // namespace
}  // namespace quire
