// The model of CUDA's stream-ordered pool against what its rules give by hand.

#include "bench/policies/cuda_pool_policy.h"

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using CudaPoolPolicyTest = PolicyTest;

TEST_F(CudaPoolPolicyTest, GrowsBy32MebibytesAndKeepsThem) {
  CudaPoolPolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, Bytes(1));
  EXPECT_EQ(policy.GetUse().allocated, Bytes(512));
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
  const DeviceAddress b = Allocate(policy, MiB(33));
  EXPECT_EQ(policy.GetUse().reserved, MiB(96));
  Free(policy, a);
  Free(policy, b);
  EXPECT_EQ(policy.GetUse().reserved, MiB(96));
  // Other streams have it too.
  EXPECT_EQ(Allocate(policy, MiB(64), other_stream_), b);
}

TEST_F(CudaPoolPolicyTest, ReleasesWhatIsBeyondTheThreshold) {
  CudaPoolPolicy policy(device_.get(), MiB(64));
  const DeviceAddress a = Allocate(policy, MiB(64));
  const DeviceAddress b = Allocate(policy, MiB(32));
  const DeviceAddress c = Allocate(policy, MiB(16));
  Free(policy, b);
  EXPECT_EQ(policy.GetUse().reserved, MiB(96));  // 128, less b's
  Free(policy, a);
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
  Free(policy, c);
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
}

TEST_F(CudaPoolPolicyTest, GivesBackBeforeItFails) {
  CudaPoolPolicy policy(device_.get());
  Free(policy, Allocate(policy, GiB(9)));
  Allocate(policy, GiB(10));
  EXPECT_EQ(policy.GetUse().reserved, GiB(10));
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(6));
  EXPECT_TRUE(OutOfMemory(policy, GiB(7)));
}

}  // namespace
}  // namespace quire
