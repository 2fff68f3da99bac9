// The model of CUDA's stream-ordered pool against what its rules give by hand.

#include "bench/policies/cuda_pool_policy.h"

#include <vector>

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
  EXPECT_EQ(policy.GetUse().reserved, MiB(64));  // and one of a's two pieces
  Free(policy, c);
  EXPECT_EQ(policy.GetUse().reserved, MiB(64));
}

// What CUDA.jl's documentation shows of a pool that keeps what it has:
// CUDA.memory_status() after an array of 8 KiB, after it is gone, and after
// CUDA.reclaim(), which trims the pool.
TEST_F(CudaPoolPolicyTest, ReservesWhatCudaJlShows) {
  CudaPoolPolicy policy(device_.get());
  EXPECT_EQ(policy.GetUse().reserved, Bytes(0));
  const DeviceAddress array = Allocate(policy, KiB(8));
  EXPECT_EQ(policy.GetUse().allocated, KiB(8));
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
  Free(policy, array);
  EXPECT_EQ(policy.GetUse().allocated, Bytes(0));
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
  ASSERT_TRUE(policy.TrimTo(Bytes(0)).ok());
  EXPECT_EQ(policy.GetUse().reserved, Bytes(0));
}

// The log of CUDA.jl#1540, in GB of two digits: arrays of 1 GiB, nine of which
// are freed when the eleventh is asked for, and a threshold of 9 GB.
TEST_F(CudaPoolPolicyTest, ReleasesWhatCudaJlLogged) {
  CudaPoolPolicy policy(device_.get(), Bytes(9000000000));
  const auto reserved = [&] {
    return static_cast<double>(policy.GetUse().reserved.value()) / 1e9;
  };
  std::vector<DeviceAddress> arrays = {Allocate(policy, GiB(1))};
  for (const double logged : {2.1, 3.2, 4.3, 5.4, 6.4, 7.5, 8.6, 9.7, 10.7}) {
    arrays.push_back(Allocate(policy, GiB(1)));
    EXPECT_NEAR(reserved(), logged, 0.05);
  }
  while (arrays.size() > 1) {
    Free(policy, arrays.back());
    arrays.pop_back();
  }
  EXPECT_NEAR(reserved(), 9.0, 0.05);
  // And stays so, until that is not enough.
  while (arrays.size() < 8) {
    arrays.push_back(Allocate(policy, GiB(1)));
    EXPECT_NEAR(reserved(), 9.0, 0.05);
  }
}

// What lies between pieces that went back is no neighbour of what lies behind.
TEST_F(CudaPoolPolicyTest, LeavesHolesWherePiecesWere) {
  CudaPoolPolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, MiB(48));
  const DeviceAddress b = Allocate(policy, MiB(96));
  const DeviceAddress c = Allocate(policy, MiB(16));  // behind a
  Free(policy, b);
  ASSERT_TRUE(policy.TrimTo(Bytes(0)).ok());
  EXPECT_EQ(policy.GetUse().reserved, MiB(64));
  Free(policy, a);
  ASSERT_TRUE(policy.TrimTo(Bytes(0)).ok());
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));  // half of it is c's
  EXPECT_EQ(policy.CalculateLargest(stream_),
            Bytes((GiB(16).value() - MiB(32).value())));
  Allocate(policy, MiB(16));
  EXPECT_EQ(policy.GetUse().reserved, MiB(32));
  Allocate(policy, MiB(32));
  EXPECT_EQ(policy.GetUse().reserved, MiB(64));
  Free(policy, c);
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
