// The model of RMM's pool against reports on RMM, and against what its rules
// give by hand.

#include "bench/policies/rmm_pool_policy.h"

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using RmmPoolPolicyTest = PolicyTest;

// rmm#1957: a pool of 256 to 1,024 bytes cannot serve 1,024, since it grows by
// a second block; one that begins with nothing can.
TEST_F(RmmPoolPolicyTest, ServesItsMaximumOnlyWithoutInitialSize) {
  RmmPoolOptions options;
  options.maximum_pool_size = Bytes(1024);
  options.initial_pool_size = Bytes(256);
  RmmPoolPolicy with_initial(device_.get(), options);
  EXPECT_TRUE(OutOfMemory(with_initial, Bytes(1024)));
  Allocate(with_initial, Bytes(768));
  EXPECT_EQ(with_initial.pool_size(), Bytes(1024));
  options.initial_pool_size = Bytes(0);
  RmmPoolPolicy without(device_.get(), options);
  Allocate(without, Bytes(1024));
}

TEST_F(RmmPoolPolicyTest, DoublesAndHalvesWhereTheDeviceIsFull) {
  RmmPoolPolicy policy(device_.get());
  Allocate(policy, GiB(1));
  EXPECT_EQ(policy.pool_size(), GiB(1));
  Allocate(policy, MiB(2));  // grows by as much as it has
  EXPECT_EQ(policy.pool_size(), GiB(2));
  Allocate(policy, GiB(9));
  EXPECT_EQ(policy.pool_size(), GiB(11));
  // 11 GiB, then 5.5 are more than the device has; 2.75 are not.
  Allocate(policy, MiB(1500));
  EXPECT_EQ(policy.pool_size(), Bytes(GiB(11).value() + MiB(2816).value()));
  EXPECT_TRUE(OutOfMemory(policy, GiB(3)));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(UINT64_MAX)));
}

TEST_F(RmmPoolPolicyTest, GrowsByHalfOfWhatAMaximumLeaves) {
  RmmPoolOptions options;
  options.maximum_pool_size = GiB(8);
  RmmPoolPolicy policy(device_.get(), options);
  Allocate(policy, MiB(1));
  EXPECT_EQ(policy.pool_size(), GiB(4));
  EXPECT_TRUE(OutOfMemory(policy, GiB(5)));
  Allocate(policy, GiB(4));  // of what is left all, since half is too little
  EXPECT_EQ(policy.pool_size(), GiB(8));
}

TEST_F(RmmPoolPolicyTest, TakesFromOtherStreamsBehindTheirEvents) {
  RmmPoolPolicy policy(device_.get());
  const DeviceAddress a = Allocate(policy, MiB(64));
  Free(policy, a);
  const uint64_t before = device_->calls();
  EXPECT_EQ(Allocate(policy, MiB(16), other_stream_), a);
  EXPECT_EQ(device_->calls() - before, 1u);  // a wait
  EXPECT_EQ(policy.pool_size(), MiB(64));
  // The rest stayed in the list that it was in.
  const uint64_t again = device_->calls();
  EXPECT_EQ(Allocate(policy, MiB(48)).value(), a.value() + MiB(16).value());
  EXPECT_EQ(device_->calls(), again);
}

// Halves of one block that two streams freed are one block only after the lists
// were merged.
TEST_F(RmmPoolPolicyTest, MergesListsBeforeItGrows) {
  RmmPoolPolicy policy(device_.get());
  const DeviceAddress whole = Allocate(policy, MiB(64));
  Free(policy, whole);
  const DeviceAddress a = Allocate(policy, MiB(32));
  const DeviceAddress b = Allocate(policy, MiB(32));
  ASSERT_TRUE(policy.Free(a, stream_).ok());
  ASSERT_TRUE(policy.Free(b, other_stream_).ok());
  EXPECT_EQ(policy.CalculateLargest(stream_).value(),
            GiB(16).value() - MiB(64).value());
  EXPECT_EQ(Allocate(policy, MiB(64)), whole);
  EXPECT_EQ(policy.pool_size(), MiB(64));
}

}  // namespace
}  // namespace quire
