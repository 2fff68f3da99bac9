#include <algorithm>
#include <iterator>
#include <utility>

#include "alloc/allocator_impl.h"

namespace quire {
namespace {

// Before a page is made, caches are emptied: but only where so many allocations
// went by for each slot that was in them the last time, so that those bear the
// cost; or where what was made since, and is about to be, comes to this part of
// what they hold, which bounds what it costs to leave them as they are, unless
// caches are many and a few allocations have led here again: they would take
// the last slots from one another all the time; or where they hold more than so
// much and half of all slots. Else memory that goes from one class, thread or
// stream to another in each round would come to lie in the caches of whoever
// freed it last, and a part of it be made anew each time.
constexpr uint64_t kAllocationsPerFlushedSlot = 8;
constexpr uint64_t kCachedPerByteMade = 16;
constexpr uint64_t kFlushedSlotsPerAllocation = 4;
constexpr size_t kFewCaches = 8;
constexpr uint64_t kCachedAlways = 16 << 20;

// A class without a free slot takes what others have cached beyond what misses
// bring: more than so many slots, or so many bytes. To stop a thread costs
// little beside what these save; but caches that have just what their threads
// need must not take it from one another all the time.
constexpr uint64_t kSlotsOfACache = 64;
constexpr uint64_t kBytesOfACache = 4 << 20;
// Such a cache keeps so much of them, but not more slots than that: emptied, it
// would come back for all of them at once.
constexpr uint64_t kBytesLeftInACache = 256 << 10;

}  // namespace

// ---- The caches of threads --------------------------------------------------

// The state is the same before and after, but for the place of free slots.
bool DeviceAllocator::Impl::FlushCaches() const {
  last_flush_ = {mapped_.made_bytes, CachedAllocations(), 0};
  if (CachedByThreads() == 0) return false;
  StopCaches(caches_);
  for (const auto& cache : caches_) {
    last_flush_.slots += DrainCache(cache.get(), /*half=*/false);
  }
  ResumeCaches(caches_);
  return true;
}

bool DeviceAllocator::Impl::FlushCachesNowAndThen(Bytes about_to_make) const {
  const uint64_t made =
      mapped_.made_bytes - last_flush_.made_bytes + about_to_make.value() / 16;
  const uint64_t allocations = CachedAllocations() - last_flush_.allocations;
  const uint64_t cached = CachedByThreads();
  uint64_t slots = 0;
  for (const auto& heap : heaps_) slots += heap->slot_bytes();
  if (allocations < last_flush_.slots * kAllocationsPerFlushedSlot &&
      (made < cached / kCachedPerByteMade ||
       (caches_.size() > kFewCaches &&
        allocations < last_flush_.slots / kFlushedSlotsPerAllocation)) &&
      cached <= kCachedAlways + slots / 2) {
    return false;
  }
  return FlushCaches();
}

bool DeviceAllocator::Impl::FlushClass(const OwnerHeap& heap,
                                       int size_class) const {
  const uint64_t slot_size = slot_sizes_[size_class];
  const uint64_t most = std::min(kSlotsOfACache, kBytesOfACache / slot_size);
  const uint64_t left = std::min(most, kBytesLeftInACache / slot_size);
  std::vector<ThreadCache*> holders;
  for (const auto& cache : caches_) {
    if (cache->heap() == &heap && cache->CountOf(size_class) > most) {
      holders.push_back(cache.get());
    }
  }
  if (holders.empty()) return false;
  StopCaches(holders);
  for (ThreadCache* const cache : holders) {
    std::vector<CachedSlot> drained;
    cache->DrainClass(size_class, slot_size,
                      static_cast<uint32_t>(cache->CountOf(size_class) - left),
                      &drained);
    PutBack(*cache, drained);
  }
  ResumeCaches(holders);
  return true;
}

uint64_t DeviceAllocator::Impl::CachedAllocations() const {
  uint64_t allocations = 0;
  for (const auto& cache : caches_) {
    allocations += cache->counters().allocations.load();
  }
  return allocations;
}

uint64_t DeviceAllocator::Impl::CachedByThreads() const {
  uint64_t cached = 0;
  for (const auto& cache : caches_) cached += cache->cached_bytes();
  return cached;
}

uint64_t DeviceAllocator::Impl::DrainCache(ThreadCache* cache,
                                           bool half) const {
  std::vector<CachedSlot> slots;
  cache->Drain(half, &slots, slot_sizes_);
  PutBack(*cache, slots);
  return slots.size();
}

void DeviceAllocator::Impl::PutBack(const ThreadCache& cache,
                                    std::span<const CachedSlot> slots) const {
  OwnerHeap* const heap = cache.heap();
  StreamFreeList* list = nullptr;
  for (const CachedSlot& slot : slots) {
    Span* const span = spans_->Find(DeviceAddress(slot.address()));
    const Block block = {span, span->SlotOf(slot.record)};
    if (slot.free_for_all()) {
      heap->Free(block);
      continue;
    }
    // The stream was there when the cache was made.
    if (list == nullptr) list = MakeFreeList(heap, cache.stream());
    heap->CoolIn(list, block, /*noted=*/false);
  }
}

void DeviceAllocator::Impl::TakeCacheBack(ThreadCache* cache) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  UpdatePeak();
  DrainCache(cache, /*half=*/false);
  const AllocationCounters counted = CountersOf(*cache);
  cache->heap()->counters() += counted;
  last_flush_.allocations -=
      std::min(last_flush_.allocations, counted.allocations);
  std::erase_if(caches_,
                [cache](const auto& other) { return other.get() == cache; });
  CheckAfterMutation();
}

