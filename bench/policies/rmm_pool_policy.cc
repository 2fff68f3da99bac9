#include "bench/policies/rmm_pool_policy.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStep = 256;

uint64_t RoundUp(uint64_t size) { return (size + kStep - 1) / kStep * kStep; }

}  // namespace

absl::StatusOr<DeviceAddress> RmmPoolPolicy::Allocate(Bytes size,
                                                      StreamId stream) {
  if (!initialized_) {
    initialized_ = true;
    if (!options_.initial_pool_size.zero()) {
      QUIRE_ASSIGN_OR_RETURN(
          PoolBlock* const block,
          NewBlock(RoundUp(options_.initial_pool_size.value()), stream));
      if (block != nullptr) InsertFree(block);
    }
  }
  PoolBlock* block = nullptr;
  const uint64_t rounded = size <= kLargestRequest ? RoundUp(size.value()) : 0;
  if (rounded > 0) {
    QUIRE_ASSIGN_OR_RETURN(block, TakeFreeBlock(rounded, stream));
    if (block == nullptr) {
      QUIRE_ASSIGN_OR_RETURN(block, Grow(rounded, stream));
    }
  }
  if (block == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "rmm-pool: maximum pool size exceeded (failed to allocate %s); the "
        "pool has %s",
        FormatBytes(size), FormatBytes(Bytes(pool_size_))));
  }
  if (block->size > rounded) InsertFree(blocks_.Split(block, rounded));
  block->stream = stream.value();
  blocks_.MarkLive(block);
  allocated_ += block->size;
  return DeviceAddress(block->address);
}

absl::StatusOr<PoolBlock*> RmmPoolPolicy::TakeFreeBlock(uint64_t size,
                                                        StreamId stream) {
  if (PoolBlock* const block = free_.BestFit(stream.value(), size)) {
    EraseFree(block);
    return block;
  }
  if (const auto other = largest_.FindFirst(0, size)) {
    QUIRE_RETURN_IF_ERROR(
        device_->driver()->WaitEvent(stream, events_.at(*other)));
    PoolBlock* const block = free_.BestFit(*other, size);
    EraseFree(block);
    return block;
  }
  return MergeOthers(size, stream);
}

absl::StatusOr<PoolBlock*> RmmPoolPolicy::MergeOthers(uint64_t size,
                                                      StreamId stream) {
  // In order of streams, as events are; those without a free block have nothing
  // to give.
  for (auto other = largest_.FindFirst(0, 1); other;
       other = largest_.FindFirst(*other + 1, 1)) {
    if (*other == stream.value()) continue;
    QUIRE_RETURN_IF_ERROR(MergeInto(stream, StreamId(*other)));
    if (PoolBlock* const block = free_.BestFit(stream.value(), size)) {
      EraseFree(block);
      return block;
    }
  }
  return nullptr;
}

absl::Status RmmPoolPolicy::MergeInto(StreamId stream, StreamId other) {
  std::vector<PoolBlock*> moved;
  for (auto it = free_.LowerBound(other.value(), 0);
       it != free_.end() && it->stream == other.value(); ++it) {
    moved.push_back(it->block);
  }
  QUIRE_RETURN_IF_ERROR(
      device_->driver()->WaitEvent(stream, events_.at(other.value())));
  // Those whose turn has not come are nobody's free neighbours.
  for (PoolBlock* const block : moved) {
    free_.Erase(block);
    block->stream = stream.value();
    block->live = true;
  }
  for (PoolBlock* const block : moved) {
    block->live = false;
    free_.Insert(blocks_.MergeFree(block, &free_));
  }
  NoteLargest(stream.value());
  NoteLargest(other.value());
  return absl::OkStatus();
}

uint64_t RmmPoolPolicy::SizeToGrow(uint64_t size) const {
  if (options_.maximum_pool_size.zero()) return std::max(size, pool_size_);
  const uint64_t left = RoundUp(
      SaturatingSubtract(options_.maximum_pool_size.value(), pool_size_));
  return size <= left ? std::max(size, left / 2) : 0;
}

absl::StatusOr<PoolBlock*> RmmPoolPolicy::Grow(uint64_t size, StreamId stream) {
  for (uint64_t growth = SizeToGrow(size); growth >= size;
       growth = std::max(size, growth / 2)) {
    QUIRE_ASSIGN_OR_RETURN(PoolBlock* const block, NewBlock(growth, stream));
    if (block != nullptr || growth == size) return block;
  }
  return nullptr;
}

absl::StatusOr<PoolBlock*> RmmPoolPolicy::NewBlock(uint64_t size,
                                                   StreamId stream) {
  const absl::StatusOr<DeviceAddress> address = device_->Malloc(Bytes(size));
  if (absl::IsResourceExhausted(address.status())) return nullptr;
  QUIRE_RETURN_IF_ERROR(address.status());
  pool_size_ += size;
  PoolBlock block;
  block.address = address->value();
  block.size = size;
  block.stream = stream.value();
  return blocks_.Add(block);
}

absl::StatusOr<EventId> RmmPoolPolicy::EventOf(StreamId stream) {
  const auto found = events_.find(stream.value());
  if (found != events_.end()) return found->second;
  QUIRE_ASSIGN_OR_RETURN(const EventId event,
                         device_->driver()->CreateEvent(DeviceId(0)));
  events_[stream.value()] = event;
  return event;
}

absl::Status RmmPoolPolicy::Free(DeviceAddress address, StreamId stream) {
  PoolBlock* const block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("rmm-pool", address);
  allocated_ -= block->size;
  block->stream = stream.value();
  QUIRE_ASSIGN_OR_RETURN(const EventId event, EventOf(stream));
  InsertFree(blocks_.MergeFree(block, &free_));
  return device_->driver()->RecordEvent(event, stream);
}

void RmmPoolPolicy::InsertFree(PoolBlock* block) {
  free_.Insert(block);
  NoteLargest(block->stream);
}

void RmmPoolPolicy::EraseFree(PoolBlock* block) {
  free_.Erase(block);
  NoteLargest(block->stream);
}

void RmmPoolPolicy::NoteLargest(uint64_t stream) {
  if (!events_.contains(stream)) return;
  const PoolBlock* const largest = free_.Largest(stream);
  largest_.Set(stream, largest == nullptr ? 0 : largest->size);
}

PolicyUse RmmPoolPolicy::GetUse() const {
  return {Bytes(allocated_), device_->malloc_bytes(), device_->malloc_bytes()};
}

Bytes RmmPoolPolicy::CalculateLargest(StreamId /*stream*/) const {
  // What lists of different streams hold side by side merges before the pool
  // grows.
  uint64_t largest = 0;
  for (const FreeBlocks::Entry& entry : free_) {
    uint64_t run = 0;
    for (const PoolBlock* block = entry.block; block != nullptr && !block->live;
         block = block->behind) {
      run += block->size;
    }
    largest = std::max(largest, run);
  }
  const uint64_t device =
      SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value() /
      SimulatedDevice::kPage.value() * SimulatedDevice::kPage.value();
  const uint64_t growth =
      options_.maximum_pool_size.zero()
          ? device
          : std::min(device,
                     SaturatingSubtract(options_.maximum_pool_size.value(),
                                        pool_size_));
  return Bytes(std::max(largest, growth));
}

}  // namespace quire
