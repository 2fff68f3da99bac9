// The model of cudaMalloc against what was measured of it, and what its rules
// give by hand.

#include "bench/policies/cuda_malloc_policy.h"

#include <cstdint>
#include <vector>

#include "bench/policies/policy_test_fixture.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

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

// What `count` allocations of `size` took of the device, each.
Bytes Footprint(AllocatorPolicy& policy, Bytes size, uint64_t count) {
  const Bytes before = policy.GetUse().reserved;
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(policy.Allocate(size, StreamId()).ok());
  }
  const Bytes taken = *CheckedSubtract(policy.GetUse().reserved, before);
  return Bytes(taken.value() / count);
}

// cudaMemGetInfo before and after two allocations of each size, by two, on an
// RTX 3090 under CUDA 13.1, as colibri's pull request 1244 tells it; and the
// same on an H200 in its issue 687.
TEST_F(CudaMallocPolicyTest, ReproducesFootprintsMeasuredOnRtx3090) {
  CudaMallocPolicy policy(device_.get());
  EXPECT_EQ(Footprint(policy, KiB(768), 2), MiB(1));
  EXPECT_EQ(Footprint(policy, MiB(1), 2), MiB(1));
  EXPECT_EQ(Footprint(policy, Bytes((1 << 20) + 1), 2), MiB(2));
  EXPECT_EQ(Footprint(policy, KiB(1536), 2), MiB(2));
  EXPECT_EQ(Footprint(policy, MiB(2), 2), MiB(2));
  EXPECT_EQ(Footprint(policy, Bytes((2 << 20) + 1), 2), MiB(4));
  EXPECT_EQ(Footprint(policy, MiB(6), 2), MiB(6));
}

// By 256 allocations of each size, in the comment on dev_alloc_footprint of
// colibri's VRAM tier. Up to 4 KiB, what is seen is the page that they share.
TEST_F(CudaMallocPolicyTest, ReproducesFootprintsMeasuredOver256Allocations) {
  const struct {
    Bytes size, footprint;
  } measured[] = {
      {Bytes(400), KiB(8)}, {KiB(3), KiB(8)},     {KiB(4), KiB(8)},
      {KiB(10), KiB(16)},   {KiB(16), KiB(16)},   {KiB(64), KiB(64)},
      {KiB(96), KiB(104)},  {KiB(384), KiB(416)}, {KiB(768), MiB(1)},
      {MiB(1), MiB(1)},     {KiB(1536), MiB(2)},  {MiB(3), MiB(4)},
  };
  for (const auto& [size, footprint] : measured) {
    CudaMallocPolicy policy(device_.get());
    EXPECT_EQ(Footprint(policy, size, 256), footprint) << size.value();
  }
}

// 36 buffers of 400 bytes for each token, under q27's issue 1: contexts of
// 258,048 and 262,144 tokens read the same in nvidia-smi.
TEST_F(CudaMallocPolicyTest, ReproducesEqualUseOfTwoContexts) {
  CudaMallocPolicy policy(device_.get());
  EXPECT_EQ(Footprint(policy, Bytes(258048 * 400), 36), MiB(100));
  EXPECT_EQ(Footprint(policy, Bytes(262144 * 400), 36), MiB(100));
  EXPECT_EQ(Footprint(policy, Bytes(253952 * 400), 36), MiB(98));
}

}  // namespace
}  // namespace quire
