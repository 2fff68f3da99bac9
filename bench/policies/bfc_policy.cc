#include "bench/policies/bfc_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStep = 256;
constexpr uint64_t kFirstRegion = uint64_t{2} << 20;
// The most that is lost at the end of a chunk that is not split.
constexpr uint64_t kMaxInternalFragmentation = uint64_t{128} << 20;

uint64_t RoundUp(uint64_t size) { return (size + kStep - 1) / kStep * kStep; }

}  // namespace

BfcPolicy::BfcPolicy(SimulatedDevice* device, const BfcOptions& options)
    : device_(device),
      options_(options),
      next_region_(options.preallocate > 0
                       ? RoundUp(static_cast<uint64_t>(
                             options.preallocate *
                             static_cast<double>(device->memory().value())))
                       : kFirstRegion) {}

absl::StatusOr<DeviceAddress> BfcPolicy::Allocate(Bytes size,
                                                  StreamId /*stream*/) {
  PoolBlock* block = nullptr;
  if (size <= kLargestRequest) {
    const uint64_t rounded = RoundUp(size.value());
    block = free_.BestFit(0, rounded);
    if (block != nullptr) {
      free_.Erase(block);
    } else {
      QUIRE_ASSIGN_OR_RETURN(block, NewRegion(rounded));
    }
    if (block != nullptr &&
        (block->size >= rounded * 2 ||
         block->size - rounded >= kMaxInternalFragmentation)) {
      free_.Insert(blocks_.Split(block, rounded));
    }
  }
  if (block == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "bfc: ran out of memory trying to allocate %s; %s of %s in regions are "
        "in use",
        FormatBytes(size), FormatBytes(Bytes(allocated_)),
        FormatBytes(device_->malloc_bytes())));
  }
  blocks_.MarkLive(block);
  allocated_ += block->size;
  return DeviceAddress(block->address);
}

absl::StatusOr<PoolBlock*> BfcPolicy::NewRegion(uint64_t size) {
  const bool fixed = options_.preallocate > 0;
  if (fixed && !device_->malloc_bytes().zero()) return nullptr;
  const uint64_t available =
      SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value() /
      kStep * kStep;
  if (size > available || (fixed && size > next_region_)) return nullptr;
  bool grown = false;
  while (size > next_region_) {
    next_region_ *= 2;
    grown = true;
  }
  uint64_t region = std::min(next_region_, available);
  absl::StatusOr<DeviceAddress> address = device_->Malloc(Bytes(region));
  while (absl::IsResourceExhausted(address.status()) && !fixed) {
    region = RoundUp(region / 10 * 9);
    if (region < size) return nullptr;
    address = device_->Malloc(Bytes(region));
  }
  if (absl::IsResourceExhausted(address.status())) return nullptr;
  QUIRE_RETURN_IF_ERROR(address.status());
  if (!grown && !fixed) next_region_ *= 2;
  PoolBlock block;
  block.address = address->value();
  block.size = region;
  return blocks_.Add(block);
}

absl::Status BfcPolicy::Free(DeviceAddress address, StreamId /*stream*/) {
  PoolBlock* const block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("bfc", address);
  allocated_ -= block->size;
  free_.Insert(blocks_.MergeFree(block, &free_));
  return absl::OkStatus();
}

PolicyUse BfcPolicy::GetUse() const {
  return {Bytes(allocated_), device_->malloc_bytes(), device_->malloc_bytes()};
}

Bytes BfcPolicy::CalculateLargest(StreamId /*stream*/) const {
  const PoolBlock* const block = free_.Largest(0);
  uint64_t region = 0;
  if (options_.preallocate <= 0) {
    region =
        SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value() /
        SimulatedDevice::kPage.value() * SimulatedDevice::kPage.value();
  } else if (device_->malloc_bytes().zero()) {
    region = next_region_;
  }
  return Bytes(std::max(region, block == nullptr ? 0 : block->size));
}

}  // namespace quire
