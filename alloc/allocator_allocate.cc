#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "alloc/poll_interval.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Pages that were gathered may be taken by another thread before they are used.
// So many times in a row is no accident.
constexpr int kGatherAttempts = 64;

// Before a page is made, what cools is given so long to become free: about what
// making the page takes, so that the wait costs no more than it may save.
constexpr std::chrono::microseconds kPatiencePerPage(30);
constexpr std::chrono::microseconds kMostPatience(1000);

}  // namespace

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateSlow(
    Bytes size, const AllocateOptions& options, const void* caller) {
  QUIRE_RETURN_IF_ERROR(CheckNotForked());
  Request request = {size, options.stream, options.owner,
                     std::max(options.alignment, kDefaultAlignment),
                     options.movable};
  if (!IsPowerOfTwo(options.alignment.value())) {
    return Fail(request, absl::InvalidArgumentError(absl::StrFormat(
                             "alignment %u is not a power of two",
                             options.alignment.value())));
  }
  if (const absl::Status owner = CheckOwner(request.owner); !owner.ok()) {
    return Fail(request, owner);
  }
  if (!table_error_.ok()) return Fail(request, table_error_);
  if (some_capture_.load(std::memory_order_acquire)) {
    MutexLock lock(&mutex_);
    request.owner = HeapFor(request)->owner();
  }
  if (some_sleep_.load(std::memory_order_acquire)) {
    absl::Status awake;
    {
      MutexLock lock(&mutex_);
      awake = CheckAwake(request.owner);
    }
    if (!awake.ok()) return Fail(request, awake);
  }
  const std::optional<int> size_class =
      classes_.ClassFor(size, request.alignment);
  const auto allocate = [&] {
    return size_class ? AllocateSmall(*size_class, request)
                      : AllocateLarge(request);
  };
  absl::StatusOr<DeviceAddress> address =
      WithOutOfMemoryHooks(memory_, allocate);
  if (!address.ok()) return Fail(request, address.status());
  if (sampler_ != nullptr) Sample(*address, size, options, caller);
  return address;
}

// ---- Small ------------------------------------------------------------------

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateSmall(
    int size_class, const Request& request) {
  // Only what goes the fast way profits from slots in a cache.
  OwnerHeap* caching_heap = nullptr;
  if (!request.movable && request.alignment == kDefaultAlignment) {
    MutexLock lock(&mutex_);
    OwnerHeap* const heap = HeapFor(request);
    if (ServesItsOwner(*heap)) caching_heap = heap;
  }
  ThreadCache* const cache =
      caching_heap == nullptr ? nullptr : CacheOf(caching_heap, request.stream);
  {
    MutexLock lock(&mutex_);
    OwnerHeap* const heap = HeapFor(request);
    const bool for_cache = cache != nullptr && heap == caching_heap;
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return TakeSlot(heap, size_class, request, for_cache);
    };
    std::optional<Block> block = take();
    if (!block) {
      Poll();
      block = take();
    }
    if (!block) block = heap->TakeSlotOfNewSlab(size_class, request.alignment);
    if (!block &&
        (FlushClass(*heap, size_class) || FlushCachesNowAndThen(Bytes(0)))) {
      CloseBatches();
      Poll();
      block = take();
      if (!block) {
        block = heap->TakeSlotOfNewSlab(size_class, request.alignment);
      }
    }
    if (block) {
      if (for_cache) Refill(cache, size_class, *block);
      return Publish(*block, request);
    }
  }
  const PageCount slab_pages = classes_.slab_pages(size_class);
  for (PollInterval interval;; interval.Sleep()) {
    bool may_grow = HasRoom(PageCount(1), request.owner);
    if (!may_grow) {
      {
        MutexLock lock(&mutex_);
        // Before it is given up for a page that limits do not allow any more. A
        // page that the heap has free is within them, and makes a slab, where
        // each request for a class without one would come here.
        Collect();
        OwnerHeap* const heap = HeapFor(request);
        std::optional<Block> block =
            TakeSlotOfOwnPages(heap, size_class, request);
        if (!block) block = TakeAnyRoom(heap, size_class, request);
        if (block) return Publish(*block, request);
      }
      // Where others' reservations come to more than there is, what is given up
      // does not come back, and what cools in it would be lost.
      may_grow = LargestCommit(request.owner) > PageCount(0);
    }
    if (may_grow) {
      absl::StatusOr<DeviceAddress> address =
          AllocateInNewSlab(size_class, slab_pages, request, /*wait=*/false);
      if (absl::IsResourceExhausted(address.status()) &&
          slab_pages > PageCount(1)) {
        // There may be one page where there are not enough for a whole slab.
        address = AllocateInNewSlab(size_class, PageCount(1), request,
                                    /*wait=*/false);
      }
      if (!absl::IsResourceExhausted(address.status())) return address;
    }
    {
      MutexLock lock(&mutex_);
      Collect();
      OwnerHeap* const heap = HeapFor(request);
      if (const auto block = TakeAnyRoom(heap, size_class, request)) {
        return Publish(*block, request);
      }
      // A slot may cool on one stream and pages on another: whichever is done
      // first serves the request.
      if (!CanAwaitSlot(*heap, size_class)) break;
    }
  }
  return AllocateInNewSlab(size_class, PageCount(1), request, /*wait=*/true);
}

