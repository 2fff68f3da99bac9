// Against all choices that there are.

#include "alloc/detour_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "alloc/run_set.h"

namespace quire {
namespace {

constexpr uint64_t kGrain = kPieceGrain;
constexpr uint64_t kPage = 8 * kGrain;
constexpr uint64_t kBase = 1000 * kPage;

using Runs = std::vector<Piece>;

// What touches, as one.
Runs Joined(const RunSet& a, const RunSet& b) {
  Runs all;
  for (const RunSet* set : {&a, &b}) {
    for (const auto& [begin, run] : set->runs()) {
      all.push_back({run.begin, run.length});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Piece& x, const Piece& y) { return x.begin < y.begin; });
  Runs joined;
  for (const Piece& run : all) {
    if (!joined.empty() && joined.back().end() == run.begin) {
      joined.back().length += run.length;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

// Whole pages, bytes left behind a tail, pages in part use.
using Cost = std::tuple<uint64_t, uint64_t, int>;

// The least of every head with every tail.
Cost LeastCost(const Runs& runs, uint64_t bytes, bool with_heads) {
  std::vector<uint64_t> heads = {0};
  std::vector<uint64_t> tails;
  for (const Piece& run : runs) {
    const uint64_t first = (run.begin + kPage - 1) / kPage * kPage;
    const uint64_t last = run.end() / kPage * kPage;
    if (first > run.end()) continue;
    if (first > run.begin && with_heads) heads.push_back(first - run.begin);
    if (run.end() > last) tails.push_back(run.end() - last);
  }
  Cost least = {UINT64_MAX, 0, 0};
  for (const uint64_t head : heads) {
    if (head >= bytes) continue;
    const uint64_t end = (bytes - head) % kPage;
    const uint64_t pages = (bytes - head) / kPage;
    const int begins = head > 0 ? -1 : 0;
    if (end == 0) {
      least = std::min(least, Cost{pages, 0, begins});
      continue;
    }
    bool fits = false;
    for (const uint64_t tail : tails) {
      if (tail < end) continue;
      fits = true;
      least = std::min(least, Cost{pages, tail - end, begins});
    }
    if (!fits) least = std::min(least, Cost{pages + 1, 0, begins + 1});
  }
  return least;
}

uint64_t WholePagesOf(const Runs& runs) {
  uint64_t pages = 0;
  for (const Piece& run : runs) pages += WholePages(run, kPage).length / kPage;
  return pages;
}

bool Contains(const Runs& runs, const Piece& piece) {
  return std::any_of(runs.begin(), runs.end(), [&](const Piece& run) {
    return run.begin <= piece.begin && piece.end() <= run.end();
  });
}

// Side by side they have no border within a page, and all bytes.
void CheckPieces(const Pieces& pieces, const Runs& runs, uint64_t bytes) {
  uint64_t sum = 0;
  Runs sorted;
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(Contains(runs, pieces[i]));
    EXPECT_GT(pieces[i].length, 0u);
    if (i > 0) {
      EXPECT_EQ(pieces[i].begin % kPage, 0u);
    }
    if (i + 1 < pieces.size()) {
      EXPECT_EQ(pieces[i].end() % kPage, 0u);
      EXPECT_NE(pieces[i].end(), pieces[i + 1].begin);
    }
    sum += pieces[i].length;
    sorted.push_back(pieces[i]);
  }
  EXPECT_EQ(sum, bytes);
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& x, const Piece& y) { return x.begin < y.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    EXPECT_LE(sorted[i - 1].end(), sorted[i].begin);
  }
}

TEST(DetourPlannerTest, BeginsBeforeABorderAndEndsBehindOne) {
  RunSet free;
  // Two pages with 3 grains before them; one page with 2 and with 5 behind.
  free.Insert({kBase - 3 * kGrain, 2 * kPage + 3 * kGrain, 0});
  free.Insert({kBase + 10 * kPage, kPage + 2 * kGrain, 0});
  free.Insert({kBase + 20 * kPage, kPage + 5 * kGrain, 0});
  DetourPlanner planner(kPage);
  const auto choice = planner.Plan(Joined(free, RunSet()),
                                   3 * kPage + 5 * kGrain, Bytes(kGrain));
  // 3 grains, the two pages behind them, another page, and exactly 2 grains.
  ASSERT_EQ(choice.pieces.size(), 2u);
  EXPECT_EQ(choice.pieces[0].begin, kBase - 3 * kGrain);
  EXPECT_EQ(choice.pieces[0].length, 2 * kPage + 3 * kGrain);
  EXPECT_EQ(choice.pieces[1].begin, kBase + 10 * kPage);
  EXPECT_EQ(choice.pieces[1].length, kPage + 2 * kGrain);
  EXPECT_EQ(choice.new_pages, 0u);
  EXPECT_EQ(choice.addresses, 5u);
}

TEST(DetourPlannerTest, TakesTheLongestRunsThenTheLowest) {
  RunSet free;
  free.Insert({kBase, 2 * kPage, 0});
  free.Insert({kBase + 10 * kPage, 70 * kPage, 0});
  free.Insert({kBase + 100 * kPage, 2 * kPage, 0});
  free.Insert({kBase + 110 * kPage, 3 * kPage, 0});
  free.Insert({kBase + 200 * kPage, 80 * kPage, 0});
  DetourPlanner planner(kPage);
  const auto choice =
      planner.Plan(Joined(free, RunSet()), 154 * kPage, Bytes(kPage));
  std::vector<uint64_t> begins;
  for (const Piece& piece : choice.pieces) {
    begins.push_back((piece.begin - kBase) / kPage);
  }
  EXPECT_EQ(begins, (std::vector<uint64_t>{200, 10, 110, 0}));
  EXPECT_EQ(choice.pieces.back().length, kPage);
}

TEST(DetourPlannerTest, SaysHowManyPagesAreMissing) {
  RunSet free;
  free.Insert({kBase, 3 * kPage, 0});
  DetourPlanner planner(kPage);
  const auto choice =
      planner.Plan(Joined(free, RunSet()), 5 * kPage + kGrain, Bytes(kGrain));
  EXPECT_EQ(choice.new_pages, 3u);
  EXPECT_TRUE(choice.pieces.empty());
}

TEST(DetourPlannerTest, RunsOfBothSetsThatTouchAreOne) {
  RunSet free;
  RunSet own;
  free.Insert({kBase, kPage / 2, 0});
  own.Insert({kBase + kPage / 2, kPage / 2, 7});
  free.Insert({kBase + 4 * kPage, kPage, 0});
  DetourPlanner planner(kPage);
  const auto choice = planner.Plan(Joined(free, own), 2 * kPage, Bytes(kPage));
  ASSERT_EQ(choice.pieces.size(), 2u);
  EXPECT_EQ(choice.pieces[0].begin, kBase);
  EXPECT_EQ(choice.pieces[0].length, kPage);
}

// The largest allocation that is promised begins with it.
TEST(DetourPlannerTest, FindsTheLongestBeginningBehindThousands) {
  Runs runs;
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t length = i == 2345 ? 7 : 1 + i % 6;
    runs.push_back(
        {kBase + (2 * i + 1) * kPage - length * kGrain, length * kGrain});
  }
  const uint64_t whole = runs.back().end() + kPage;
  runs.push_back({whole, kPage + kGrain});
  DetourPlanner planner(kPage);
  const DetourPlanner::Choice choice =
      planner.Plan(runs, 7 * kGrain + kPage + kGrain, Bytes(kGrain));
  EXPECT_EQ(choice.new_pages, 0);
  ASSERT_EQ(choice.pieces.size(), 2);
  EXPECT_EQ(choice.pieces[0].begin, runs[2345].begin);
  EXPECT_EQ(choice.pieces[1].begin, whole);
}

// Pages of which the steps of a tail's length are single grains, and larger
// ones.
TEST(DetourPlannerTest, OfLargePagesToo) {
  for (const uint64_t page : {MiB(2).value(), MiB(32).value()}) {
    RunSet free;
    const uint64_t base = 64 * page;
    free.Insert({base, page + 9 * kGrain, 0});
    free.Insert({base + 4 * page, page + 6 * kGrain, 0});
    free.Insert({base + 8 * page, page + 7 * kGrain, 0});
    free.Insert({base + 12 * page, page + 4 * kGrain, 0});
    DetourPlanner planner(page);
    const auto choice =
        planner.Plan(Joined(free, RunSet()), page + 5 * kGrain, Bytes(kGrain));
    ASSERT_EQ(choice.pieces.size(), 2u);
    EXPECT_EQ(choice.pieces[0].begin, base);
    EXPECT_EQ(choice.pieces[1].begin, base + 5 * page);
    EXPECT_EQ(choice.pieces[1].length, 5 * kGrain);
  }
}

TEST(DetourPlannerTest, NoChoiceIsBetter) {
  std::mt19937_64 random(5);
  DetourPlanner planner(kPage);
  for (int round = 0; round < 3000; ++round) {
    RunSet free;
    RunSet own;
    const uint64_t count = random() % 40;
    uint64_t at = kBase + random() % 8 * kGrain;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t longest = random() % 10 == 0 ? 600 : 20;
      const uint64_t length = (1 + random() % longest) * kGrain;
      (random() % 3 == 0 ? own : free).Insert({at, length, 0});
      at += length + random() % 12 * kGrain;
    }
    const uint64_t bytes = (1 + random() % 400) * kGrain;
    const bool with_heads = random() % 2 == 0;
    const auto choice = planner.Plan(Joined(free, own), bytes,
                                     Bytes(with_heads ? kGrain : kPage));
    const Runs runs = Joined(free, own);
    const Cost least = LeastCost(runs, bytes, with_heads);
    const uint64_t pages = std::get<0>(least);
    const uint64_t there = WholePagesOf(runs);
    ASSERT_EQ(choice.new_pages, pages - std::min(pages, there));
    if (choice.new_pages > 0) {
      EXPECT_TRUE(choice.pieces.empty());
      continue;
    }
    CheckPieces(choice.pieces, runs, bytes);
    const uint64_t begin = choice.pieces.front().begin;
    if (!with_heads) {
      EXPECT_TRUE(begin % kPage == 0 || bytes < kPage);
    }
    const uint64_t first = begin / kPage;
    EXPECT_EQ(choice.addresses, (begin % kPage + bytes + kPage - 1) / kPage)
        << first;
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace quire
