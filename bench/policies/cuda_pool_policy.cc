#include "bench/policies/cuda_pool_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStep = 512;
constexpr uint64_t kGrowth = uint64_t{32} << 20;

constexpr uint64_t RoundUp(uint64_t size, uint64_t step) {
  return (size + step - 1) / step * step;
}

}  // namespace

absl::StatusOr<DeviceAddress> CudaPoolPolicy::Allocate(Bytes size,
                                                       StreamId /*stream*/) {
  device_->ChargeCall();
  PoolBlock* block = nullptr;
  if (size <= kLargestRequest) {
    const uint64_t rounded = RoundUp(size.value(), kStep);
    block = free_.BestFit(0, rounded);
    if (block != nullptr) {
      free_.Erase(block);
    } else {
      QUIRE_ASSIGN_OR_RETURN(block, Grow(rounded));
    }
    if (block == nullptr) {
      QUIRE_RETURN_IF_ERROR(Release(Bytes(0)));
      QUIRE_ASSIGN_OR_RETURN(block, Grow(rounded));
    }
    if (block != nullptr && block->size > rounded) {
      free_.Insert(blocks_.Split(block, rounded));
    }
  }
  if (block == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cuda-pool: cudaMallocAsync of %s: out of memory; %s of the pool's %s "
        "are in use",
        FormatBytes(size), FormatBytes(Bytes(allocated_)),
        FormatBytes(device_->malloc_bytes())));
  }
  blocks_.MarkLive(block);
  allocated_ += block->size;
  return DeviceAddress(block->address);
}

absl::StatusOr<PoolBlock*> CudaPoolPolicy::Grow(uint64_t size) {
  const uint64_t growth = RoundUp(size, kGrowth);
  const absl::StatusOr<DeviceAddress> address = device_->Malloc(Bytes(growth));
  if (absl::IsResourceExhausted(address.status())) return nullptr;
  QUIRE_RETURN_IF_ERROR(address.status());
  PoolBlock block;
  block.address = address->value();
  block.size = growth;
  return blocks_.Add(block);
}

absl::Status CudaPoolPolicy::Free(DeviceAddress address, StreamId /*stream*/) {
  device_->ChargeCall();
  PoolBlock* const block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("cuda-pool", address);
  allocated_ -= block->size;
  PoolBlock* const merged = blocks_.MergeFree(block, &free_);
  free_.Insert(merged);
  if (!merged->whole()) return absl::OkStatus();
  return Release(release_threshold_);
}

absl::Status CudaPoolPolicy::Release(Bytes keep) {
  if (device_->malloc_bytes() <= keep) return absl::OkStatus();
  for (PoolBlock* const block : free_.Spare()) {
    if (device_->malloc_bytes() <= keep) break;
    const DeviceAddress address(block->address);
    free_.Erase(block);
    blocks_.Remove(block);
    QUIRE_RETURN_IF_ERROR(device_->Free(address));
  }
  return absl::OkStatus();
}

PolicyUse CudaPoolPolicy::GetUse() const {
  return {Bytes(allocated_), device_->malloc_bytes(), device_->malloc_bytes()};
}

Bytes CudaPoolPolicy::CalculateLargest(StreamId /*stream*/) const {
  uint64_t unused =
      SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value();
  for (const PoolBlock* const block : free_.Spare()) unused += block->size;
  const PoolBlock* const block = free_.Largest(0);
  return Bytes(
      std::max(unused / kGrowth * kGrowth, block == nullptr ? 0 : block->size));
}

}  // namespace quire
