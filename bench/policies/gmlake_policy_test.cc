// The model of GMLake against what its rules give by hand.

#include "bench/policies/gmlake_policy.h"

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using GmlakePolicyTest = PolicyTest;

TEST_F(GmlakePolicyTest, StitchesWhatIsScattered) {
  GmlakePolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, MiB(10));
  const DeviceAddress b = Allocate(policy, MiB(20));
  const DeviceAddress c = Allocate(policy, MiB(30));
  Free(policy, a);
  Free(policy, c);
  // Both, side by side, without a new page.
  const DeviceAddress d = Allocate(policy, MiB(40));
  EXPECT_EQ(policy.GetUse().reserved, MiB(60));
  EXPECT_EQ(policy.GetUse().allocated, MiB(60));
  Free(policy, d);
  // What was stitched is there for the next one of this size: no call.
  const uint64_t calls = device_->calls();
  EXPECT_EQ(Allocate(policy, MiB(40)), d);
  EXPECT_EQ(device_->calls(), calls);
  Free(policy, b);
}

TEST_F(GmlakePolicyTest, SplitsTheSmallestThatIsLargerAndKeepsTheWhole) {
  GmlakePolicy policy(device_.get());
  const DeviceAddress large = Allocate(policy, MiB(64));
  Allocate(policy, MiB(2));
  Free(policy, large);
  const DeviceAddress a = Allocate(policy, MiB(24));
  const DeviceAddress b = Allocate(policy, MiB(40));  // exactly the rest
  EXPECT_EQ(policy.GetUse().reserved, MiB(66));
  Free(policy, a);
  // The whole is not to be had while a part of it is in use.
  EXPECT_NE(Allocate(policy, MiB(64)), large);
  EXPECT_EQ(policy.GetUse().reserved, MiB(66 + 40));
  Free(policy, b);
}

TEST_F(GmlakePolicyTest, TheWholeComesBackWithItsParts) {
  GmlakePolicy policy(device_.get());
  const DeviceAddress large = Allocate(policy, MiB(64));
  Free(policy, large);
  const DeviceAddress a = Allocate(policy, MiB(24));
  Free(policy, a);
  EXPECT_EQ(Allocate(policy, MiB(64)), large);
  EXPECT_EQ(policy.GetUse().reserved, MiB(64));
}

TEST_F(GmlakePolicyTest, AddsNewPagesToAllThatIsFree) {
  GmlakePolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, GiB(6));
  const DeviceAddress b = Allocate(policy, GiB(6));
  Free(policy, a);
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(10));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(GiB(10).value() + 1)));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(UINT64_MAX)));
  Allocate(policy, GiB(10));
  EXPECT_EQ(policy.GetUse().reserved, GiB(16));
  Free(policy, b);
}

TEST_F(GmlakePolicyTest, LeavesSmallOnesToPyTorch) {
  GmlakePolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, Bytes(100));
  Allocate(policy, Bytes((2 << 20) - 1));
  EXPECT_EQ(policy.GetUse().reserved, MiB(22));
  Free(policy, a);
  EXPECT_TRUE(absl::IsInvalidArgument(policy.Free(a, stream_)));
}

// Sizes that never repeat leave a stitched block each; they are limited.
TEST_F(GmlakePolicyTest, UnmapsWhatWasStitchedLongAgo) {
  const auto device = *SimulatedDevice::Create(MiB(512));
  GmlakePolicy policy(device.get());
  for (uint64_t pages = 3; pages < 200; ++pages) {
    const DeviceAddress a = Allocate(policy, MiB(2 * pages));
    Free(policy, a);
  }
  EXPECT_EQ(policy.GetUse().allocated, Bytes(0));
  EXPECT_LE(policy.GetUse().reserved, MiB(512));
  EXPECT_GT(device->driver()->GetCallStatistics().CountOf("Unmap"), 0u);
}

}  // namespace
}  // namespace quire
