#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status FreedAlready(DeviceAddress address) {
  return absl::FailedPreconditionError(
      absl::StrFormat("%#x was freed already", address.value()));
}

absl::Status NeverAllocated(DeviceAddress address) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%#x was never allocated here", address.value()));
}

}  // namespace

absl::Status DeviceAllocator::Impl::FreeSlow(DeviceAddress address,
                                             StreamId stream) {
  QUIRE_RETURN_IF_ERROR(CheckNotForked());
  const HookDeferral deferral(memory_);
  OwnerHeap* heap = nullptr;
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
    if (!block.span->large() && ServesItsOwner(*block.span->heap)) {
      heap = block.span->heap;
    }
  }
  ThreadCache* const cache = heap == nullptr ? nullptr : CacheOf(heap, stream);
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
  if (block.span->heap->asleep()) {
    FreeAsleep(block, stream);
  } else {
    QUIRE_RETURN_IF_ERROR(FreeBlock(block, stream, cache));
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::FreeBlock(Block block, StreamId stream,
                                              ThreadCache* cache) {
  OwnerHeap* const heap = block.span->heap;
  const DeviceAddress address = block.address();
  const uint64_t size = block.size();
  const uint64_t requested = RequestedOf(block);
  const SlotRecord was = block.record().load();
  if (was.special()) {
    const SpecialBlock& special = special_.find(address.value())->second;
    if (special.moving || special.pins > 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%#x is %s", address.value(),
          special.moving ? "being moved by a relocation pass" : "pinned"));
    }
  }
  if (cache == nullptr || !FreeInto(cache, block)) {
    QUIRE_RETURN_IF_ERROR(heap->kept_for_graphs()
                              ? CoolForGraphs(block, stream)
                              : CoolOnStreams(block, stream));
    if (was.special()) ForgetSpecial(address);
    CountFree(heap, size, requested);
  }
  if (options_.trace != nullptr) {
    Trace(TraceAction::kFree, heap->owner(), address, Bytes(requested), stream);
  }
  return absl::OkStatus();
}

bool DeviceAllocator::Impl::FreeInto(ThreadCache* cache, Block block) {
  const SlotRecord was = block.record().load();
  const Span& span = *block.span;
  if (!was.plainly_live_for(cache->stream_index())) return false;
  if (!cache->Grow(span.size_class, span.slot_size)) {
    DrainCache(cache, /*half=*/true);
    if (!cache->Grow(span.size_class, span.slot_size)) return false;
  }
  return cache->Free(span.size_class, span.slot_size,
                     {block.record(), block.address().value() |
                                          (cache->stream() == StreamId())},
                     was);
}

std::vector<StreamId> DeviceAllocator::Impl::StreamsOf(
    Block block, StreamId freed_on) const {
  const SlotRecord record = block.record().load();
  std::vector<StreamId> streams;
  if (freed_on != StreamId()) streams.push_back(freed_on);
  if (record.special()) {
    const auto& recorded = special_.find(block.address().value())->second;
    streams.insert(streams.end(), recorded.streams.begin(),
                   recorded.streams.end());
  }
  if (record.inherits()) {
    if (block.span->large()) {
      streams.push_back(block.span->stream);
    } else if (record.stream() < SlotRecord::kOtherStream) {
      streams.push_back(streams_[record.stream()]);
    } else {
      streams.insert(streams.end(),
                     streams_.begin() + block.record().first_other_stream(),
                     streams_.end());
    }
  }
  if (const auto* const released = ReleasedOn(*block.span->heap)) {
    streams.insert(streams.end(), released->begin(), released->end());
  }
  KeepDistinct(&streams);
  return streams;
}

void DeviceAllocator::Impl::KeepDistinct(std::vector<StreamId>* streams) {
  std::sort(streams->begin(), streams->end());
  streams->erase(std::unique(streams->begin(), streams->end()), streams->end());
  std::erase(*streams, StreamId());
}

