// CUDA's stream-ordered allocator: cudaMallocAsync and cudaFreeAsync on one
// pool, with its release threshold.
//
// NVIDIA documents what the pool promises, not how it is built. The model:
// sizes are rounded up to 512 bytes; the pool grows by multiples of 32 MiB; the
// best fit is split, free neighbours merge; what another stream freed may be
// used, since its work is over here. Beyond the threshold, pieces of 32 MiB
// that are unused go back to the device whenever the program waits for it:
// traces do not say when that is, so every free stands for one. Before the pool
// fails, all that are unused go back. Each of the two calls is a call of the
// driver, and so are growing and giving back.

#ifndef QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_
#define QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_

#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"

namespace quire {

class CudaPoolPolicy : public AllocatorPolicy {
 public:
  // What the pool grows by, and what it gives back.
  static constexpr Bytes kPiece = MiB(32);

  // The default keeps everything, as frameworks set it; CUDA's own is 0.
  explicit CudaPoolPolicy(SimulatedDevice* device,
                          Bytes release_threshold = Bytes(UINT64_MAX))
      : device_(device),
        release_threshold_(release_threshold),
        free_(kPiece.value()) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

  // cudaMemPoolTrimTo: gives pieces back that are unused until at most `keep`
  // is reserved.
  absl::Status TrimTo(Bytes keep);

 private:
  // Pieces that lie in a free block as a whole.
  struct Pieces {
    uint64_t begin;
    uint64_t end;
  };
  static Pieces PiecesOf(const PoolBlock& block);
  // Null where the device has no memory left.
  absl::StatusOr<PoolBlock*> Grow(uint64_t size);
  // Gives the pieces back. What they were stays as a hole without memory.
  absl::Status Release(PoolBlock* block, const Pieces& pieces);

  SimulatedDevice* const device_;
  const Bytes release_threshold_;
  BlockStore blocks_;
  FreeBlocks free_;  // those of a piece or more may hold one
  uint64_t allocated_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_CUDA_POOL_POLICY_H_