// ---- What has cooled --------------------------------------------------------

void DeviceAllocator::Impl::CloseBatches() {
  for (const auto& heap : heaps_) {
    for (const auto& list : heap->free_lists()) {
      // A batch that stays open is nobody's but its stream's.
      (void)list->CloseBatch();
    }
  }
}

void DeviceAllocator::Impl::FinishCooling(Block block, StreamId stream) {
  if (options_.trace != nullptr) {
    Trace(TraceAction::kFreeCompleted, block.span->heap->owner(),
          block.address(), Bytes(RequestedOf(block)), stream);
  }
  block.span->heap->FinishCooling(block);
}

void DeviceAllocator::Impl::Poll() {
  for (const auto& heap : heaps_) {
    for (const auto& list : heap->free_lists()) {
      const StreamFreeList::Freed freed = list->Poll();
      for (const Block& slot : freed.slots) {
        FinishCooling(slot, list->stream());
      }
      for (const ByteRun& run : freed.runs) heap->FinishCooling(run);
      for (const StreamFreeList::FreedBlock& block : freed.blocks) {
        Trace(TraceAction::kFreeCompleted, heap->owner(), block.address,
              block.requested, list->stream());
      }
    }
    heap->Poll();
  }
  for (SharedCooling& cooling : shared_cooling_) {
    if (cooling.fence) continue;
    if (absl::StatusOr<Fence> fence = RecordFence(cooling.streams);
        fence.ok()) {
      cooling.fence = *std::move(fence);
    }
  }
  std::erase_if(shared_cooling_,
                [this](const SharedCooling& cooling)
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                      if (!cooling.fence ||
                          !cooling.fence->IsComplete().value_or(false)) {
                        return false;
                      }
                      FinishCooling(cooling.block, StreamId());
                      return true;
                    });
  // Programs come and go with their streams.
  for (const auto& heap : heaps_) heap->DropEmptyFreeLists();
  DropReleasedPools();
}

void DeviceAllocator::Impl::CollectFor(uint64_t pages) {
  FlushCachesNowAndThen(CheckedBytes(PageCount(pages), memory_->page_size())
                            .value_or(Bytes(UINT64_MAX)));
  CloseBatches();
  Poll();
}

