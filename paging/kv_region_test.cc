#include "paging/kv_region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "paging/parked_regions.h"

namespace quire {
namespace {

// 5 layers by 2: two groups of 512-byte rows and one of 256-byte rows.
constexpr KvShape kShape = {5, 2, 32, KvDType::kF16};
constexpr Bytes kPage = KiB(4);  // 8 tokens, and 16 in the last group
constexpr uint64_t kMaxTokens = 100;

RegionGeometry Geometry() {
  return *RegionGeometry::Create(*KvLayout::Create(kShape, 2), kMaxTokens,
                                 kPage);
}

void SetCommitted(KvRegion* region, const std::vector<uint64_t>& pages) {
  for (uint32_t group = 0; group < pages.size(); ++group)
    region->set_committed(group, PageCount(pages[group]));
}

TEST(RegionGeometryTest, PartsArePageAlignedAndSideBySide) {
  const RegionGeometry geometry = Geometry();
  // 100 tokens: 13 pages twice, 7 pages once.
  EXPECT_EQ(geometry.pages(), PageCount(33));
  EXPECT_EQ(geometry.FirstPage(0), PageCount(0));
  EXPECT_EQ(geometry.FirstPage(1), PageCount(13));
  EXPECT_EQ(geometry.FirstPage(2), PageCount(26));
  EXPECT_EQ(geometry.Offset(2), Bytes(26 * 4096));
  EXPECT_EQ(geometry.PagesOf(0, 8), PageCount(1));
  EXPECT_EQ(geometry.PagesOf(0, 9), PageCount(2));
  EXPECT_EQ(geometry.PagesOf(2, 16), PageCount(1));
  EXPECT_EQ(geometry.PagesOf(17), PageCount(3 + 3 + 2));
}

TEST(RegionGeometryTest, RejectsLengthsThatDoNotFit) {
  const KvLayout layout = *KvLayout::Create(kShape, 2);
  for (const uint64_t length : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 56})
    EXPECT_EQ(RegionGeometry::Create(layout, length, kPage).status().code(),
              absl::StatusCode::kInvalidArgument)
        << length;
}

TEST(KvRegionTest, SpareIsWhatTheTokensInUseDoNotNeed) {
  const RegionGeometry geometry = Geometry();
  KvRegion region(&geometry, nullptr);
  SetCommitted(&region, {3, 3, 2});
  EXPECT_EQ(region.committed(), PageCount(8));
  EXPECT_EQ(region.spare(), PageCount(8));
  region.set_used_tokens(9);  // 2, 2 and 1 pages
  EXPECT_EQ(region.spare(), PageCount(3));
  region.set_used_tokens(30);  // 4, 4 and 2
  EXPECT_EQ(region.spare(), PageCount(0));
  EXPECT_EQ(region.MappingWork(30), PageCount(2));
  EXPECT_EQ(region.MappingWork(24), PageCount(0));
  std::vector<PageRun> missing;
  region.AppendMissing(&missing);
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing[1].group, 1u);
  EXPECT_EQ(missing[1].first, PageCount(3));
  EXPECT_EQ(missing[1].count, PageCount(1));
  EXPECT_TRUE(region.CheckInvariants().ok());
}

TEST(KvRegionTest, GivesTheLongestTailsFirst) {
  const RegionGeometry geometry = Geometry();
  KvRegion region(&geometry, nullptr);
  SetCommitted(&region, {10, 6, 6});
  // Four pages: the first part comes down to the length of the others.
  auto runs = region.SpareRuns(PageCount(4));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].group, 0u);
  EXPECT_EQ(runs[0].first, PageCount(6));
  EXPECT_EQ(runs[0].count, PageCount(4));
}

