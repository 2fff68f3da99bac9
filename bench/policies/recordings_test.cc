// What is asked of Quire on recorded programs: little more memory than they ask
// for, and no more than any system that caches, was checked and survives.

#include <filesystem>
#include <string>

#include "bench/policies/policy_run.h"
#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

// cudaMalloc keeps nothing that is freed.
bool IsRival(const PolicyKind& kind) {
  const std::string name = kind.name;
  return kind.validated && name != "quire" && name != "cudamalloc";
}

PolicyReplayResult PlayOnce(const AllocationTrace& trace,
                            const std::string& policy) {
  const auto run = RunPolicy(trace, GiB(80), *ParsePolicySpec(policy));
  EXPECT_TRUE(run.ok()) << policy << ": " << run.status();
  return run.ok() ? run->result : PolicyReplayResult();
}

// Played once: what is kept to make later iterations cheap comes on top.
void ExpectLeastOfThoseThatCache(const std::filesystem::path& path) {
  SCOPED_TRACE(path);
  const AllocationTrace trace = ReadRecording(path);
  const PolicyReplayResult quire = PlayOnce(trace, "quire");
  EXPECT_EQ(quire.failures, 0u);
  EXPECT_EQ(quire.peak_requested,
            SummarizeAllocationTrace(trace).peak_requested);
  EXPECT_LE(quire.ratio(), 1.05);
  for (const PolicyKind& kind : PolicyKinds()) {
    if (!IsRival(kind)) continue;
    EXPECT_LE(quire.peak_reserved, PlayOnce(trace, kind.name).peak_reserved)
        << kind.name;
  }
}

TEST(RecordingsTest, QuireHoldsLeastOfThoseThatCache) {
  ExpectLeastOfThoseThatCache(RecordingsHere() /
                              "pytorch_medium_128_inference.csv");
  ExpectLeastOfThoseThatCache(RecordingsHere() /
                              "pytorch_medium_1024_inference.csv");
}

TEST(RecordingsTest, QuireHoldsLeastOfThoseThatCacheOnMore) {
  if (!std::filesystem::exists(MoreRecordings())) {
    GTEST_SKIP() << "no traces at " << MoreRecordings();
  }
  for (const char* name :
       {"medium_512_inference.csv", "medium_128_training.csv",
        "medium_256_training.csv", "medium_1024_training.csv"}) {
    ExpectLeastOfThoseThatCache(MoreRecordings() / name);
  }
}

// Again and again: the bar holds in every iteration, and its calls go down.
TEST(RecordingsTest, QuireStaysSmallWhereAProgramRepeatsItself) {
  for (const char* name : {"pytorch_medium_128_inference.csv",
                           "pytorch_medium_1024_inference.csv"}) {
    SCOPED_TRACE(name);
    const AllocationTrace trace = ReadRecording(RecordingsHere() / name);
    PolicyRunOptions options;
    options.iterations = 8;
    const auto run =
        RunPolicy(trace, GiB(80), *ParsePolicySpec("quire"), options);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_LE(run->result.ratio(), 1.05);
    EXPECT_LT(run->result.last_iteration.driver_calls,
              run->result.first_iteration.driver_calls / 20);
  }
}

}  // namespace
}  // namespace quire