void DeviceAllocator::Impl::Collect() {
  FlushCaches();
  CloseBatches();
  Poll();
}

bool DeviceAllocator::Impl::CanCool(const HeapFilter& wanted) const {
  for (const auto& heap : heaps_) {
    if (!wanted(*heap)) continue;
    if (heap->IsEnding()) return true;
    for (const auto& list : heap->free_lists()) {
      if (list->progress() == StreamFreeList::Progress::kWaiting) return true;
    }
  }
  return std::any_of(shared_cooling_.begin(), shared_cooling_.end(),
                     [&](const SharedCooling& cooling) {
                       return wanted(*cooling.block.span->heap) &&
                              cooling.fence && cooling.fence->IsComplete().ok();
                     });
}

bool DeviceAllocator::Impl::CanAwaitSlot(const OwnerHeap& heap,
                                         int least) const {
  for (const auto& list : heap.free_lists()) {
    if (list->progress() == StreamFreeList::Progress::kWaiting &&
        list->HoldsSlots(least)) {
      return true;
    }
  }
  for (const SharedCooling& cooling : shared_cooling_) {
    if (cooling.block.span->heap == &heap &&
        cooling.block.span->size_class >= least && cooling.fence &&
        cooling.fence->IsComplete().ok()) {
      return true;
    }
  }
  return false;
}

// ---- Giving back ------------------------------------------------------------

uint64_t DeviceAllocator::Impl::ReleaseFree(uint64_t wanted, OwnerHeap* first,
                                            OwnerHeap::Keep keep) {
  uint64_t given = first == nullptr ? 0 : first->ReleaseFree(wanted, keep);
  for (const auto& heap : heaps_) {
    if (given >= wanted) break;
    given += heap->ReleaseFree(wanted - given, keep);
  }
  return given;
}

PageCount DeviceAllocator::Impl::Reclaim(PageCount wanted) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  Collect();
  const uint64_t given = ReleaseFree(wanted.value(), nullptr);
  CheckAfterMutation();
  return PageCount(given);
}

PageCount DeviceAllocator::Impl::ReclaimCooling(PageCount wanted) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  FlushCaches();
  const uint64_t given = ReleaseCooling(
      wanted.value(), [](const OwnerHeap& /*heap*/) { return true; });
  CheckAfterMutation();
  return PageCount(given);
}

bool DeviceAllocator::Impl::AwaitsPartsOfPages() {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  Collect();
  const bool awaits = std::any_of(
      heaps_.begin(), heaps_.end(),
      [this](const auto& heap) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return heap->reclaimable_pages() > heap->free_pages() &&
               CanCool([&heap](const OwnerHeap& other) {
                 return &other == heap.get();
               });
      });
  CheckAfterMutation();
  return awaits;
}

PageCount DeviceAllocator::Impl::ReclaimFrom(OwnerId owner, PageCount wanted,
                                             bool cooling) {
  const HookDeferral deferral(memory_);
  const OwnerRegistry& owners = *memory_->owners();
  const auto is_within = [&](const OwnerHeap& heap) {
    return owners.IsWithin(heap.owner(), owner);
  };
  MutexLock lock(&mutex_);
  Collect();
  uint64_t given = 0;
  for (const auto& heap : heaps_) {
    if (given >= wanted.value()) break;
    if (is_within(*heap)) given += heap->ReleaseFree(wanted.value() - given);
  }
  if (cooling && given < wanted.value()) {
    given += ReleaseCooling(wanted.value() - given, is_within);
  }
  CheckAfterMutation();
  return PageCount(given);
}