std::optional<Block> DeviceAllocator::Impl::TakeSlotOfOwnPages(
    OwnerHeap* heap, int size_class, const Request& request) {
  const uint64_t small = heap->SmallSlabBytes(size_class, request.alignment);
  if (small > 0) {
    if (!heap->HasRoomFor(small)) {
      heap->DissolveEmptySlabs(1, OwnerHeap::Keep::kNothing);
    }
    if (!heap->HasRoomFor(small) ||
        !heap->AddSmallSlab(size_class, small).ok()) {
      return std::nullopt;
    }
    return heap->TakeSlot(size_class, request.alignment);
  }
  const auto take = [&] {
    return heap->TakeSlotOfNewSlab(size_class, request.alignment);
  };
  if (const std::optional<Block> block = take()) return block;
  heap->DissolveEmptySlabs(classes_.slab_pages(size_class).value(),
                           OwnerHeap::Keep::kNothing);
  return take();
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateInNewSlab(
    int size_class, PageCount pages, const Request& request, bool wait) {
  const auto add =
      [&](OwnerHeap* heap, RangeNeeds* needs)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<Block> {
    // What others gave back since it was looked for.
    if (const auto slot = TakeSlot(heap, size_class, request,
                                   /*for_cache=*/false)) {
      return *slot;
    }
    const uint64_t small = heap->SmallSlabBytes(size_class, request.alignment);
    constexpr OwnerHeap::Keep kKeep = OwnerHeap::Keep::kComebacks;
    const auto wanted = [&]() -> uint64_t {
      if (small == 0) return pages.value();
      return heap->HasRoomFor(small) ? 0 : 1;
    };
    uint64_t new_pages = wanted();
    if (memory_->Harvest().value() < new_pages) {
      // What the heap has, it has without giving it to the pool and back.
      CollectFor(new_pages);
      heap->DissolveEmptySlabs(new_pages, kKeep);
      const auto slot = heap->TakeSlotOfNewSlab(size_class, request.alignment);
      if (slot) return *slot;
      new_pages = wanted();
    }
    *needs = {.pages = PageCount(new_pages),
              .addresses = PageCount(new_pages + 1),
              .missing = new_pages,
              .wait = wait,
              .keep = kKeep,
              .size_class = size_class};
    Recycle(new_pages, heap, needs->keep);
    QUIRE_RETURN_IF_ERROR(small > 0 ? heap->AddSmallSlab(size_class, small)
                                    : heap->AddSlab(size_class, new_pages));
    return *heap->TakeSlot(size_class, request.alignment);
  };
  return AddAndPublish(request, add);
}

std::optional<Block> DeviceAllocator::Impl::TakeSlot(OwnerHeap* heap,
                                                     int size_class,
                                                     const Request& request,
                                                     bool for_cache) {
  StreamFreeList* const list = heap->FindFreeList(request.stream);
  if (list != nullptr) {
    if (const std::optional<Block> block = list->PopSlot(size_class)) {
      if (block->address().value() % request.alignment.value() == 0) {
        heap->Revive(*block);
        return block;
      }
      list->Push(*block);
    }
  }
  return for_cache ? heap->TakeSlotForCache(size_class)
                   : heap->TakeSlot(size_class, request.alignment);
}

std::optional<Block> DeviceAllocator::Impl::TakeAnyRoom(
    OwnerHeap* heap, int least, const Request& request) {
  for (int i = least; i < classes_.count(); ++i) {
    if (slot_sizes_[i] % request.alignment.value() != 0) continue;
    if (const auto block = TakeSlot(heap, i, request, /*for_cache=*/false)) {
      return block;
    }
  }
  return TakeOrMap(heap, PieceBytes(request.size), request);
}

// ---- New ranges -------------------------------------------------------------

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AddAndPublish(
    const Request& request, RangeAdder add) {
  absl::Status status;
  RangeNeeds needs;
  bool awaited = false;
  for (int i = 0; i < kGatherAttempts; ++i) {
    {
      MutexLock lock(&mutex_);
      OwnerHeap* const heap = HeapFor(request);
      const absl::StatusOr<Block> block = add(heap, &needs);
      if (block.ok()) return Publish(*block, request);
      status = block.status();
      // Out of mappings: to unmap something may make room for one.
      if (absl::IsResourceExhausted(status) && !DropAllDetours() &&
          ReleaseFree(needs.addresses.value(), heap) == 0) {
        break;
      }
    }
    if (absl::IsResourceExhausted(status)) continue;
    if (!absl::IsAborted(status)) break;
    if (!std::exchange(awaited, true) && AwaitSoon(needs, request)) {
      continue;
    }
    absl::Status gathered =
        memory_->Gather(request.owner, needs.pages, needs.addresses,
                        needs.alignment, needs.wait);
    if (absl::IsResourceExhausted(gathered) &&
        (needs.spare > 0 || FreeAddresses())) {
      continue;
    }
    QUIRE_RETURN_IF_ERROR(gathered);
  }
  return DescribeRefusal(needs.addresses, request.owner, status);
}

absl::Status DeviceAllocator::Impl::DescribeRefusal(
    PageCount pages, OwnerId owner, const absl::Status& refusal) const {
  if (absl::IsResourceExhausted(refusal)) {
    return memory_->DescribeMappingShortage(pages, owner, refusal);
  }
  return absl::IsAborted(refusal) ? memory_->DescribeShortage(pages, owner)
                                  : refusal;
}

// ---- Room -------------------------------------------------------------------

uint64_t DeviceAllocator::Impl::Recycle(uint64_t wanted, OwnerHeap* heap,
                                        OwnerHeap::Keep keep) {
  uint64_t prepared = memory_->Harvest().value();
  if (prepared >= wanted) return prepared;
  CollectFor(wanted - prepared);
  ReleaseFree(wanted - prepared, heap, keep);
  return memory_->Harvest().value();
}

bool DeviceAllocator::Impl::AwaitSoon(const RangeNeeds& needs,
                                      const Request& request) {
  const auto now = std::chrono::steady_clock::now;
  const auto pages = static_cast<int64_t>(
      std::min<uint64_t>(needs.missing, kMostPatience / kPatiencePerPage));
  const auto deadline = now() + kPatiencePerPage * pages;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      OwnerHeap* const heap = HeapFor(request);
      const uint64_t there = needs.large
                                 ? RecycleForLarge(needs.missing, heap)
                                 : Recycle(needs.missing, heap, needs.keep);
      if (there >= needs.missing) return true;
      if (needs.size_class &&
          heap->HasFreeSlot(*needs.size_class, request.alignment)) {
        return true;
      }
      bool cools = memory_->GetStatistics().cooling > Bytes(0);
      for (const auto& other : heaps_) {
        cools = cools || (!other->kept_for_graphs() &&
                          other->accounts().cooling_bytes > 0);
      }
      if (!cools || now() >= deadline) return false;
    }
    std::this_thread::yield();
  }
}

