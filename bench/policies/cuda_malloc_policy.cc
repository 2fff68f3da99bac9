#include "bench/policies/cuda_malloc_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStep = 512;
constexpr uint64_t kLargestShared = uint64_t{1} << 20;

}  // namespace

absl::StatusOr<DeviceAddress> CudaMallocPolicy::Allocate(Bytes size,
                                                         StreamId /*stream*/) {
  if (size.value() <= kLargestShared) return AllocateSmall(size.value());
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address, device_->Malloc(size));
  PoolBlock block;
  block.address = address.value();
  // Malloc succeeded with the same sum.
  block.size = CheckedAlignUp(size, SimulatedDevice::kPage)->value();
  blocks_.MarkLive(blocks_.Add(block));
  allocated_ += block.size;
  return address;
}

absl::StatusOr<DeviceAddress> CudaMallocPolicy::AllocateSmall(uint64_t size) {
  const uint64_t rounded = (size + kStep - 1) / kStep * kStep;
  PoolBlock* block = free_.BestFit(0, rounded);
  if (block != nullptr) {
    device_->ChargeCall();
    free_.Erase(block);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                           device_->Malloc(SimulatedDevice::kPage));
    PoolBlock page;
    page.address = address.value();
    page.size = SimulatedDevice::kPage.value();
    page.small = true;
    block = blocks_.Add(page);
  }
  if (block->size > rounded) free_.Insert(blocks_.Split(block, rounded));
  blocks_.MarkLive(block);
  allocated_ += block->size;
  return DeviceAddress(block->address);
}

absl::Status CudaMallocPolicy::Free(DeviceAddress address,
                                    StreamId /*stream*/) {
  PoolBlock* block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("cudamalloc", address);
  allocated_ -= block->size;
  if (block->small) {
    block = blocks_.MergeFree(block, &free_);
    if (!block->whole()) {
      device_->ChargeCall();
      free_.Insert(block);
      return absl::OkStatus();
    }
  }
  const DeviceAddress segment(block->address);
  blocks_.Remove(block);
  return device_->Free(segment);
}

PolicyUse CudaMallocPolicy::GetUse() const {
  return {Bytes(allocated_), device_->malloc_bytes(), device_->malloc_bytes()};
}

Bytes CudaMallocPolicy::CalculateLargest(StreamId /*stream*/) const {
  const PoolBlock* const shared = free_.Largest(0);
  const uint64_t pages =
      SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value() /
      SimulatedDevice::kPage.value() * SimulatedDevice::kPage.value();
  const uint64_t small =
      shared == nullptr ? 0 : std::min(shared->size, kLargestShared);
  return Bytes(std::max(pages, small));
}

}  // namespace quire
