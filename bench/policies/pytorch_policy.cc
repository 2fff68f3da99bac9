#include "bench/policies/pytorch_policy.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kMinBlockSize = 512;
constexpr uint64_t kSmallSize = uint64_t{1} << 20;  // the largest small request
constexpr uint64_t kMinLargeAlloc = uint64_t{10} << 20;
constexpr uint64_t kRoundLarge = uint64_t{2} << 20;
// How much larger than the request an unsplit block may be.
constexpr uint64_t kMaxNonSplitRounding = uint64_t{20} << 20;

constexpr uint64_t RoundUp(uint64_t size, uint64_t step) {
  return (size + step - 1) / step * step;
}

uint64_t RoundUpPowerOfTwoDivision(uint64_t size, uint64_t divisions) {
  if (std::has_single_bit(size)) return size;
  const uint64_t floor = std::bit_floor(size);
  const uint64_t division = floor >> (std::bit_width(divisions) - 1);
  return division == 0 ? floor << 1 : RoundUp(size, division);
}

}  // namespace

uint64_t PyTorchPolicy::RoundSize(uint64_t size) const {
  const uint64_t divisions = DivisionsOf(options_.roundup_power2_divisions,
                                         std::max<uint64_t>(size, 1));
  if (divisions > 1 && size > kMinBlockSize * divisions) {
    return RoundUpPowerOfTwoDivision(size, divisions);
  }
  return std::max(kMinBlockSize, RoundUp(size, kMinBlockSize));
}

absl::StatusOr<DeviceAddress> PyTorchPolicy::Allocate(Bytes size,
                                                      StreamId stream) {
  QUIRE_RETURN_IF_ERROR(ProcessEvents());
  const auto out_of_memory = [&] {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "pytorch: tried to allocate %s; of %s, %s are allocated and %s "
        "reserved",
        FormatBytes(size), FormatBytes(device_->memory()),
        FormatBytes(Bytes(allocated_)), FormatBytes(Bytes(reserved_))));
  };
  if (size > kLargestRequest) return out_of_memory();
  const uint64_t rounded = RoundSize(size.value());
  Pool& pool = rounded <= kSmallSize ? small_ : large_;
  PoolBlock* block = TakeFreeBlock(pool, rounded, stream.value());
  if (block == nullptr) {
    QUIRE_RETURN_IF_ERROR(CollectGarbage());
    QUIRE_ASSIGN_OR_RETURN(block, NewBlock(pool, rounded, stream.value()));
  }
  if (block == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(block,
                           NewBlockAfterRelease(pool, rounded, stream.value()));
  }
  if (block == nullptr) return out_of_memory();
  if (ShouldSplit(block, rounded)) {
    PoolBlock* const rest = blocks_.Split(block, rounded);
    rest->stamp = pool.lookups;
    pool.free.Insert(rest);
  }
  blocks_.MarkLive(block);
  allocated_ += block->size;
  return DeviceAddress(block->address);
}

bool PyTorchPolicy::ShouldSplit(const PoolBlock* block, uint64_t size) const {
  const uint64_t rest = block->size - size;
  if (block->small || options_.expandable_segments) {
    return rest >= kMinBlockSize;
  }
  return size < options_.max_split_size.value() && rest > kSmallSize;
}

PoolBlock* PyTorchPolicy::TakeFreeBlock(Pool& pool, uint64_t size,
                                        uint64_t stream) {
  ++pool.lookups;
  auto found = pool.free.LowerBound(stream, size);
  if (found == pool.free.end() || found->stream != stream) return nullptr;
  if (options_.expandable_segments) {
    // A block that can grow is as large as it can grow to, so that it may be a
    // worse fit than larger ones.
    const auto growable_size = [](const PoolBlock* block) {
      const bool grows = block->behind != nullptr && !block->behind->mapped;
      return block->size + (grows ? block->behind->size : 0);
    };
    for (auto next = std::next(found);
         next != pool.free.end() && next->stream == stream &&
         growable_size(next->block) < growable_size(found->block);
         ++next) {
      found = next;
    }
  }
  PoolBlock* const block = found->block;
  const uint64_t max_split = options_.max_split_size.value();
  // What is not split does not serve those that would be split off it, and
  // others only where little is lost.
  if (size < max_split && block->size >= max_split) return nullptr;
  if (size >= max_split && block->size >= size + kMaxNonSplitRounding) {
    return nullptr;
  }
  pool.free.Erase(block);
  return block;
}

