#include <algorithm>
#include <utility>

#include "alloc/allocator_impl.h"

namespace quire {

// ---- What has cooled --------------------------------------------------------

void DeviceAllocator::Impl::CloseBatches() {
  for (const auto& list : free_lists_) {
    // A batch that stays open is nobody's but its stream's.
    (void)list->CloseBatch();
  }
}

void DeviceAllocator::Impl::Poll() {
  std::vector<Block> freed;
  for (const auto& list : free_lists_) list->Poll(&freed);
  std::erase_if(shared_cooling_, [&freed](const SharedCooling& cooling) {
    if (!cooling.fence.IsComplete().value_or(false)) return false;
    freed.push_back(cooling.block);
    return true;
  });
  for (const Block& block : freed) heap_.Free(block);
  // Programs come and go with their streams.
  std::erase_if(free_lists_, [](const auto& list) { return list->empty(); });
  recent_list_ = nullptr;
}

bool DeviceAllocator::Impl::CanAwaitSlot(int least) const {
  for (const auto& list : free_lists_) {
    if (list->progress() == StreamFreeList::Progress::kWaiting &&
        list->HoldsSlots(least)) {
      return true;
    }
  }
  for (const SharedCooling& cooling : shared_cooling_) {
    if (cooling.block.span->size_class >= least &&
        cooling.fence.IsComplete().ok()) {
      return true;
    }
  }
  return false;
}

// ---- Giving back ------------------------------------------------------------

PageCount DeviceAllocator::Impl::Reclaim(PageCount wanted) {
  MutexLock lock(&mutex_);
  Poll();
  const uint64_t given = heap_.ReleaseFree(wanted.value());
  CheckAfterMutation();
  return PageCount(given);
}

PageCount DeviceAllocator::Impl::ReclaimCooling(PageCount wanted) {
  MutexLock lock(&mutex_);
  uint64_t given = 0;
  // So many of each stream, since nobody knows which of them is done first.
  for (const auto& list : free_lists_) {
    given += ReleaseCoolingRanges(list.get(), wanted.value());
  }
  given += ReleaseSharedRanges(wanted.value());
  // A slab may be of several streams, so that the slowest holds it up.
  if (given < wanted.value()) {
    given += ReleaseCoolingSlabs(wanted.value() - given);
  }
  CheckAfterMutation();
  return PageCount(given);
}

PageCount DeviceAllocator::Impl::Reclaimable() const {
  MutexLock lock(&mutex_);
  return PageCount(heap_.reclaimable_pages());
}

std::string DeviceAllocator::Impl::ReclaimerName() const {
  return "freed allocations";
}

uint64_t DeviceAllocator::Impl::ReleaseCoolingRanges(StreamFreeList* list,
                                                     uint64_t wanted) {
  std::vector<Span*> oldest_first(list->ranges().spans().begin(),
                                  list->ranges().spans().end());
  std::sort(oldest_first.begin(), oldest_first.end(),
            [](const Span* a, const Span* b) { return a->batch < b->batch; });
  uint64_t given = 0;
  for (Span* const span : oldest_first) {
    if (given >= wanted) break;
    const std::optional<Fence> fence = list->FenceOf(span);
    if (!fence) continue;
    given += span->pages;
    list->RemoveRange(span);
    heap_.Release(span, *fence);
  }
  return given;
}

uint64_t DeviceAllocator::Impl::ReleaseSharedRanges(uint64_t wanted) {
  uint64_t given = 0;
  const auto release = [&](const SharedCooling& cooling)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                             Span* const span = cooling.block.span;
                             if (!span->large() || given >= wanted)
                               return false;
                             given += span->pages;
                             heap_.Release(span, cooling.fence);
                             return true;
                           };
  std::erase_if(shared_cooling_, release);
  return given;
}