// Against a model that takes one page at a time from a longest part.
TEST(KvRegionTest, SpareRunsAreLevelAndExact) {
  const RegionGeometry geometry = Geometry();
  std::mt19937 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 2000; ++round) {
    KvRegion region(&geometry, nullptr);
    std::vector<uint64_t> pages = {below(14), below(14), below(8)};
    SetCommitted(&region, pages);
    region.set_used_tokens(below(kMaxTokens + 1));
    std::vector<uint64_t> floor(3);
    uint64_t spare = 0;
    for (uint32_t group = 0; group < 3; ++group) {
      floor[group] = geometry.PagesOf(group, region.used_tokens()).value();
      if (pages[group] > floor[group]) spare += pages[group] - floor[group];
    }
    ASSERT_EQ(region.spare(), PageCount(spare));
    const uint64_t wanted = below(40);

    // The model: how long the parts are afterwards, in falling order, is the
    // same whichever of several longest parts is cut first.
    std::vector<uint64_t> expected = pages;
    for (uint64_t left = std::min(wanted, spare); left > 0; --left) {
      int longest = -1;
      for (int group = 0; group < 3; ++group) {
        if (expected[group] > floor[group] &&
            (longest < 0 || expected[group] > expected[longest]))
          longest = group;
      }
      --expected[longest];
    }
    std::vector<uint64_t> actual = pages;
    for (const PageRun& run : region.SpareRuns(PageCount(wanted))) {
      ASSERT_EQ(run.first.value() + run.count.value(), actual[run.group]);
      actual[run.group] = run.first.value();
      region.set_committed(run.group, run.first);
    }
    for (int group = 0; group < 3; ++group)
      ASSERT_GE(actual[group], std::min(floor[group], pages[group]));
    std::sort(actual.begin(), actual.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(actual, expected);
    ASSERT_TRUE(region.CheckInvariants().ok()) << region.CheckInvariants();
  }
}

// ---- Windows ----

// Four layers by 2, a window in every second one: rows of 256 bytes.
RegionGeometry WindowGeometry(uint64_t window, uint64_t sinks) {
  const KvLayerKind full = {2, 16, 16, KvDType::kF16};
  KvLayerKind windowed = full;
  windowed.window = window;
  windowed.sinks = sinks;
  KvModelShape shape;
  shape.layers = {windowed, full, windowed, full};
  return *RegionGeometry::Create(*KvLayout::Create(shape, 2), kMaxTokens,
                                 Bytes(1024));
}