absl::StatusOr<PoolBlock*> PyTorchPolicy::NewBlock(Pool& pool, uint64_t size,
                                                   uint64_t stream) {
  absl::StatusOr<PoolBlock*> block = options_.expandable_segments
                                         ? GrowExpandable(pool, size, stream)
                                         : NewSegment(pool, size, stream);
  if (absl::IsResourceExhausted(block.status())) return nullptr;
  return block;
}

absl::StatusOr<PoolBlock*> PyTorchPolicy::NewSegment(Pool& pool, uint64_t size,
                                                     uint64_t stream) {
  const uint64_t segment = pool.small || size < kMinLargeAlloc
                               ? pool.granule
                               : RoundUp(size, kRoundLarge);
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         device_->Malloc(Bytes(segment)));
  reserved_ += segment;
  PoolBlock block;
  block.address = address.value();
  block.size = segment;
  block.stream = stream;
  block.small = pool.small;
  return blocks_.Add(block);
}

absl::StatusOr<PoolBlock*> PyTorchPolicy::NewBlockAfterRelease(
    Pool& pool, uint64_t size, uint64_t stream) {
  if (options_.max_split_size.value() != UINT64_MAX && !pool.small) {
    QUIRE_ASSIGN_OR_RETURN(const bool released,
                           ReleaseOversizedBlocks(size, stream));
    if (released) {
      QUIRE_ASSIGN_OR_RETURN(PoolBlock* const block,
                             NewBlock(pool, size, stream));
      if (block != nullptr) return block;
    }
  }
  QUIRE_RETURN_IF_ERROR(ReleaseCachedBlocks());
  return NewBlock(pool, size, stream);
}

absl::Status PyTorchPolicy::Free(DeviceAddress address, StreamId /*stream*/) {
  PoolBlock* const block = blocks_.TakeLive(address);
  if (block == nullptr) return NotAllocated("pytorch", address);
  allocated_ -= block->size;
  const auto recorded = recorded_.find(block);
  if (recorded == recorded_.end()) {
    PutBack(block);
    return absl::OkStatus();
  }
  // Whoever frees it has queued all work on the block's own stream before; the
  // others are waited for. Until then it is nobody's neighbour.
  block->live = true;
  const std::vector<StreamId> streams = std::move(recorded->second);
  recorded_.erase(recorded);
  for (const StreamId stream : streams) {
    QUIRE_ASSIGN_OR_RETURN(const EventId event,
                           device_->driver()->CreateEvent(DeviceId(0)));
    QUIRE_RETURN_IF_ERROR(device_->driver()->RecordEvent(event, stream));
    pending_.push_back({event, block});
    ++block->events;
  }
  return absl::OkStatus();
}

absl::Status PyTorchPolicy::RecordStream(DeviceAddress address,
                                         StreamId stream) {
  PoolBlock* const block = blocks_.FindLive(address);
  if (block == nullptr) return NotAllocated("pytorch", address);
  if (stream.value() == block->stream) return absl::OkStatus();
  std::vector<StreamId>& streams = recorded_[block];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
  return absl::OkStatus();
}

absl::Status PyTorchPolicy::ProcessEvents() {
  while (!pending_.empty()) {
    const PendingFree first = pending_.front();
    QUIRE_ASSIGN_OR_RETURN(const bool done,
                           device_->driver()->QueryEvent(first.event));
    if (!done) break;
    pending_.pop_front();
    QUIRE_RETURN_IF_ERROR(device_->driver()->DestroyEvent(first.event));
    if (--first.block->events > 0) continue;
    first.block->live = false;
    PutBack(first.block);
  }
  return absl::OkStatus();
}

void PyTorchPolicy::PutBack(PoolBlock* block) {
  Pool& pool = PoolOf(block);
  block = blocks_.MergeFree(block, &pool.free);
  block->stamp = pool.lookups;
  pool.free.Insert(block);
}