absl::Status DeviceAllocator::Impl::CoolOnStream(Block block, StreamId stream) {
  Span* const span = block.span;
  OwnerHeap* const heap = span->heap;
  const SlotRecord was = block.record().load();
  if (stream == StreamId()) {
    block.record().store(was.Freed());
    heap->Free(block);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(StreamFreeList* const list, GetFreeList(heap, stream));
  block.record().store(was.Freed());
  PushCooling(heap, list, block);
  return absl::OkStatus();
}

// A batch is closed when the next free comes, not with the free that fills it:
// memory that goes round on one stream needs no event. As long as there is only
// one, nobody else waits for its memory, and a batch is closed when somebody
// does. Where the driver
// refuses, the batch stays open and the next free, or the next request for this
// memory, tries again.
void DeviceAllocator::Impl::PushCooling(OwnerHeap* heap, StreamFreeList* list,
                                        Block block) {
  const bool each = options_.fence_batch.zero();
  (void)IndexOfStream(list->stream());
  if (!each && streams_.size() > 1 &&
      list->open_bytes() >= options_.fence_batch.value()) {
    (void)list->CloseBatch();
  }
  heap->CoolIn(list, block, /*noted=*/options_.trace != nullptr);
  if (each) (void)list->CloseBatch();
}

// Streams that were recorded, or that the block inherits, may have been
// destroyed since: their work is done. The one that the caller names must be
// known.
absl::Status DeviceAllocator::Impl::CoolOnStreams(Block block,
                                                  StreamId freed_on) {
  std::vector<StreamId> streams = StreamsOf(block, freed_on);
  if (streams.size() <= 1) {
    const StreamId only = streams.empty() ? StreamId() : streams.front();
    const absl::Status status = CoolOnStream(block, only);
    if (!absl::IsNotFound(status) || only == freed_on) return status;
    return CoolOnStream(block, StreamId());
  }
  if (freed_on != StreamId() &&
      block.span->heap->FindFreeList(freed_on) == nullptr) {
    QUIRE_RETURN_IF_ERROR(CheckStream(freed_on));
  }
  return CoolTogether(block, std::move(streams));
}

absl::Status DeviceAllocator::Impl::CoolTogether(
    Block block, std::vector<StreamId> streams) {
  std::optional<Fence> fence;
  // Poll records it once none of them is captured.
  if (std::none_of(streams.begin(), streams.end(),
                   [this](StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                       mutex_) { return FindCapture(stream) != nullptr; })) {
    QUIRE_ASSIGN_OR_RETURN(fence, RecordFence(streams));
  }
  block.record().store(block.record().load().Freed());
  block.span->heap->Cool(block);
  shared_cooling_.push_back({block, std::move(fence), std::move(streams)});
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::RecordStream(DeviceAddress address,
                                                 StreamId stream) {
  if (stream == StreamId()) {
    return absl::InvalidArgumentError("RecordStream without a stream");
  }
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
  if (!WasThere(stream)) QUIRE_RETURN_IF_ERROR(CheckStream(stream));
  std::vector<StreamId>& streams = special_[address.value()].streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
  block.record().store(block.record().load().WithSpecial(true));
  Trace(TraceAction::kRecordStream, block.span->heap->owner(), address,
        Bytes(RequestedOf(block)), stream);
  return absl::OkStatus();
}

// What lies at the address, by what is still known of it: the table of
// allocator.h.
absl::StatusOr<Block> DeviceAllocator::Impl::LocateLive(
    DeviceAddress address) const {
  if (spans_ == nullptr) return NeverAllocated(address);
  Span* span = spans_->Find(address);
  // Somebody else's range, where this allocator may have had one before.
  if (span == nullptr && memory_->Find(address) != nullptr) {
    return NeverAllocated(address);
  }
  if (span != nullptr && span->marker) span = span->heap->FindLarge(address);
  if (span == nullptr) {
    return spans_->WasUsed(address) ? FreedAlready(address)
                                    : NeverAllocated(address);
  }
  const std::optional<uint32_t> slot = span->SlotAround(address.value());
  if (!slot) return NeverAllocated(address);
  const Block block = {span, *slot};
  switch (block.record().load().use()) {
    case SlotUse::kLive:
      break;
    case SlotUse::kUnused:
      return NeverAllocated(address);
    case SlotUse::kFreed:
      return FreedAlready(address);
  }
  if (block.address() == address) return block;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%#x is not the start of an allocation: it is byte %u of the one of %u "
      "bytes at %#x",
      address.value(), address.value() - block.address().value(),
      RequestedOf(block), block.address().value()));
}

bool DeviceAllocator::Impl::WasThere(StreamId stream) const {
  return std::any_of(
      caches_.begin(), caches_.end(),
      [stream](const auto& cache) { return cache->stream() == stream; });
}

absl::Status DeviceAllocator::Impl::CheckStream(StreamId stream) const {
  // It was there when its capture began.
  if (FindCapture(stream) != nullptr) return absl::OkStatus();
  return Fence::Record(memory_->driver(), memory_->device(),
                       std::span(&stream, 1))
      .status();
}

absl::StatusOr<StreamFreeList*> DeviceAllocator::Impl::GetFreeList(
    OwnerHeap* heap, StreamId stream) {
  if (StreamFreeList* const list = heap->FindFreeList(stream)) return list;
  // A list waits for nothing on a stream that is gone, so a wrong name must not
  // get one.
  QUIRE_RETURN_IF_ERROR(CheckStream(stream));
  return MakeFreeList(heap, stream);
}

StreamFreeList* DeviceAllocator::Impl::MakeFreeList(OwnerHeap* heap,
                                                    StreamId stream) const {
  StreamFreeList* const list = heap->MakeFreeList(stream);
  if (FindCapture(stream) != nullptr) list->set_captured(true);
  return list;
}

absl::StatusOr<Fence> DeviceAllocator::Impl::RecordFence(
    std::span<const StreamId> streams) const {
  for (const StreamId stream : streams) {
    if (FindCapture(stream) == nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("stream %u is captured into a graph", stream.value()));
  }
  return RecordOnLiveStreams(memory_->driver(), memory_->device(), streams);
}

}  // namespace quire
