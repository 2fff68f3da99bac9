// Ranks, JSON and remaining time.

#include "bench/fragmentation_stress/report.h"

#include "bench/progress.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

StressRun MakeRun(const char* policy, uint64_t reserved, uint64_t failures) {
  StressRun run;
  run.trace = "t";
  run.policy = policy;
  run.kind = ParsePolicySpec(policy)->kind;
  run.device_memory = GiB(1);
  run.events = 10;
  run.result.peak_requested = Bytes(1000);
  run.result.peak_reserved = Bytes(reserved);
  run.result.failures = failures;
  return run;
}

TEST(StressReportTest, RanksSurvivorsFirstAndTheUnvalidatedNot) {
  const std::vector<StressRun> runs = {
      MakeRun("quire", 1100, 0), MakeRun("pytorch", 1000, 1),
      MakeRun("gmlake", 1000, 0), MakeRun("bfc", 1100, 0),
      MakeRun("rmm-pool", 1200, 0)};
  EXPECT_EQ(RankRuns(runs),
            (std::vector<std::optional<int>>{1, 4, std::nullopt, 1, 3}));
}

TEST(StressReportTest, RanksEachTraceOnItsOwn) {
  std::vector<StressRun> runs = {MakeRun("quire", 1100, 0),
                                 MakeRun("bfc", 1000, 0)};
  runs[1].trace = "other";
  EXPECT_EQ(RankRuns(runs), (std::vector<std::optional<int>>{1, 1}));
}

TEST(StressReportTest, JsonHasOneObjectPerRun) {
  std::vector<StressRun> runs = {MakeRun("quire", 1100, 0),
                                 MakeRun("gmlake", 1, 2)};
  runs[0].result.total = {17, 2500000};
  PolicyFailure failure;
  failure.size = Bytes(5);
  failure.kind = ShortageKind::kFragmentation;
  failure.moment.event = 3;
  runs[1].result.first_failure = failure;
  const auto json = nlohmann::json::parse(ToJson(runs, RankRuns(runs)));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["policy"], "quire");
  EXPECT_EQ(json[0]["peak_requested"], 1000);
  EXPECT_EQ(json[0]["peak_reserved"], 1100);
  EXPECT_DOUBLE_EQ(json[0]["ratio"], 1.1);
  EXPECT_EQ(json[0]["oom"], false);
  EXPECT_EQ(json[0]["driver_calls"], 17);
  EXPECT_DOUBLE_EQ(json[0]["virtual_ms"], 2.5);
  EXPECT_EQ(json[0]["rank"], 1);
  EXPECT_TRUE(json[0]["first_oom"].is_null());
  EXPECT_TRUE(json[0]["steady_state"].is_null());
  EXPECT_EQ(json[1]["validated"], false);
  EXPECT_TRUE(json[1]["rank"].is_null());
  EXPECT_EQ(json[1]["oom"], true);
  EXPECT_EQ(json[1]["oom_count"], 2);
  EXPECT_EQ(json[1]["first_oom"]["kind"], "fragmentation");
  EXPECT_EQ(json[1]["first_oom"]["event"], 3);
}

// Whoever survives may win; who is best at one thing need not be at another.
TEST(StressReportTest, TableNamesSurvivorsAndWinners) {
  std::vector<StressRun> runs = {
      MakeRun("quire", 1100, 0), MakeRun("bfc", 1000, 1),
      MakeRun("pytorch", 1200, 0), MakeRun("gmlake", 900, 0)};
  runs[0].result.total = {20, 3000};
  runs[2].result.total = {10, 3000};
  const std::string table = ToTable(runs, RankRuns(runs));
  EXPECT_NE(table.find("survivors: quire, pytorch, gmlake\n"
                       "least reserved: quire; fewest driver calls: pytorch; "
                       "least virtual time: quire, pytorch\n"),
            table.npos)
      << table;
}

TEST(RemainingTimeTest, FollowsWhatIsDone) {
  EXPECT_EQ(RemainingTime(10, 1, 4), "30 s");
  EXPECT_EQ(RemainingTime(100, 1, 4), "5 min");
  EXPECT_EQ(RemainingTime(10, 4, 4), "0 s");
  EXPECT_EQ(RemainingTime(10, 0, 4), "?");
}

}  // namespace
}  // namespace quire