absl::Status PyTorchPolicy::CollectGarbage() {
  if (options_.garbage_collection_threshold <= 0) return absl::OkStatus();
  const auto threshold =
      static_cast<uint64_t>(options_.garbage_collection_threshold *
                            static_cast<double>(device_->memory().value()));
  if (reserved_ <= threshold) return absl::OkStatus();
  const uint64_t goal = reserved_ - threshold;
  // Segments of the large pool that are free as a whole; those not used for
  // longer than the mean go first, all of them, until enough are gone.
  std::vector<PoolBlock*> candidates;
  double total_age = 0;
  const auto age = [&](const PoolBlock* block) {
    return static_cast<double>(large_.lookups - block->stamp);
  };
  if (!options_.expandable_segments) candidates = large_.free.Spare();
  for (const PoolBlock* const block : candidates) total_age += age(block);
  uint64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < goal && freed && !candidates.empty()) {
    const double mean = total_age / static_cast<double>(candidates.size());
    freed = false;
    std::vector<PoolBlock*> younger;
    for (PoolBlock* const block : candidates) {
      if (age(block) < mean) {
        younger.push_back(block);
        continue;
      }
      freed = true;
      reclaimed += block->size;
      total_age -= age(block);
      QUIRE_RETURN_IF_ERROR(ReleaseSegment(block));
    }
    candidates = std::move(younger);
  }
  return absl::OkStatus();
}

absl::Status PyTorchPolicy::ReleaseSegment(PoolBlock* block) {
  PoolOf(block).free.Erase(block);
  const DeviceAddress address(block->address);
  reserved_ -= block->size;
  blocks_.Remove(block);
  return device_->Free(address);
}

absl::StatusOr<bool> PyTorchPolicy::ReleaseOversizedBlocks(uint64_t size,
                                                           uint64_t stream) {
  if (options_.expandable_segments) return false;
  const uint64_t limit = options_.max_split_size.value();
  const uint64_t wanted = std::max(size, limit);
  if (PoolBlock* const block = large_.free.BestFit(stream, wanted)) {
    QUIRE_RETURN_IF_ERROR(ReleaseSegment(block));
    return true;
  }
  uint64_t released = 0;
  while (released < wanted) {
    PoolBlock* const block = large_.free.Largest(stream);
    if (block == nullptr || block->size < limit) break;
    released += block->size;
    QUIRE_RETURN_IF_ERROR(ReleaseSegment(block));
  }
  return released >= wanted;
}

absl::Status PyTorchPolicy::ReleaseCachedBlocks() {
  for (const PendingFree& pending : pending_) {
    QUIRE_RETURN_IF_ERROR(device_->driver()->SynchronizeEvent(pending.event));
  }
  QUIRE_RETURN_IF_ERROR(ProcessEvents());
  for (Pool* const pool : {&large_, &small_}) {
    for (PoolBlock* const block : pool->free.Spare()) {
      QUIRE_RETURN_IF_ERROR(options_.expandable_segments
                                ? UnmapBlock(*pool, block)
                                : ReleaseSegment(block));
    }
  }
  return absl::OkStatus();
}

PolicyUse PyTorchPolicy::GetUse() const {
  return {Bytes(allocated_), Bytes(reserved_), Bytes(reserved_)};
}

Bytes PyTorchPolicy::CalculateLargest(StreamId stream) const {
  uint64_t largest = 0;
  if (const PoolBlock* block = large_.free.Largest(stream.value())) {
    largest = block->size;
  }
  if (const PoolBlock* block = small_.free.Largest(stream.value())) {
    largest = std::max(largest, std::min(block->size, kSmallSize));
  }
  if (options_.expandable_segments) {
    return std::max(Bytes(largest), CalculateLargestExpandable());
  }
  uint64_t released = 0;
  for (const Pool* const pool : {&large_, &small_}) {
    for (const PoolBlock* block : pool->free.Spare()) released += block->size;
  }
  const uint64_t segment =
      (SaturatingSubtract(device_->memory().value(), reserved_) + released) /
      kRoundLarge * kRoundLarge;
  // Below, a segment for it would be larger than itself.
  if (segment < large_.granule) return Bytes(largest);
  return Bytes(std::max(largest, segment));
}

}  // namespace quire