bool DeviceAllocator::Impl::HasRoom(PageCount pages, OwnerId owner) const {
  const uint64_t allowance =
      memory_->GetOwnerStatistics(owner).allowance.value();
  if (allowance / memory_->page_size().value() < pages.value()) return false;
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  const uint64_t page = pool.page_size.value();
  uint64_t room = pool.growable.value() / page + pool.cached.value() / page;
  MutexLock lock(&mutex_);
  for (const auto& heap : heaps_) room += heap->free_pages();
  // What is beyond the limit goes to the driver first.
  return room >= pages.value() + pool.over_limit.value() / page;
}

// ---- What is handed out -----------------------------------------------------

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::Publish(
    Block block, const Request& request) {
  Span* const span = block.span;
  if (span->heap->asleep()) return RefuseAsleep(block);
  const bool inherits = block.record().load().inherits();
  if (span->large()) {
    span->requested = request.size;
    span->stream = request.stream;
    (void)IndexOfStream(request.stream);
    block.record().store(
        SlotRecord::Live(0, SlotRecord::kOtherStream, inherits));
  } else {
    block.record().store(SlotRecord::Live(
        static_cast<uint32_t>(span->slot_size - request.size.value()),
        IndexOfStream(request.stream), inherits));
  }
  if (request.movable) {
    block.record().store(block.record().load().WithMovable(true));
  }
  CountAllocation(span->heap, span->slot_size, request.size.value());
  if (options_.trace != nullptr) {
    Trace(TraceAction::kAllocate, span->heap->owner(), block.address(),
          request.size, request.stream);
  }
  CheckAfterMutation();
  return block.address();
}

