// The model of BFC against the figures that TensorFlow's own test of it expects
// (gpu_bfc_allocator_test.cc), and against what its rules give by hand.

#include "bench/policies/bfc_policy.h"

#include <set>
#include <vector>

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using BfcPolicyTest = PolicyTest;

TEST_F(BfcPolicyTest, CountsWhatNoDupsExpects) {
  BfcPolicy policy(device_.get());
  std::set<DeviceAddress> addresses;
  for (uint64_t size = 1; size < 1024; ++size) {
    addresses.insert(Allocate(policy, Bytes(size)));
  }
  EXPECT_EQ(addresses.size(), 1023u);
  EXPECT_EQ(policy.GetUse().allocated, Bytes(654336));
  for (const DeviceAddress address : addresses) Free(policy, address);
  EXPECT_EQ(policy.GetUse().allocated, Bytes(0));
}

// 1,024 times four buffers: the same peak each time, and at the end all of it
// is one chunk that begins where the first one did.
TEST_F(BfcPolicyTest, CoalescesAsExerciseCoalescingExpects) {
  BfcOptions options;
  options.preallocate = 1;
  const auto device = *SimulatedDevice::Create(GiB(1));
  BfcPolicy policy(device.get(), options);
  const DeviceAddress first = Allocate(policy, Bytes(1024 * 4));
  EXPECT_EQ(policy.GetUse().allocated, Bytes(4096));
  Free(policy, first);
  Bytes peak;
  for (int i = 0; i < 1024; ++i) {
    std::vector<DeviceAddress> buffers;
    for (const uint64_t size :
         {1024 * 4, 1048576 * 8, 2048 * 8, 10485760 * 4}) {
      buffers.push_back(Allocate(policy, Bytes(size)));
    }
    peak = std::max(peak, policy.GetUse().allocated);
    for (const DeviceAddress buffer : buffers) Free(policy, buffer);
  }
  EXPECT_EQ(peak, Bytes(1024 * 4 + 1048576 * 8 + 2048 * 8 + 10485760 * 4));
  EXPECT_EQ(Allocate(policy, Bytes(1024 * 4)), first);
}

// A limit of 2 MiB: 256 bytes, and then not 8 MiB.
TEST_F(BfcPolicyTest, RefusesWhatTestCustomMemoryLimitExpects) {
  const auto device = *SimulatedDevice::Create(MiB(2));
  BfcPolicy policy(device.get());
  Allocate(policy, Bytes(256));
  EXPECT_TRUE(OutOfMemory(policy, MiB(8)));
  EXPECT_TRUE(OutOfMemory(policy, Bytes(UINT64_MAX)));
}

// The first region is 2 MiB, as TestForceAllowGrowth expects; each one is twice
// the one before.
TEST_F(BfcPolicyTest, DoublesItsRegions) {
  BfcPolicy policy(device_.get());
  Allocate(policy, MiB(2));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2));
  Allocate(policy, MiB(1));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2 + 4));
  // 3 MiB are left of the region; 8 MiB is next, and too small.
  Allocate(policy, MiB(17));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2 + 4 + 32));
  // It grew for the request: the next one is as large again.
  Allocate(policy, MiB(16));
  EXPECT_EQ(policy.GetUse().reserved, MiB(2 + 4 + 32 + 32));
}

TEST_F(BfcPolicyTest, SplitsWhereAsMuchIsLeftAsWasAskedFor) {
  BfcPolicy policy(device_.get());
  const DeviceAddress all = Allocate(policy, MiB(2));
  Free(policy, all);
  // A third would be lost: not split.
  const DeviceAddress a = Allocate(policy, Bytes((2 << 20) - (700 << 10)));
  EXPECT_EQ(policy.GetUse().allocated, MiB(2));
  Free(policy, a);
  Allocate(policy, MiB(1));
  EXPECT_EQ(policy.GetUse().allocated, MiB(1));
}

TEST_F(BfcPolicyTest, PreallocatesOnce) {
  BfcOptions options;
  options.preallocate = 0.5;
  BfcPolicy policy(device_.get(), options);
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(8));
  Allocate(policy, GiB(3));
  EXPECT_EQ(policy.GetUse().reserved, GiB(8));
  EXPECT_TRUE(OutOfMemory(policy, GiB(6)));
  EXPECT_EQ(policy.CalculateLargest(stream_), GiB(5));
}

}  // namespace
}  // namespace quire
