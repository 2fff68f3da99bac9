// What policies are told, and what they decide.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

using Levels = std::vector<CompactionLevel>;

// ---- ThresholdPolicy --------------------------------------------------------

CompactionFacts Facts() {
  CompactionFacts facts;
  facts.pool_limit = GiB(10);
  facts.pool_in_use = GiB(9);
  facts.mapped = GiB(8);
  facts.pinned = GiB(2);
  facts.seconds_since_last = std::numeric_limits<double>::infinity();
  return facts;
}

TEST(ThresholdPolicyTest, DecidesByPressureAndByWhatThereIsToGain) {
  ThresholdPolicy policy;
  EXPECT_EQ(policy.Decide(Facts()),
            (Levels{CompactionLevel::kMesh, CompactionLevel::kTrim}));
  CompactionFacts facts = Facts();
  facts.pool_in_use = GiB(8);
  EXPECT_EQ(policy.Decide(facts), Levels{});
  facts.failed_allocations = 1;
  EXPECT_EQ(policy.Decide(facts),
            (Levels{CompactionLevel::kMesh, CompactionLevel::kTrim}));
  facts.pinned = MiB(1);
  EXPECT_EQ(policy.Decide(facts), Levels{CompactionLevel::kTrim});
  facts = Facts();
  facts.seconds_since_last = 1.0;
  EXPECT_EQ(policy.Decide(facts), Levels{});
  facts.failed_allocations = 1;
  EXPECT_EQ(policy.Decide(facts).size(), 2u);
}

TEST(ThresholdPolicyTest, CompactsWhileTheProgramIsIdle) {
  CompactionFacts facts = Facts();
  facts.pool_in_use = GiB(1);
  facts.seconds_idle = 1e9;
  // Not unless it is told to.
  EXPECT_EQ(ThresholdPolicy().Decide(facts), Levels{});
  ThresholdPolicy policy({.idle = 30.0});
  EXPECT_EQ(policy.Decide(facts),
            (Levels{CompactionLevel::kMesh, CompactionLevel::kTrim}));
  facts.seconds_idle = 29.0;
  EXPECT_EQ(policy.Decide(facts), Levels{});
  facts.seconds_idle = 30.0;
  facts.seconds_since_last = 9.0;
  EXPECT_EQ(policy.Decide(facts), Levels{});
}

// 2026-11-30, so many seconds after midnight, UTC.
std::chrono::system_clock::time_point At(int64_t seconds_of_day) {
  using std::chrono::sys_days;
  constexpr auto kDay = std::chrono::year(2026) / 11 / 30;
  return sys_days(kDay) + std::chrono::seconds(seconds_of_day);
}

TEST(ThresholdPolicyTest, CompactsInItsMaintenanceWindow) {
  constexpr uint32_t kHour = 3600;
  CompactionFacts facts = Facts();
  facts.pool_in_use = GiB(1);
  ThresholdPolicy policy({.maintenance = {3 * kHour, 4 * kHour}});
  facts.time = At(3 * kHour - 1);
  EXPECT_EQ(policy.Decide(facts), Levels{});
  facts.time = At(3 * kHour);
  EXPECT_EQ(policy.Decide(facts).size(), 2u);
  facts.time = At(4 * kHour) - std::chrono::nanoseconds(1);
  EXPECT_EQ(policy.Decide(facts).size(), 2u);
  facts.time = At(4 * kHour);
  EXPECT_EQ(policy.Decide(facts), Levels{});
}

TEST(ThresholdPolicyTest, AWindowMayGoOnOverMidnight) {
  using Window = ThresholdPolicy::DailyWindow;
  constexpr uint32_t kHour = 3600;
  const Window night = {23 * kHour, 1 * kHour};
  EXPECT_FALSE(night.Contains(At(23 * kHour - 1)));
  EXPECT_TRUE(night.Contains(At(23 * kHour)));
  EXPECT_TRUE(night.Contains(At(0)));
  EXPECT_TRUE(night.Contains(At(kHour - 1)));
  EXPECT_FALSE(night.Contains(At(kHour)));
  const Window all_day = {0, 24 * kHour};
  const Window never = {5 * kHour, 5 * kHour};
  for (const int64_t time : {0u, 5 * kHour, 24 * kHour - 1}) {
    EXPECT_TRUE(all_day.Contains(At(time)));
    EXPECT_FALSE(never.Contains(At(time)));
    EXPECT_FALSE(Window().Contains(At(time)));
  }
}

// ---- A policy of the program's own ------------------------------------------

// Does what it is told, and keeps what it was told.
class Recorder final : public CompactionPolicy {
 public:
  std::vector<CompactionLevel> Decide(const CompactionFacts& facts) override {
    told.push_back(facts);
    return levels;
  }

  std::vector<CompactionFacts> told;
  Levels levels;
};

class CompactionPolicyTest : public AllocatorFixture {
 protected:
  CompactionReport Compact() {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    EXPECT_TRUE(section.ok()) << section.status();
    const auto report = allocator_->Compact(*section, &policy_);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(CompactionReport());
  }

  Recorder policy_;
};

TEST_F(CompactionPolicyTest, ThePolicyOfTheProgramDecides) {
  Free(AllocatePages(5));
  EXPECT_EQ(Compact().pages_freed, PageCount(0));
  ASSERT_EQ(policy_.told.size(), 1u);
  EXPECT_EQ(policy_.told[0].cached, Bytes(5 * kPageBytes));
  EXPECT_EQ(policy_.told[0].pool_limit, Bytes(kLimitPages * kPageBytes));
  EXPECT_EQ(policy_.told[0].seconds_since_last,
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(5 * kPageBytes));
  policy_.levels = {CompactionLevel::kTrim};
  EXPECT_EQ(Compact().pages_freed, PageCount(5));
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  Compact();
  EXPECT_LT(policy_.told.back().seconds_since_last,
            std::numeric_limits<double>::infinity());
}

// The first look after something was done tells of no idle time, those that
// follow of all since.
TEST_F(CompactionPolicyTest, IdleTimeIsSinceTheFirstLookAfterTheLastUse) {
  const auto begin = std::chrono::steady_clock::now();
  const DeviceAddress address = Allocate(1000);
  Compact();
  EXPECT_EQ(policy_.told.back().seconds_idle, 0.0);
  constexpr std::chrono::milliseconds kPause(2);
  std::this_thread::sleep_for(kPause);
  Compact();
  const double idle = policy_.told.back().seconds_idle;
  EXPECT_GE(idle, std::chrono::duration<double>(kPause).count());
  EXPECT_LE(idle, std::chrono::duration<double>(
                      std::chrono::steady_clock::now() - begin)
                      .count());
  Free(address);
  Compact();
  EXPECT_EQ(policy_.told.back().seconds_idle, 0.0);
  // From the cache of the thread and back into it.
  Free(Allocate(1000));
  Compact();
  EXPECT_EQ(policy_.told.back().seconds_idle, 0.0);
  std::this_thread::sleep_for(kPause);
  Compact();
  EXPECT_GE(policy_.told.back().seconds_idle,
            std::chrono::duration<double>(kPause).count());
}

TEST_F(CompactionPolicyTest, TheTimeIsThatOfTheClockOnTheWall) {
  const auto before = std::chrono::system_clock::now();
  Compact();
  // The clock may be set back meanwhile, but not by a year.
  EXPECT_LT(std::chrono::abs(policy_.told[0].time - before),
            std::chrono::years(1));
}

}  // namespace
}  // namespace quire
