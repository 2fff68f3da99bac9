// Against one bit for each byte, in units.

#include "alloc/joined_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace quire {
namespace {

using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;

Pairs PairsOf(const std::vector<Piece>& runs) {
  Pairs pairs;
  for (const Piece& run : runs) pairs.emplace_back(run.begin, run.length);
  return pairs;
}

TEST(JoinedRunsTest, RunsThatTouchAreOne) {
  RunSet a;
  RunSet b;
  JoinedRuns joined;
  EXPECT_EQ(PairsOf(joined.Of(a, b)), Pairs{});
  a.Insert({10, 5, 0});
  b.Insert({15, 5, 0});
  a.Insert({20, 1, 0});
  b.Insert({30, 2, 0});
  EXPECT_EQ(PairsOf(joined.Of(a, b)), (Pairs{{10, 11}, {30, 2}}));
  // As they are now, whatever they were.
  b.Take(17, 1);
  EXPECT_EQ(PairsOf(joined.Of(a, b)), (Pairs{{10, 7}, {18, 3}, {30, 2}}));
  EXPECT_EQ(PairsOf(joined.Of(a, RunSet())), (Pairs{{10, 5}, {20, 1}}));
}

TEST(JoinedRunsTest, AnotherSetMayLieWhereOneWas) {
  RunSet a;
  RunSet b;
  b.Insert({30, 2, 0});
  JoinedRuns joined;
  EXPECT_EQ(PairsOf(joined.Of(a, b)), (Pairs{{30, 2}}));
  b = RunSet();
  b.Insert({40, 2, 0});
  joined.Forget();
  EXPECT_EQ(PairsOf(joined.Of(a, b)), (Pairs{{40, 2}}));
}

TEST(JoinedRunsTest, HoldsWhatBothHold) {
  constexpr uint64_t kSize = 300;
  std::mt19937_64 random(9);
  RunSet sets[2];
  std::vector<int> where(kSize, -1);
  JoinedRuns joined;
  for (int step = 0; step < 5000; ++step) {
    const uint64_t at = random() % kSize;
    if (where[at] >= 0) {
      sets[where[at]].Take(at, 1);
      where[at] = -1;
    } else {
      where[at] = static_cast<int>(random() % 2);
      sets[where[at]].Insert({at, 1, 0});
    }
    if (random() % 4 == 0) continue;
    Pairs expected;
    for (uint64_t i = 0; i < kSize; ++i) {
      if (where[i] < 0) continue;
      if (!expected.empty() &&
          expected.back().first + expected.back().second == i) {
        ++expected.back().second;
      } else {
        expected.emplace_back(i, 1);
      }
    }
    ASSERT_EQ(PairsOf(joined.Of(sets[0], sets[1])), expected);
  }
}

}  // namespace
}  // namespace quire
