// RMM's pool_memory_resource over cudaMalloc: a coalescing, best-fit free list
// for each stream.
//
// Sizes are rounded up to 256 bytes. A stream takes the best fit of what was
// freed on it; else of another stream, behind that one's event; else it merges
// the lists of the others into its own, one after the other, and looks again;
// else the pool grows, by the request or by as much as it has, halved until
// the device gives it; with a maximum, by half of what is left to it. What is
// left of a block stays in the list that the block was in. Nothing is given
// back. One event per stream is recorded at every free on it.
//
// Written after pool_memory_resource.hpp and stream_ordered_memory_resource.hpp
// of RMM 25.

#ifndef QUIRE_BENCH_POLICIES_RMM_POOL_POLICY_H_
#define QUIRE_BENCH_POLICIES_RMM_POOL_POLICY_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "bench/policies/stream_maxima.h"

namespace quire {

struct RmmPoolOptions {
  // Taken with the first request. RMM's Python default is half the device,
  // which says nothing of what a trace needs.
  Bytes initial_pool_size;
  // 0: none.
  Bytes maximum_pool_size;
};

class RmmPoolPolicy : public AllocatorPolicy {
 public:
  explicit RmmPoolPolicy(SimulatedDevice* device,
                         const RmmPoolOptions& options = {})
      : device_(device), options_(options) {}

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

  // As RMM counts it: what was asked of cudaMalloc, which rounds up.
  Bytes pool_size() const { return Bytes(pool_size_); }

 private:
  absl::StatusOr<EventId> EventOf(StreamId stream);
  // Out of the free ones; null where none fits.
  absl::StatusOr<PoolBlock*> TakeFreeBlock(uint64_t size, StreamId stream);
  absl::StatusOr<PoolBlock*> MergeOthers(uint64_t size, StreamId stream);
  absl::Status MergeInto(StreamId stream, StreamId other);
  // Null where the pool may not grow so far.
  absl::StatusOr<PoolBlock*> Grow(uint64_t size, StreamId stream);
  absl::StatusOr<PoolBlock*> NewBlock(uint64_t size, StreamId stream);
  // The only ways into free_ and out of it, where the largest may change.
  void InsertFree(PoolBlock* block);
  void EraseFree(PoolBlock* block);
  void NoteLargest(uint64_t stream);
  // What growth for `size` begins with; 0: it cannot be had.
  uint64_t SizeToGrow(uint64_t size) const;

  SimulatedDevice* const device_;
  const RmmPoolOptions options_;
  bool initialized_ = false;
  uint64_t pool_size_ = 0;
  uint64_t allocated_ = 0;
  BlockStore blocks_;
  FreeBlocks free_;
  StreamMaxima largest_;  // in free_, of streams that have freed
  absl::flat_hash_map<uint64_t, EventId> events_;  // by stream, of the same
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_RMM_POOL_POLICY_H_