void DeviceAllocator::Impl::Refill(ThreadCache* cache, int size_class,
                                   Block held) {
  OwnerHeap* const heap = cache->heap();
  StreamFreeList* const list = heap->FindFreeList(cache->stream());
  const uint64_t slot_size = slot_sizes_[size_class];
  const auto push = [&](const Block& block, bool of_stream) {
    cache->Push(
        size_class, slot_size,
        {block.record(), block.address().value() | (of_stream ? 0 : 1)});
  };
  std::optional<Block> taken = held;
  for (uint32_t i = cache->RefillCount(size_class, slot_size); i > 0; --i) {
    if (list != nullptr) {
      if (const auto block = list->PopSlot(size_class)) {
        heap->Revive(*block);
        push(*block, /*of_stream=*/true);
        continue;
      }
    }
    if (taken) taken = heap->TakeSlotBeside(*taken);
    if (!taken) taken = heap->TakeSlotForCache(size_class);
    if (!taken) return;
    push(*taken, /*of_stream=*/false);
  }
  // The rest of a group that the thread writes to.
  while (taken && cache->HasRoomFor(slot_size)) {
    taken = heap->TakeSlotBeside(*taken);
    if (taken) push(*taken, /*of_stream=*/false);
  }
}

OwnerHeap* DeviceAllocator::Impl::AddHeap(OwnerId owner, uint64_t number) {
  heaps_.push_back(std::make_unique<OwnerHeap>(owner, memory_, &classes_,
                                               spans_.get(), &mapped_,
                                               options_.seed + number));
  return heaps_.back().get();
}

OwnerHeap* DeviceAllocator::Impl::HeapOf(OwnerId owner) {
  if (owner.value() >= heap_of_owner_.size()) {
    heap_of_owner_.resize(size_t{owner.value()} + 1);
  }
  OwnerHeap*& heap = heap_of_owner_[owner.value()];
  if (heap == nullptr) {
    heap = AddHeap(owner, owner.value());
    heap->set_asleep(IsAsleep(owner));
  }
  return heap;
}

OwnerHeap* DeviceAllocator::Impl::HeapFor(const Request& request) {
  const Capture* const capture = FindCapture(request.stream);
  return capture == nullptr ? HeapOf(request.owner)
                            : graph_pools_.at(capture->pool).heap;
}

bool DeviceAllocator::Impl::ServesItsOwner(const OwnerHeap& heap) const {
  const uint32_t owner = heap.owner().value();
  return owner < heap_of_owner_.size() && heap_of_owner_[owner] == &heap;
}

ThreadCache* DeviceAllocator::Impl::CacheOf(OwnerHeap* heap, StreamId stream) {
  if (cache_byte_limit_ == 0 || thread_cache_index.ended) return nullptr;
  if (ThreadCache* const cache =
          thread_cache_index.Find(number_, stream, heap)) {
    return cache;
  }
  ThreadCache* cache = nullptr;
  {
    MutexLock lock(&mutex_);
    if (FindCapture(stream) != nullptr) return nullptr;
    if (stream != StreamId() && !CheckStream(stream).ok()) return nullptr;
    caches_.push_back(
        std::make_unique<ThreadCache>(heap, stream, IndexOfStream(stream),
                                      classes_.count(), cache_byte_limit_));
    cache = caches_.back().get();
    cache->set_kept_stopped(heap->asleep());
    heap->NoteThread(std::this_thread::get_id());
  }
  AddToThreadCacheIndex(anchor_, {number_, stream, heap->owner(), heap, cache});
  return cache;
}

}  // namespace quire
