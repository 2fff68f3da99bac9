// The part of PyTorchPolicy that grows and shrinks expandable segments.

#include <algorithm>

#include "bench/policies/pytorch_policy.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

bool Allocatable(const PoolBlock* block) {
  return block != nullptr && !block->live;
}

// Whether there are `size` bytes of free or unmapped addresses from it on.
bool HasRoom(const PoolBlock* block, uint64_t size) {
  uint64_t room = 0;
  for (; room < size && Allocatable(block); block = block->behind) {
    room += block->size;
  }
  return room >= size;
}

}  // namespace

absl::StatusOr<PoolBlock*> PyTorchPolicy::GrowExpandable(Pool& pool,
                                                         uint64_t size,
                                                         uint64_t stream) {
  QUIRE_ASSIGN_OR_RETURN(PoolBlock * block, FindExpandable(pool, size, stream));
  if (!block->mapped) {
    QUIRE_ASSIGN_OR_RETURN(block,
                           MapBlock(pool, block, std::min(block->size, size)));
    if (block == nullptr) return nullptr;
  }
  // What lies behind is unmapped, or it would be part of the block.
  while (block->size < size) {
    PoolBlock* const behind = block->behind;
    QUIRE_ASSIGN_OR_RETURN(
        block,
        MapBlock(pool, behind, std::min(behind->size, size - block->size)));
    if (block == nullptr) return nullptr;
  }
  pool.free.Erase(block);
  return block;
}

absl::StatusOr<PoolBlock*> PyTorchPolicy::FindExpandable(Pool& pool,
                                                         uint64_t size,
                                                         uint64_t stream) {
  for (auto it = pool.unmapped.LowerBound(stream, 0);
       it != pool.unmapped.end() && it->stream == stream; ++it) {
    PoolBlock* const block = it->block;
    PoolBlock* const start = Allocatable(block->before) ? block->before : block;
    if (HasRoom(start, size)) return start;
  }
  // An eighth more than the device has.
  const uint64_t memory = device_->memory().value();
  QUIRE_ASSIGN_OR_RETURN(
      const ExpandableSegment segment,
      ExpandableSegment::Create(device_->driver(), memory + memory / 8,
                                pool.granule));
  PoolBlock block;
  block.address = segment.address();
  block.size = segment.size();
  block.stream = stream;
  block.segment = segments_.size();
  block.small = pool.small;
  block.mapped = false;
  segments_.push_back(segment);
  PoolBlock* const added = blocks_.Add(block);
  pool.unmapped.Insert(added);
  return added;
}

absl::StatusOr<PoolBlock*> PyTorchPolicy::MapBlock(Pool& pool, PoolBlock* block,
                                                   uint64_t size) {
  const absl::StatusOr<ExpandableSegment::Range> backed =
      segments_[block->segment].Map({block->address, size});
  if (absl::IsResourceExhausted(backed.status())) return nullptr;
  QUIRE_RETURN_IF_ERROR(backed.status());
  pool.unmapped.Erase(block);
  if (backed->size < block->size) {
    pool.unmapped.Insert(blocks_.Split(block, backed->size));
  }
  block->mapped = true;
  reserved_ += backed->size;
  block = blocks_.MergeFree(block, &pool.free);
  block->stamp = pool.lookups;
  pool.free.Insert(block);
  return block;
}

absl::Status PyTorchPolicy::UnmapBlock(Pool& pool, PoolBlock* block) {
  QUIRE_ASSIGN_OR_RETURN(
      const ExpandableSegment::Range gone,
      segments_[block->segment].Unmap({block->address, block->size}));
  if (gone.size == 0) return absl::OkStatus();
  pool.free.Erase(block);
  if (gone.address > block->address) {
    PoolBlock* const rest = blocks_.Split(block, gone.address - block->address);
    pool.free.Insert(block);
    block = rest;
  }
  if (gone.size < block->size) {
    pool.free.Insert(blocks_.Split(block, gone.size));
  }
  block->mapped = false;
  reserved_ -= gone.size;
  pool.unmapped.Insert(blocks_.MergeFree(block, &pool.unmapped));
  return absl::OkStatus();
}

Bytes PyTorchPolicy::CalculateLargestExpandable() const {
  uint64_t room = SaturatingSubtract(device_->memory().value(), reserved_);
  for (const Pool* const pool : {&large_, &small_}) {
    for (const PoolBlock* const block : pool->free.Spare()) {
      room += segments_[block->segment]
                  .WholeGranules({block->address, block->size})
                  .size;
    }
  }
  return Bytes(room / large_.granule * large_.granule);
}

}  // namespace quire
