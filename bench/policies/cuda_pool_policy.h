// CUDA's stream-ordered allocator: cudaMallocAsync and cudaFreeAsync on one
// pool, with its release threshold.
//
// NVIDIA documents what the pool promises, not how it is built. The model:
// sizes are rounded up to 512 bytes; the pool grows by multiples of 32 MiB; the
// best fit is split, free neighbours merge; what another stream freed may be
// used, since its work is over here. Unused growth beyond the threshold goes
// back to the device whenever the program waits for it: traces do not say when
// that is, so every free stands for one. Before the pool fails, all that is
// unused goes back. Each of the two calls is a call of the driver.

#ifndef QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_
#define QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_

#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"

namespace quire {

class CudaPoolPolicy : public AllocatorPolicy {
 public:
  // The default keeps everything, as frameworks set it; CUDA's own is 0.
  explicit CudaPoolPolicy(SimulatedDevice* device,
                          Bytes release_threshold = Bytes(UINT64_MAX))
      : device_(device), release_threshold_(release_threshold) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  // Null where the device has no memory left.
  absl::StatusOr<PoolBlock*> Grow(uint64_t size);
  // Gives back what is free as a whole until at most `keep` is reserved.
  absl::Status Release(Bytes keep);

  SimulatedDevice* const device_;
  const Bytes release_threshold_;
  BlockStore blocks_;
  FreeBlocks free_;
  uint64_t allocated_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_
