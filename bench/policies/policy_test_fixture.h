// What tests of policies share: a device, what a policy does on it, and a
// trace.

#ifndef QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_
#define QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "gtest/gtest.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/trace_formats.h"

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

// No events, and a failed test, where it cannot be read.
inline AllocationTrace ReadRecording(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream contents;
  contents << file.rdbuf();
  const auto trace = ReadAllocationTrace(contents.str());
  EXPECT_TRUE(file.is_open() && trace.ok()) << path << trace.status();
  return trace.value_or(AllocationTrace());
}
inline std::filesystem::path RecordingsHere() {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "bench/traces";
}
// With those that are too large to be kept here; may not exist.
inline std::filesystem::path MoreRecordings() {
  return std::filesystem::path(QUIRE_SOURCE_DIR).parent_path() /
         "shared/traces/pytorch-snapshots";
}

// Rows of op,id,bytes,stream: 3,000 allocations and frees at random, up to 40
// live at a time, from 1 byte to 32 MiB, on two streams.
inline std::string MakeChurnRows() {
  std::string rows;
  uint64_t state = 1;
  const auto random = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  };
  constexpr int kSlots = 40;
  int next = 0;
  std::vector<int> live(kSlots, -1);
  for (int i = 0; i < 3000; ++i) {
    int& slot = live[random() % kSlots];
    if (slot >= 0) {
      rows += "free," + std::to_string(slot) + ",0,0\n";
      slot = -1;
    } else {
      const uint64_t size = (uint64_t{1} << (random() % 25)) + random() % 5000;
      slot = next++;
      rows += "alloc," + std::to_string(slot) + "," + std::to_string(size) +
              "," + std::to_string(random() % 2) + "\n";
    }
  }
  return rows;
}

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_TEST_FIXTURE_H_