// Against the set of slots that have a page, and of those that hold a token
// that is kept, while the windows move and pages are taken and brought back.
TEST(KvRegionTest, WhatIsBehindAWindowIsSpareAndGoesFirst) {
  std::mt19937 random(11);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 300; ++round) {
    const uint64_t window = 1 + below(40);
    const uint64_t sinks = below(20);
    const RegionGeometry geometry = WindowGeometry(window, sinks);
    KvRegion region(&geometry, nullptr);
    region.set_parked(false);
    std::set<uint64_t> pages;  // of the group with the window
    uint64_t base = 0;
    const auto kept = [&](uint64_t slot, uint64_t used) {
      for (uint64_t token = slot * 4; token < slot * 4 + 4; ++token) {
        if (token < used && (token < sinks || token + window >= base))
          return true;
      }
      return false;
    };
    for (uint64_t used = 1; used <= kMaxTokens; used += 1 + below(9)) {
      if (below(2) == 0) {
        base = region.used_tokens() + 1;
        region.DropBehind(base);
      }
      region.set_used_tokens(used);
      std::vector<PageRun> missing;
      region.AppendMissing(&missing);
      for (const PageRun& run : missing) {
        const uint64_t end = run.first.value() + run.count.value() + below(3);
        const uint64_t most = std::min<uint64_t>(end, kMaxTokens / 4);
        for (uint64_t slot = run.first.value(); slot < most; ++slot)
          ASSERT_TRUE(run.group != 0 || pages.insert(slot).second);
        region.set_committed(run.group, PageCount(most));
      }
      uint64_t behind = 0;
      uint64_t tail = 0;
      for (const uint64_t slot : pages) {
        if (kept(slot, used)) continue;
        ++(slot * 4 < used ? behind : tail);
      }
      for (uint64_t slot = 0; slot * 4 < used; ++slot) {
        ASSERT_TRUE(!kept(slot, used) || pages.contains(slot));
      }
      ASSERT_EQ(region.behind(), PageCount(behind));
      ASSERT_EQ(region.live(0), PageCount(pages.size()));
      const uint64_t other_tail =
          region.committed(1).value() - geometry.PagesOf(1, used).value();
      ASSERT_EQ(region.spare(), PageCount(behind + tail + other_tail));
      for (uint64_t length = 0; length <= used; ++length) {
        // Whether a page that was dropped would hold a token in the window.
        bool gone = false;
        for (uint64_t token =
                 std::max(sinks, length + 1 - std::min(window, length + 1));
             token < base; ++token)
          gone = gone || !kept(token / 4, kMaxTokens);
        ASSERT_EQ(region.CanGoBackTo(length), !gone) << length;
      }
      const uint64_t wanted = below(behind + 3);
      uint64_t taken = 0;
      for (const PageRun& run : region.SpareRuns(PageCount(wanted))) {
        for (uint64_t slot = run.first.value();
             slot < run.first.value() + run.count.value(); ++slot) {
          ++taken;
          if (run.group != 0) continue;
          ASSERT_EQ(pages.erase(slot), 1u);
          ASSERT_FALSE(kept(slot, used));
          // The window first, from its far end.
          ASSERT_TRUE(taken > behind || slot * 4 < used);
        }
        region.Remove(run);
      }
      ASSERT_EQ(taken, std::min(wanted, behind + tail + other_tail));
      ASSERT_TRUE(region.CheckInvariants().ok()) << region.CheckInvariants();
    }
    for (const PageRun& run : region.BehindGaps()) region.Remove(run);
    region.Forget();
    region.set_parked(true);
    ASSERT_TRUE(region.CheckInvariants().ok()) << region.CheckInvariants();
    ASSERT_EQ(region.spare(), region.committed());
    ASSERT_EQ(region.live(0), region.committed(0));
  }
}

class ParkedRegionsTest : public ::testing::Test {
 protected:
  KvRegion* Park(const std::vector<uint64_t>& pages) {
    auto region = std::make_unique<KvRegion>(&geometry_, nullptr);
    SetCommitted(region.get(), pages);
    KvRegion* raw = region.get();
    parked_.Park(std::move(region));
    return raw;
  }

  const RegionGeometry geometry_ = Geometry();
  ParkedRegions parked_;
};

TEST_F(ParkedRegionsTest, NoneWhereNothingIsParked) {
  EXPECT_EQ(parked_.TakeBestFit(1).region, nullptr);
}

// vAttention's search keeps the first idle slot even when it is empty.
TEST_F(ParkedRegionsTest, TakesTheLeastMappingWorkNotTheFirst) {
  Park({0, 0, 0});
  KvRegion* full = Park({3, 3, 2});
  EXPECT_EQ(parked_.TakeBestFit(24).region.get(), full);
}

TEST_F(ParkedRegionsTest, AmongEqualsTakesTheSmallest) {
  Park({9, 9, 5});
  KvRegion* fitting = Park({2, 2, 1});
  Park({8, 8, 4});
  EXPECT_EQ(parked_.TakeBestFit(16).region.get(), fitting);
}

TEST_F(ParkedRegionsTest, AmongTheSameTakesTheOneParkedLast) {
  Park({2, 2, 1});
  KvRegion* last = Park({2, 2, 1});
  EXPECT_EQ(parked_.TakeBestFit(16).region.get(), last);
}

TEST_F(ParkedRegionsTest, PutBackRestoresTheOrder) {
  KvRegion* first = Park({1, 1, 1});
  KvRegion* second = Park({2, 2, 1});
  ParkedRegions::Entry entry = parked_.TakeBestFit(8);
  ASSERT_EQ(entry.region.get(), first);
  EXPECT_EQ(parked_.size(), 1u);
  parked_.PutBack(std::move(entry));
  EXPECT_EQ(parked_.OldestFirst(), (std::vector<KvRegion*>{first, second}));
}

}  // namespace
}  // namespace quire
