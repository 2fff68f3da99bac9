// Plain cudaMalloc and cudaFree, without a cache.
//
// Requests above 1 MiB take whole 2 MiB pages, as drivers give them from Pascal
// on (pytorch#17120). Smaller ones share pages that the driver keeps for them,
// at steps of 512 bytes; a page that is empty goes back. Every request and
// every free is a call, and a free waits for the device.

#ifndef QUIRE_BENCH_POLICIES_CUDA_MALLOC_POLICY_H_
#define QUIRE_BENCH_POLICIES_CUDA_MALLOC_POLICY_H_

#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"

namespace quire {

class CudaMallocPolicy : public AllocatorPolicy {
 public:
  explicit CudaMallocPolicy(SimulatedDevice* device) : device_(device) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  absl::StatusOr<DeviceAddress> AllocateSmall(uint64_t size);

  SimulatedDevice* const device_;
  BlockStore blocks_;
  FreeBlocks free_;  // of the pages that small requests share
  uint64_t allocated_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_CUDA_MALLOC_POLICY_H_