uint64_t DeviceAllocator::Impl::ReleaseCooling(uint64_t wanted,
                                               const HeapFilter& wanted_heaps) {
  const HeapFilter filter = [&wanted_heaps](const OwnerHeap& heap) {
    return !heap.kept_for_graphs() && wanted_heaps(heap);
  };
  uint64_t given = 0;
  // So many of each stream, since nobody knows which of them is done first.
  for (const auto& heap : heaps_) {
    if (!filter(*heap)) continue;
    for (const auto& list : heap->free_lists()) {
      given += heap->ReleaseCooling(list.get(), wanted);
    }
  }
  given += ReleaseSharedRanges(wanted, filter);
  // A slab may be of several streams, so that the slowest holds it up.
  if (given < wanted) given += ReleaseCoolingSlabs(wanted - given, filter);
  return given;
}

PageCount DeviceAllocator::Impl::Reclaimable() const {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  FlushCaches();
  uint64_t pages = 0;
  for (const auto& heap : heaps_) pages += AwaitablePages(*heap);
  return PageCount(pages);
}

PageReclaimer::CapturedPages DeviceAllocator::Impl::GetCapturedPages() const {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  CapturedPages captured;
  for (const auto& heap : heaps_) {
    const uint64_t pages = heap->reclaimable_pages() - AwaitablePages(*heap);
    if (pages == 0) continue;
    captured.pages = PageCount(captured.pages.value() + pages);
    for (const auto& list : heap->free_lists()) {
      if (list->captured() && !list->empty())
        captured.streams.push_back({list->stream(), Bytes(list->bytes())});
    }
  }
  return captured;
}

std::string DeviceAllocator::Impl::ReclaimerName() const {
  return "freed allocations";
}

uint64_t DeviceAllocator::Impl::ReleaseSharedRanges(uint64_t wanted,
                                                    const HeapFilter& filter) {
  const uint64_t before = mapped_.bytes;
  const uint64_t page = memory_->page_size().value();
  std::erase_if(
      shared_cooling_,
      [&](const SharedCooling& cooling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        Span* const span = cooling.block.span;
        if (!cooling.fence || !span->large() || !filter(*span->heap) ||
            (before - mapped_.bytes) / page >= wanted) {
          return false;
        }
        span->heap->Release(span, *cooling.fence);
        return true;
      });
  return (before - mapped_.bytes) / page;
}

uint64_t DeviceAllocator::Impl::ReleaseCoolingSlabs(uint64_t wanted,
                                                    const HeapFilter& filter) {
  const uint64_t before = mapped_.bytes;
  const uint64_t page = memory_->page_size().value();
  const std::vector<Span*>& spans = spans_->spans();
  for (size_t i = 0;
       i < spans.size() && (before - mapped_.bytes) / page < wanted; ++i) {
    Span* const span = spans[i];
    if (span == nullptr || span->large() || span->cooling == 0 ||
        !span->reclaimable() || !filter(*span->heap)) {
      continue;
    }
    // A host goes with the guests that lie on its pages.
    std::vector<Span*> guests;
    if (span->guests > 0) {
      std::copy_if(spans.begin(), spans.end(), std::back_inserter(guests),
                   [span](const Span* other) {
                     return other != nullptr && other->host == span;
                   });
    }
    const std::optional<Fence> fence = WithdrawSlab(span, guests);
    if (!fence) continue;
    for (Span* const guest : guests) span->heap->DropGuest(guest, *fence);
    span->heap->Release(span, *fence);
  }
  return (before - mapped_.bytes) / page;
}

