// Runs: looking changes nothing, and sees what the figures say.

#include "bench/policies/policy_run.h"

#include <string>

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

AllocationTrace Read(const std::string& csv) {
  const auto trace = ReadQuireCsv(csv);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.value_or(AllocationTrace());
}

PolicyRun PlayOn(const AllocationTrace& trace, const std::string& policy,
                 const PolicyRunOptions& options) {
  const auto run = RunPolicy(trace, GiB(16), *ParsePolicySpec(policy), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(PolicyRun());
}

void ExpectSame(const PolicyCost& a, const PolicyCost& b) {
  EXPECT_EQ(a.driver_calls, b.driver_calls);
  EXPECT_EQ(a.virtual_nanoseconds, b.virtual_nanoseconds);
}

void ExpectSame(const PolicyMoment& a, const PolicyMoment& b) {
  EXPECT_EQ(a.event, b.event);
  EXPECT_EQ(a.requested, b.requested);
  EXPECT_EQ(a.use.allocated, b.use.allocated);
  EXPECT_EQ(a.use.mapped, b.use.mapped);
  EXPECT_EQ(a.use.reserved, b.use.reserved);
}

// To say what one request could have, Quire puts back what its caches hold; a
// recorded program came out at another ratio and other calls where it was
// looked at.
TEST(PolicyRunTest, LookingChangesNoFigure) {
  const AllocationTrace recorded =
      ReadRecording(RecordingsHere() / "pytorch_medium_128_inference.csv");
  const AllocationTrace churn = Read("op,id,bytes,stream\n" + MakeChurnRows());
  for (const AllocationTrace* trace : {&recorded, &churn}) {
    for (const PolicyKind& kind : PolicyKinds()) {
      for (const uint64_t iterations : {1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << kind.name << ", " << trace->events.size() << " events, "
                     << iterations << " times");
        PolicyRunOptions options;
        options.iterations = iterations;
        const PolicyRun blind = PlayOn(*trace, kind.name, options);
        options.timeline_points = 96;
        options.page_map_points = 4;
        const PolicyRun seen = PlayOn(*trace, kind.name, options);
        EXPECT_EQ(blind.result.peak_requested, seen.result.peak_requested);
        EXPECT_EQ(blind.result.peak_mapped, seen.result.peak_mapped);
        EXPECT_EQ(blind.result.peak_reserved, seen.result.peak_reserved);
        EXPECT_EQ(blind.result.failures, seen.result.failures);
        ExpectSame(blind.result.total, seen.result.total);
        ExpectSame(blind.result.first_iteration, seen.result.first_iteration);
        ExpectSame(blind.result.last_iteration, seen.result.last_iteration);
        ExpectSame(blind.result.at_peak_requested,
                   seen.result.at_peak_requested);
        ExpectSame(blind.result.at_end, seen.result.at_end);
        EXPECT_EQ(seen.looks.timeline.size(), 96u);
        EXPECT_EQ(seen.looks.page_maps.size(), 4u);
        ASSERT_TRUE(seen.looks.page_map_at_event);
        EXPECT_EQ(seen.looks.page_map_at_event->moment.event,
                  seen.result.at_peak_requested.event);
        EXPECT_EQ(seen.looks.page_map_at_event->moment.requested,
                  seen.result.peak_requested);
      }
    }
  }
}

// What one request could have at the end is told of every run: 16 GiB without
// the two pages that 3 MiB take.
TEST(PolicyRunTest, TellsWhatIsLeftAtTheEnd) {
  const AllocationTrace trace =
      Read("op,id,bytes\nalloc,0,3145728\nalloc,1,2097152\nfree,1,0\n");
  for (const uint64_t iterations : {1, 2}) {
    PolicyRunOptions options;
    options.iterations = iterations;
    EXPECT_EQ(PlayOn(trace, "cudamalloc", options).looks.largest_at_end,
              MiB((16 << 10) - 4));
  }
}

TEST(PolicyRunTest, ProgressReachesEveryReplay) {
  const AllocationTrace trace = Read("op,id,bytes\nalloc,0,4096\nfree,0,0\n");
  PolicyRunOptions options;
  options.iterations = 2;
  std::string told;
  options.progress = [&](uint64_t done, uint64_t total) {
    told += std::to_string(done) + "/" + std::to_string(total) + " ";
  };
  PlayOn(trace, "cudamalloc", options);
  EXPECT_EQ(told, "0/6 2/6 4/6 ");
}

}  // namespace
}  // namespace quire
