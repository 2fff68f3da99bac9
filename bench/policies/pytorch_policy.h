// PyTorch's CUDA caching allocator, with and without expandable segments.
//
// Sizes are rounded up to 512 bytes, or to a division of a power of two. Up to
// 1 MiB they come from the small pool, whose segments are 2 MiB; above, from
// the large one, whose segments are 20 MiB for requests below 10 MiB, else the
// request rounded up to 2 MiB. A block serves the stream that it was taken for;
// the best fit is split where more than 1 MiB (small pool: 512 bytes) is left.
// Neighbours that are free are one block again. Where nothing fits: garbage
// collection, if a threshold is set; a new segment; large unsplit blocks given
// back, if splitting has a limit; then every segment that is free as a whole.
//
// An expandable segment is one long range of addresses per pool and stream that
// is backed as it grows, 2 MiB (small) or 20 MiB (large) at a time. A free
// block at its end counts as what it can grow to.
//
// Written after c10/cuda/CUDACachingAllocator.cpp as of PyTorch 2.12. Left out:
// private pools of graphs, free callbacks, peers, settings that only change
// what is reported.

#ifndef QUIRE_BENCH_POLICIES_PYTORCH_POLICY_H_
#define QUIRE_BENCH_POLICIES_PYTORCH_POLICY_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bench/policies/block_store.h"
#include "bench/policies/policy.h"
#include "bench/policies/pytorch_divisions.h"
#include "bench/policies/pytorch_segment.h"
#include "bench/policies/simulated_device.h"

namespace quire {

// Names as in PYTORCH_ALLOC_CONF.
struct PyTorchOptions {
  bool expandable_segments = false;
  // Blocks of so much or more are not split.
  Bytes max_split_size = Bytes(UINT64_MAX);
  PyTorchDivisions roundup_power2_divisions{};
  // Of the device; 0: no garbage is collected.
  double garbage_collection_threshold = 0;
};

class PyTorchPolicy : public AllocatorPolicy {
 public:
  explicit PyTorchPolicy(SimulatedDevice* device,
                         const PyTorchOptions& options = {})
      : device_(device), options_(options) {
    small_.small = true;
    small_.granule = uint64_t{2} << 20;
    large_.granule = uint64_t{20} << 20;
    if (!options.expandable_segments) return;
    small_.free = FreeBlocks(small_.granule);
    large_.free = FreeBlocks(large_.granule);
  }

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  absl::Status RecordStream(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

  // torch.cuda.empty_cache().
  absl::Status EmptyCache() { return ReleaseCachedBlocks(); }
  // What a request is rounded up to.
  uint64_t RoundSize(uint64_t size) const;

 private:
  struct Pool {
    FreeBlocks free;
    FreeBlocks unmapped;  // of expandable segments
    bool small = false;
    uint64_t granule = 0;
    uint64_t lookups = 0;  // the age of blocks is counted in these
  };
  struct PendingFree {
    EventId event;
    PoolBlock* block;
  };

  Pool& PoolOf(const PoolBlock* block) {
    return block->small ? small_ : large_;
  }
  bool ShouldSplit(const PoolBlock* block, uint64_t size) const;
  // Out of the free ones; null where none fits.
  PoolBlock* TakeFreeBlock(Pool& pool, uint64_t size, uint64_t stream);
  // Null where the device has no memory left.
  absl::StatusOr<PoolBlock*> NewBlock(Pool& pool, uint64_t size,
                                      uint64_t stream);
  absl::StatusOr<PoolBlock*> NewSegment(Pool& pool, uint64_t size,
                                        uint64_t stream);
  // After everything that may be given back was given back.
  absl::StatusOr<PoolBlock*> NewBlockAfterRelease(Pool& pool, uint64_t size,
                                                  uint64_t stream);
  // Of a block that waits for nothing any more.
  void PutBack(PoolBlock* block);

  absl::Status ProcessEvents();
  absl::Status CollectGarbage();
  absl::Status ReleaseSegment(PoolBlock* block);
  absl::StatusOr<bool> ReleaseOversizedBlocks(uint64_t size, uint64_t stream);
  absl::Status ReleaseCachedBlocks();

  // ---- Expandable segments: pytorch_expandable.cc ----
  absl::StatusOr<PoolBlock*> GrowExpandable(Pool& pool, uint64_t size,
                                            uint64_t stream);
  absl::StatusOr<PoolBlock*> FindExpandable(Pool& pool, uint64_t size,
                                            uint64_t stream);
  // Backs the beginning of an unmapped block, and returns what it is part of
  // then; null where the device has no memory left.
  absl::StatusOr<PoolBlock*> MapBlock(Pool& pool, PoolBlock* block,
                                      uint64_t size);
  absl::Status UnmapBlock(Pool& pool, PoolBlock* block);
  Bytes CalculateLargestExpandable() const;

  SimulatedDevice* const device_;
  const PyTorchOptions options_;
  BlockStore blocks_;
  Pool small_;
  Pool large_;
  std::vector<ExpandableSegment> segments_;
  // Streams that a live block was recorded on.
  absl::flat_hash_map<PoolBlock*, std::vector<StreamId>> recorded_;
  std::deque<PendingFree> pending_;
  uint64_t allocated_ = 0;
  uint64_t reserved_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_PYTORCH_POLICY_H_