std::optional<Fence> DeviceAllocator::Impl::WithdrawSlab(
    const Span* slab, const std::vector<Span*>& guests) {
  std::vector<const Span*> slabs(guests.begin(), guests.end());
  slabs.push_back(slab);
  const auto is_one_of_them = [&slabs](const Span* span) {
    return std::find(slabs.begin(), slabs.end(), span) != slabs.end();
  };
  std::vector<StreamFreeList*> lists;
  std::vector<StreamId> streams;
  for (const auto& list : slab->heap->free_lists()) {
    if (std::all_of(slabs.begin(), slabs.end(), [&list](const Span* span) {
          return list->CountSlots(span) == 0;
        })) {
      continue;
    }
    lists.push_back(list.get());
    streams.push_back(list->stream());
  }
  const bool one_list_has_all =
      lists.size() == 1 && lists.front()->CountSlots(slab) == slab->cooling;
  if (!one_list_has_all) {
    for (const SharedCooling& cooling : shared_cooling_) {
      if (!is_one_of_them(cooling.block.span)) continue;
      streams.insert(streams.end(), cooling.streams.begin(),
                     cooling.streams.end());
    }
    KeepDistinct(&streams);
  }
  // Fences cannot be joined, so where several are due a new one covers them: it
  // comes later than it must, which only costs time.
  std::optional<Fence> fence;
  if (one_list_has_all) {
    fence = lists.front()->FenceOf(slab);
  } else if (absl::StatusOr<Fence> all = RecordFence(streams); all.ok()) {
    fence = *std::move(all);
  }
  if (!fence) return std::nullopt;
  for (StreamFreeList* const list : lists) {
    for (const Span* const span : slabs) list->RemoveSlab(span);
  }
  std::erase_if(shared_cooling_, [&](const SharedCooling& cooling) {
    return is_one_of_them(cooling.block.span);
  });
  return fence;
}

PageCount DeviceAllocator::Impl::TrimToPool(Bytes keep) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  Collect();
  const auto cached = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t bytes = 0;
    for (const auto& heap : heaps_) {
      if (!heap->kept_for_graphs()) bytes += heap->accounts().free_bytes;
    }
    return bytes;
  };
  uint64_t given = 0;
  while (cached() > keep.value()) {
    const uint64_t pages = ReleaseFree(
        PagesFor(Bytes(cached() - keep.value()), memory_->page_size()).value(),
        nullptr);
    if (pages == 0) break;
    given += pages;
  }
  CheckAfterMutation();
  return PageCount(given);
}

// ---- The end ----------------------------------------------------------------

DeviceAllocator::Impl::~Impl() {
  anchor_->Close();
  memory_->RemoveReclaimer(this);
  if (spans_ == nullptr) return;
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  FlushCaches();
  std::vector<StreamId> streams;
  for (const auto& heap : heaps_) {
    heap->AppendStreams(&streams);
  }
  for (const SharedCooling& cooling : shared_cooling_) {
    streams.insert(streams.end(), cooling.streams.begin(),
                   cooling.streams.end());
  }
  for (const auto& [address, special] : special_) {
    streams.insert(streams.end(), special.streams.begin(),
                   special.streams.end());
  }
  for (const ReleasedPool& pool : released_pools_) {
    streams.insert(streams.end(), pool.streams.begin(), pool.streams.end());
  }
  size_t first_other = streams_.size();
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr) continue;
    if (span->large()) {
      streams.push_back(span->stream);
      continue;
    }
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      const SlotRecord record = span->record(i).load();
      if (record.use() != SlotUse::kLive) continue;
      if (record.stream() == SlotRecord::kOtherStream) {
        first_other =
            std::min<size_t>(first_other, span->record(i).first_other_stream());
      } else {
        streams.push_back(streams_[record.stream()]);
      }
    }
  }
  streams.insert(streams.end(),
                 streams_.begin() + static_cast<std::ptrdiff_t>(first_other),
                 streams_.end());
  KeepDistinct(&streams);
  const absl::StatusOr<Fence> fence =
      RecordOnLiveStreams(memory_->driver(), memory_->device(), streams);
  if (!fence.ok()) {
    // Without a fence there is only waiting.
    for (const StreamId stream : streams) {
      (void)memory_->driver()->SynchronizeStream(stream);
    }
  }
  for (const auto& heap : heaps_) heap->ReleaseAll(fence.value_or(Fence()));
}

}  // namespace quire
