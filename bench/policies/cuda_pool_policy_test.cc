// The models of CUDA's own allocators against what their rules give by hand.

#include "bench/policies/cuda_pool_policy.h"

#include "bench/policies/cuda_malloc_policy.h"
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

using CudaMallocPolicyTest = PolicyTest;

TEST_F(CudaMallocPolicyTest, TakesWholePagesAboveOneMebibyte) {
  CudaMallocPolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, Bytes((1 << 20) + 1));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2));
  const DeviceAddress b = Allocate(policy, Bytes((4 << 20) + 1));
  EXPECT_EQ(policy.GetUse().reserved, MiB(8));
  Free(policy, a);
  Free(policy, b);
  EXPECT_EQ(policy.GetUse().reserved, Bytes(0));
}

TEST_F(CudaMallocPolicyTest, SharesPagesAmongSmallOnes) {
  CudaMallocPolicy policy(device_.get());
  std::vector<DeviceAddress> pieces;
  for (int i = 0; i < 4096; ++i) pieces.push_back(Allocate(policy, Bytes(300)));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2));
  pieces.push_back(Allocate(policy, Bytes(1)));
  EXPECT_EQ(policy.GetUse().reserved, MiB(4));
  for (const DeviceAddress piece : pieces) Free(policy, piece);
  EXPECT_EQ(policy.GetUse().reserved, Bytes(0));
}

// A page on loan to the simulated cudaMalloc is one call, whatever it is made
// of, and costs what that is made of.
TEST_F(CudaMallocPolicyTest, CountsOneCallEach) {
  const uint64_t calls = device_->calls();
  const uint64_t time = device_->nanoseconds();
  const DeviceAddress a = *device_->Malloc(MiB(64));
  const DriverCostTable costs = DriverCostTable::A100();
  EXPECT_EQ(device_->nanoseconds() - time,
            costs.reserve_address + costs.create_page + costs.map_page +
                costs.set_access);
  ASSERT_TRUE(device_->Free(a).ok());
  EXPECT_EQ(device_->calls() - calls, 2u);
  EXPECT_TRUE(absl::IsInvalidArgument(device_->Free(a)));
  EXPECT_TRUE(absl::IsResourceExhausted(device_->Malloc(GiB(17)).status()));
  EXPECT_TRUE(
      absl::IsResourceExhausted(device_->Malloc(Bytes(UINT64_MAX)).status()));
  EXPECT_EQ(device_->malloc_bytes(), Bytes(0));
}

}  // namespace
}  // namespace quire
