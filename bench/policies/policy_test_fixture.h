// What tests of policies share: a device, and a policy on it by name of what it
// allocated.

#ifndef QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_
#define QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_

#include <cstdint>
#include <memory>

#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "gtest/gtest.h"

namespace quire {

class PolicyTest : public testing::Test {
 protected:
  PolicyTest() : device_(*SimulatedDevice::Create(GiB(16))) {
    stream_ = *device_->driver()->CreateStream(DeviceId(0));
    other_stream_ = *device_->driver()->CreateStream(DeviceId(0));
  }

  // Null, and a failed test, where it cannot be had.
  DeviceAddress Allocate(AllocatorPolicy& policy, Bytes size) {
    return Allocate(policy, size, stream_);
  }
  DeviceAddress Allocate(AllocatorPolicy& policy, Bytes size, StreamId stream) {
    const absl::StatusOr<DeviceAddress> address = policy.Allocate(size, stream);
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or(DeviceAddress());
  }
  void Free(AllocatorPolicy& policy, DeviceAddress address) {
    EXPECT_TRUE(policy.Free(address, stream_).ok());
  }
  bool OutOfMemory(AllocatorPolicy& policy, Bytes size) {
    return absl::IsResourceExhausted(policy.Allocate(size, stream_).status());
  }

  const std::unique_ptr<SimulatedDevice> device_;
  StreamId stream_;
  StreamId other_stream_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_