uint64_t DeviceAllocator::Impl::ReleaseCoolingSlabs(uint64_t wanted) {
  uint64_t given = 0;
  for (size_t i = 0; i < heap_.spans().size() && given < wanted; ++i) {
    Span* const span = heap_.spans()[i].get();
    if (span == nullptr || span->free() || span->large() ||
        !span->reclaimable()) {
      continue;
    }
    const std::optional<Fence> fence = WithdrawSlab(span);
    if (!fence) continue;
    given += span->pages;
    heap_.Release(span, *fence);
  }
  return given;
}

std::optional<Fence> DeviceAllocator::Impl::WithdrawSlab(const Span* slab) {
  std::vector<StreamFreeList*> lists;
  std::vector<StreamId> streams;
  for (const auto& list : free_lists_) {
    if (list->CountSlots(slab) == 0) continue;
    lists.push_back(list.get());
    streams.push_back(list->stream());
  }
  const bool one_list_has_all =
      lists.size() == 1 &&
      lists.front()->CountSlots(slab) == slab->slab->cooling_count();
  if (!one_list_has_all) {
    for (const SharedCooling& cooling : shared_cooling_) {
      if (cooling.block.span != slab) continue;
      streams.insert(streams.end(), cooling.streams.begin(),
                     cooling.streams.end());
    }
    std::sort(streams.begin(), streams.end());
    streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  }
  // Fences cannot be joined, so where several are due a new one covers them: it
  // comes later than it must, which only costs time.
  std::optional<Fence> fence;
  if (one_list_has_all) {
    fence = lists.front()->FenceOf(slab);
  } else if (absl::StatusOr<Fence> all = RecordOnLiveStreams(
                 memory_->driver(), memory_->device(), streams);
             all.ok()) {
    fence = *std::move(all);
  }
  if (!fence) return std::nullopt;
  for (StreamFreeList* const list : lists) list->RemoveSlab(slab);
  std::erase_if(shared_cooling_, [slab](const SharedCooling& cooling) {
    return cooling.block.span == slab;
  });
  return fence;
}

Bytes DeviceAllocator::Impl::Trim(Bytes keep) {
  MutexLock lock(&mutex_);
  Poll();
  uint64_t given = 0;
  while (heap_.accounts().cached_bytes > keep.value()) {
    const Bytes beyond(heap_.accounts().cached_bytes - keep.value());
    const uint64_t pages =
        heap_.ReleaseFree(PagesFor(beyond, memory_->page_size()).value());
    if (pages == 0) break;
    given += pages;
  }
  CheckAfterMutation();
  return CheckedBytes(PageCount(given), memory_->page_size())
      .value_or(Bytes(UINT64_MAX));
}

// ---- The end ----------------------------------------------------------------

DeviceAllocator::Impl::~Impl() {
  memory_->RemoveReclaimer(this);
  MutexLock lock(&mutex_);
  std::vector<StreamId> streams;
  for (const auto& list : free_lists_) streams.push_back(list->stream());
  for (const SharedCooling& cooling : shared_cooling_) {
    streams.insert(streams.end(), cooling.streams.begin(),
                   cooling.streams.end());
  }
  for (const auto& [address, recorded] : recorded_streams_) {
    streams.insert(streams.end(), recorded.begin(), recorded.end());
  }
  for (const auto& span : heap_.spans()) {
    if (span == nullptr || span->free()) continue;
    for (uint32_t i = 0; i < span->slab->slot_count(); ++i) {
      const Slot& slot = span->slab->slot(i);
      if (slot.use == SlotUse::kLive) streams.push_back(slot.stream);
    }
  }
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  std::erase(streams, StreamId());
  const absl::StatusOr<Fence> fence =
      RecordOnLiveStreams(memory_->driver(), memory_->device(), streams);
  if (!fence.ok()) {
    // Without a fence there is only waiting.
    for (const StreamId stream : streams) {
      (void)memory_->driver()->SynchronizeStream(stream);
    }
  }
  for (const auto& span : heap_.spans()) {
    if (span == nullptr) continue;
    memory_->ReleaseRange(span->range, fence.value_or(Fence()));
  }
}

}  // namespace quire
