// Best fit with coalescing, as TensorFlow and XLA have it.
//
// Sizes are rounded up to 256 bytes. Memory comes in regions: the first is 2
// MiB and each one twice the one before, or what is asked for where that is
// more; with preallocation there is one region, a fraction of the device. The
// smallest free chunk that fits is taken, and split where what is left is as
// much as was asked for, or 128 MiB. Neighbours that are free are one chunk
// again. Regions are never given back, and streams share all of it.
//
// Bins of powers of two narrow that search and do not change what it finds:
// every chunk of a bin is smaller than all of the next one. Written after
// bfc_allocator.cc; its optional garbage collection of free regions is off, as
// it is by default.

#ifndef QUIRE_BENCH_POLICIES_BFC_POLICY_H_
#define QUIRE_BENCH_POLICIES_BFC_POLICY_H_

#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"

namespace quire {

struct BfcOptions {
  // Of the device, in one region from the start; 0: grow. XLA's default is
  // 0.75, which says nothing of what a trace needs.
  double preallocate = 0;
};

class BfcPolicy : public AllocatorPolicy {
 public:
  explicit BfcPolicy(SimulatedDevice* device, const BfcOptions& options = {});

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  // A region that holds `size` bytes: where the device refuses what it should
  // be, a tenth less each time. Null where there is none.
  absl::StatusOr<PoolBlock*> NewRegion(uint64_t size);

  SimulatedDevice* const device_;
  const BfcOptions options_;
  uint64_t next_region_;
  BlockStore blocks_;
  FreeBlocks free_;
  uint64_t allocated_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_BFC_POLICY_H_
