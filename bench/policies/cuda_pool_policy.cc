#include "bench/policies/cuda_pool_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStep = 512;
constexpr uint64_t kPieceBytes = CudaPoolPolicy::kPiece.value();

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
      QUIRE_RETURN_IF_ERROR(TrimTo(Bytes(0)));
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
  const uint64_t growth = RoundUp(size, kPieceBytes);
  const absl::StatusOr<DeviceAddress> address =
      device_->MallocPieces(Bytes(growth), kPiece);
  if (absl::IsResourceExhausted(address.status())) return nullptr;
  QUIRE_RETURN_IF_ERROR(address.status());
  PoolBlock block;
  block.address = address->value();
  block.size = growth;
  block.segment = block.address;
  return blocks_.Add(block);
}

absl::Status CudaPoolPolicy::Free(DeviceAddress address, StreamId /*stream*/) {
  device_->ChargeCall();
  PoolBlock* const block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("cuda-pool", address);
  allocated_ -= block->size;
  PoolBlock* const merged = blocks_.MergeFree(block, &free_);
  free_.Insert(merged);
  return TrimTo(release_threshold_);
}

CudaPoolPolicy::Pieces CudaPoolPolicy::PiecesOf(const PoolBlock& block) {
  const uint64_t begin =
      block.segment + RoundUp(block.address - block.segment, kPieceBytes);
  const uint64_t end =
      block.segment + (block.end() - block.segment) / kPieceBytes * kPieceBytes;
  return {begin, std::max(begin, end)};
}

absl::Status CudaPoolPolicy::TrimTo(Bytes keep) {
  if (device_->malloc_bytes() <= keep) return absl::OkStatus();
  for (PoolBlock* const block : free_.Spare()) {
    const uint64_t over =
        SaturatingSubtract(device_->malloc_bytes(), keep).value();
    if (over == 0) break;
    Pieces pieces = PiecesOf(*block);
    if (pieces.begin == pieces.end) continue;
    if (over < pieces.end - pieces.begin) {
      pieces.begin = pieces.end - RoundUp(over, kPieceBytes);
    }
    QUIRE_RETURN_IF_ERROR(Release(block, pieces));
  }
  return absl::OkStatus();
}

absl::Status CudaPoolPolicy::Release(PoolBlock* block, const Pieces& pieces) {
  free_.Erase(block);
  PoolBlock* hole = block;
  if (block->address < pieces.begin) {
    hole = blocks_.Split(block, pieces.begin - block->address);
    free_.Insert(block);
  }
  if (pieces.end < hole->end()) {
    free_.Insert(blocks_.Split(hole, pieces.end - pieces.begin));
  }
  hole->mapped = false;
  // Holes are in no list: merging takes them in where they lie.
  hole = blocks_.MergeFree(hole, &free_);
  if (hole->whole()) blocks_.Remove(hole);
  return device_->FreePieces(DeviceAddress(pieces.begin),
                             Bytes(pieces.end - pieces.begin));
}

PolicyUse CudaPoolPolicy::GetUse() const {
  return {Bytes(allocated_), device_->malloc_bytes(), device_->malloc_bytes()};
}

Bytes CudaPoolPolicy::CalculateLargest(StreamId /*stream*/) const {
  uint64_t unused =
      SaturatingSubtract(device_->memory(), device_->malloc_bytes()).value();
  for (const PoolBlock* const block : free_.Spare()) {
    const Pieces pieces = PiecesOf(*block);
    unused += pieces.end - pieces.begin;
  }
  const PoolBlock* const block = free_.Largest(0);
  return Bytes(std::max(unused / kPieceBytes * kPieceBytes,
                        block == nullptr ? 0 : block->size));
}

}  // namespace quire
