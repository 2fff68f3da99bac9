// Replays of small traces, whose outcome is worked out by hand, and of made-up
// ones against a model of what is live.

#include "bench/policies/policy_replay.h"

#include <string>
#include <vector>

#include "bench/policies/cuda_malloc_policy.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_test_fixture.h"
#include "bench/policies/pytorch_policy.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using PolicyReplayTest = PolicyTest;

constexpr char kSmallTrace[] =
    "live,0,4194304,0\n"
    "alloc,1,3145728,1\n"
    "alloc,2,0,0\n"
    "free,0,0,0\n"
    "alloc,3,2097152,0\n"
    "free,2,0,0\n";

AllocationTrace Read(const std::string& rows) {
  const auto trace = ReadQuireCsv("op,id,bytes,stream\n" + rows);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.value_or(AllocationTrace());
}

TEST_F(PolicyReplayTest, AddsUpWhatIsLive) {
  CudaMallocPolicy policy(device_.get());
  const auto result = ReplayOnPolicy(Read(kSmallTrace), device_.get(), &policy);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->allocations, 4u);
  EXPECT_EQ(result->frees, 1u);
  EXPECT_EQ(result->peak_requested, MiB(7));
  EXPECT_EQ(result->peak_reserved, MiB(8));
  EXPECT_DOUBLE_EQ(result->ratio(), 8.0 / 7);
  EXPECT_EQ(result->at_peak_requested.event, 1u);
  EXPECT_DOUBLE_EQ(result->at_peak_requested.internal_fragmentation(), 1.0 / 8);
  EXPECT_EQ(result->at_end.requested, MiB(5));
  EXPECT_EQ(result->largest_at_end, MiB((16 << 10) - 6));
  EXPECT_EQ(result->total.driver_calls, 4u);  // three cudaMalloc, one cudaFree
  EXPECT_FALSE(result->first_failure);
}

TEST_F(PolicyReplayTest, LooksAreSpreadOverTheEvents) {
  CudaMallocPolicy policy(device_.get());
  PolicyLookOptions options;
  options.timeline_points = 2;
  const auto looks =
      LookIntoPolicy(Read(kSmallTrace), device_.get(), &policy, options);
  ASSERT_TRUE(looks.ok()) << looks.status();
  ASSERT_EQ(looks->timeline.size(), 2u);
  EXPECT_EQ(looks->timeline[0].moment.event, 2u);
  EXPECT_EQ(looks->timeline[0].moment.requested, MiB(7));
  EXPECT_EQ(looks->timeline[0].cost.driver_calls, 2u);
  EXPECT_EQ(looks->timeline[1].moment.requested, MiB(5));
  EXPECT_EQ(looks->timeline[1].largest, MiB((16 << 10) - 6));
  EXPECT_EQ(looks->largest_at_end, MiB((16 << 10) - 6));
}

TEST_F(PolicyReplayTest, TellsCapacityFromFragmentation) {
  const auto device = *SimulatedDevice::Create(MiB(64));
  // 33 MiB and 31 MiB are what the device has, but take 34 and 32 of it.
  {
    CudaMallocPolicy policy(device.get());
    const auto result = ReplayOnPolicy(
        Read("alloc,0,34603008,0\nalloc,1,32505856,0\nfree,1,0,0\n"),
        device.get(), &policy);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(result->first_failure);
    EXPECT_EQ(result->first_failure->kind, ShortageKind::kFragmentation);
    EXPECT_EQ(result->first_failure->moment.event, 1u);
    EXPECT_EQ(result->first_failure->largest, MiB(30));
    EXPECT_EQ(result->failures, 1u);
    EXPECT_EQ(result->frees, 0u);  // what failed is not freed
  }
  const auto other = *SimulatedDevice::Create(MiB(64));
  CudaMallocPolicy policy(other.get());
  const auto result = ReplayOnPolicy(
      Read("alloc,0,34603008,0\nalloc,1,33554432,0\n"), other.get(), &policy);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(result->first_failure);
  EXPECT_EQ(result->first_failure->kind, ShortageKind::kCapacity);
}

// What caches have learned costs nothing the second time.
TEST_F(PolicyReplayTest, TellsTheSteadyStateApart) {
  PyTorchPolicy policy(device_.get());
  PolicyReplayOptions options;
  options.iterations = 3;
  const auto result =
      ReplayOnPolicy(Read("alloc,0,67108864,0\nalloc,1,4096,0\nfree,0,0,0\n"),
                     device_.get(), &policy, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->first_iteration.driver_calls, 2u);
  EXPECT_EQ(result->last_iteration.driver_calls, 0u);
  EXPECT_EQ(result->last_iteration.virtual_nanoseconds, 0u);
  EXPECT_EQ(result->total.driver_calls, 2u);
  EXPECT_EQ(result->at_end.requested, Bytes(4096));
  EXPECT_EQ(result->frees, 6u);  // with what each iteration leaves
}

// Every policy there is, on the same churn, twice: nothing is lost.
TEST_F(PolicyReplayTest, EveryPolicyServesChurnAndKeepsItsBooks) {
  const AllocationTrace trace = Read(MakeChurnRows());
  const Bytes needed = SummarizeAllocationTrace(trace).peak_requested;
  for (const PolicyKind& kind : PolicyKinds()) {
    SCOPED_TRACE(kind.name);
    const auto device = *SimulatedDevice::Create(GiB(16));
    const auto spec = ParsePolicySpec(kind.name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto policy = *spec->Create(device.get());
    PolicyReplayOptions options;
    options.iterations = 2;
    const auto result =
        ReplayOnPolicy(trace, device.get(), policy.get(), options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->failures, 0u);
    EXPECT_EQ(result->allocations, result->frees);
    EXPECT_EQ(result->peak_requested, needed);
    EXPECT_GE(result->peak_reserved, needed);
    EXPECT_LE(result->peak_mapped, result->peak_reserved);
    EXPECT_EQ(policy->GetUse().allocated, Bytes(0));
  }
}

TEST(PolicySpecTest, NamesWhatIsKnown) {
  const auto unknown = ParsePolicySpec("jemalloc");
  EXPECT_EQ(unknown.status().message(),
            "there is no policy \"jemalloc\"; there are " + KnownPolicies());
  const auto setting = ParsePolicySpec("quire:page=4MiB");
  EXPECT_EQ(setting.status().message(),
            "quire: there is no setting page; there are page_size");
  const auto value = ParsePolicySpec("pytorch:max_split_size_mb=lots");
  EXPECT_EQ(value.status().message(),
            "pytorch: max_split_size_mb is \"lots\", which is no number of "
            "MiB");
  for (const char* refused :
       {"pytorch:max_split_size_mb=20", "pytorch:roundup_power2_divisions=3",
        "pytorch-expandable:max_split_size_mb=1"}) {
    EXPECT_FALSE(ParsePolicySpec(refused).ok()) << refused;
  }
  EXPECT_TRUE(ParsePolicySpec("pytorch:max_split_size_mb=128:"
                              "expandable_segments=true")
                  .ok());
}

TEST(PolicySpecTest, ReadsLists) {
  const auto specs = ParsePolicySpecs("bfc,pytorch:max_split_size_mb=64");
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ(specs->size(), 2u);
  EXPECT_STREQ((*specs)[0].kind->name, "bfc");
  EXPECT_EQ((*specs)[1].text, "pytorch:max_split_size_mb=64");
  for (const char* wrong : {"", "bfc,", ",bfc"}) {
    EXPECT_FALSE(ParsePolicySpecs(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace quire
