// The example of docs/experiments.md does what it says there.

#include "bench/policies/binned_policy_example.h"

#include "bench/policies/policy_replay.h"
#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using BinnedPolicyTest = PolicyTest;

TEST_F(BinnedPolicyTest, KeepsWhatIsFreedForItsSize) {
  BinnedPolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, MiB(5));  // a bin of 8 MiB
  EXPECT_EQ(policy.GetUse().allocated, MiB(8));
  EXPECT_EQ(policy.GetUse().reserved, MiB(8));
  Free(policy, a);
  EXPECT_EQ(policy.GetUse().allocated, Bytes(0));
  const uint64_t calls = device_->calls();
  EXPECT_EQ(Allocate(policy, MiB(8)), a);
  EXPECT_EQ(device_->calls(), calls);
  // The next smaller bin has nothing.
  Free(policy, a);
  Allocate(policy, MiB(4));
  EXPECT_EQ(policy.GetUse().reserved, MiB(8 + 4));
  EXPECT_TRUE(absl::IsInvalidArgument(
      policy.Free(DeviceAddress(a.value() + 512), stream_)));
}

TEST_F(BinnedPolicyTest, TheLargestIsABin) {
  BinnedPolicy policy(device_.get());
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(16));
  const DeviceAddress a = Allocate(policy, GiB(8));
  Allocate(policy, GiB(4));
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(4));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(GiB(4).value() + 1)));
  Free(policy, a);
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(8));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(UINT64_MAX)));
}

TEST_F(BinnedPolicyTest, ServesChurn) {
  const auto trace = ReadQuireCsv("op,id,bytes,stream\n" + MakeChurnRows());
  ASSERT_TRUE(trace.ok()) << trace.status();
  BinnedPolicy policy(device_.get());
  PolicyReplayOptions options;
  options.iterations = 2;
  const auto result = ReplayOnPolicy(*trace, device_.get(), &policy, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->failures, 0u);
  EXPECT_EQ(result->allocations, result->frees);
  EXPECT_EQ(policy.GetUse().allocated, Bytes(0));
}

}  // namespace
}  // namespace quire
