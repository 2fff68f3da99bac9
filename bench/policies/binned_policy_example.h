// The policy that docs/experiments.md adds as an example: the least power of
// two that holds a request, each from cudaMalloc; what is freed is kept for the
// same size. It is no system's, and not registered.

#ifndef QUIRE_BENCH_POLICIES_BINNED_POLICY_EXAMPLE_H_
#define QUIRE_BENCH_POLICIES_BINNED_POLICY_EXAMPLE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/status_macros.h"

namespace quire {

class BinnedPolicy : public AllocatorPolicy {
 public:
  explicit BinnedPolicy(SimulatedDevice* device) : device_(device) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId) override {
    if (size > kLargestRequest) return absl::ResourceExhaustedError("binned");
    const uint64_t bin = std::bit_ceil(size.value());
    std::vector<DeviceAddress>& kept = kept_[bin];
    if (kept.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const DeviceAddress made,
                             device_->Malloc(Bytes(bin)));
      kept.push_back(made);
    }
    const DeviceAddress address = kept.back();
    kept.pop_back();
    live_[address.value()] = bin;
    allocated_ += bin;
    return address;
  }

  absl::Status Free(DeviceAddress address, StreamId) override {
    const auto found = live_.find(address.value());
    if (found == live_.end()) return NotAllocated("binned", address);
    kept_[found->second].push_back(address);
    allocated_ -= found->second;
    live_.erase(found);
    return absl::OkStatus();
  }

  PolicyUse GetUse() const override {
    return {Bytes(allocated_), device_->malloc_bytes(),
            device_->malloc_bytes()};
  }

  // The largest that is kept, or the largest bin that is left of the device.
  Bytes CalculateLargest(StreamId) const override {
    uint64_t largest = std::bit_floor(
        SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value());
    for (const auto& [bin, addresses] : kept_) {
      if (!addresses.empty()) largest = std::max(largest, bin);
    }
    return Bytes(largest);
  }

 private:
  SimulatedDevice* const device_;
  std::map<uint64_t, std::vector<DeviceAddress>> kept_;  // by bin
  absl::flat_hash_map<uint64_t, uint64_t> live_;         // address -> bin
  uint64_t allocated_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_BINNED_POLICY_EXAMPLE_H_
