#include "quire/alloc/allocator.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// While nothing but time helps, streams are asked at intervals that grow from
// the first figure to the second: none of them can be waited for alone, since
// nobody knows which is done first.
constexpr std::chrono::microseconds kFirstPollInterval(20);
constexpr std::chrono::microseconds kLastPollInterval(500);

}  // namespace

DeviceAllocator::Impl::Impl(DeviceMemory* memory,
                            const DeviceAllocatorOptions& options)
    : memory_(memory),
      options_(options),
      classes_(memory->page_size()),
      heap_(memory, &classes_, options.seed) {
  memory_->AddReclaimer(this);
}

// ---- Allocate ---------------------------------------------------------------

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::Allocate(
    Bytes size, const AllocateOptions& options) {
  const Request request = {size, options.stream, options.owner,
                           std::max(options.alignment, kDefaultAlignment)};
  if (!IsPowerOfTwo(options.alignment.value())) {
    return Fail(request, absl::InvalidArgumentError(absl::StrFormat(
                             "alignment %u is not a power of two",
                             options.alignment.value())));
  }
  if (request.owner.value() >= kMaxOwners) {
    return Fail(request, absl::InvalidArgumentError(absl::StrFormat(
                             "owner %u is not below %u", request.owner.value(),
                             kMaxOwners)));
  }
  const std::optional<int> size_class =
      classes_.ClassFor(size, request.alignment);
  absl::StatusOr<DeviceAddress> address =
      size_class ? AllocateSmall(*size_class, request) : AllocateLarge(request);
  if (!address.ok()) return Fail(request, address.status());
  return address;
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateSmall(
    int size_class, const Request& request) {
  {
    MutexLock lock(&mutex_);
    std::optional<Block> block = TakeSlot(size_class, request.stream);
    if (!block) {
      Poll();
      block = TakeSlot(size_class, request.stream);
    }
    if (!block) block = heap_.TakeSlotOfNewSlab(size_class);
    if (block) return Publish(*block, request);
  }
  const bool slab_is_one_page = classes_.slab_pages(size_class) == PageCount(1);
  for (auto interval = kFirstPollInterval;;
       interval = std::min(interval * 2, kLastPollInterval)) {
    if (!HasRoom(PageCount(1))) {
      MutexLock lock(&mutex_);
      if (const auto block = TakeSlotOfAnyClass(size_class, request)) {
        return Publish(*block, request);
      }
    }
    absl::StatusOr<DeviceAddress> address =
        AllocateInNewSlab(size_class, request, /*wait=*/false);
    if (absl::IsResourceExhausted(address.status()) && !slab_is_one_page) {
      // There may be one page where there are not enough for a slab.
      address = AllocateNewRange(PageCount(1), request, /*wait=*/false);
    }
    if (!absl::IsResourceExhausted(address.status())) return address;
    {
      MutexLock lock(&mutex_);
      CloseBatches();
      Poll();
      if (const auto block = TakeSlotOfAnyClass(size_class, request)) {
        return Publish(*block, request);
      }
      // A slot may cool on one stream and pages on another: whichever is done
      // first serves the request.
      if (!CanAwaitSlot(size_class)) break;
    }
    std::this_thread::sleep_for(interval);
  }
  return slab_is_one_page
             ? AllocateInNewSlab(size_class, request, /*wait=*/true)
             : AllocateNewRange(PageCount(1), request, /*wait=*/true);
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateInNewSlab(
    int size_class, const Request& request, bool wait) {
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         NewRange(classes_.slab_pages(size_class),
                                  options_.slab_owner, Bytes(0), wait));
  MutexLock lock(&mutex_);
  return Publish(heap_.AddSlab(range, size_class), request);
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateLarge(
    const Request& request) {
  const PageCount pages =
      std::max(PagesFor(request.size, memory_->page_size()), PageCount(1));
  {
    MutexLock lock(&mutex_);
    std::optional<Block> block = TakeRange(pages.value(), request);
    if (!block) {
      Poll();
      block = TakeRange(pages.value(), request);
    }
    if (block) return Publish(*block, request);
  }
  QUIRE_RETURN_IF_ERROR(CheckAgainstLimit(request));
  // Waiting makes the pool take what cools here, and a stream that has enough
  // of its own is better off with that.
  if (!HasRoom(pages)) {
    MutexLock lock(&mutex_);
    if (const auto block = TakePartOfOwnRange(pages.value(), request)) {
      return Publish(*block, request);
    }
  }
  return AllocateNewRange(pages, request, /*wait=*/true);
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateNewRange(
    PageCount pages, const Request& request, bool wait) {
  QUIRE_ASSIGN_OR_RETURN(
      AddressRange* const range,
      NewRange(pages, request.owner, request.alignment, wait));
  MutexLock lock(&mutex_);
  return Publish(heap_.AddLarge(range), request);
}

bool DeviceAllocator::Impl::HasRoom(PageCount pages) const {
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  const uint64_t page = pool.page_size.value();
  MutexLock lock(&mutex_);
  return pool.growable.value() / page + pool.cached.value() / page +
             heap_.free_range_pages() >=
         pages.value();
}

absl::StatusOr<AddressRange*> DeviceAllocator::Impl::NewRange(PageCount pages,
                                                              OwnerId owner,
                                                              Bytes alignment,
                                                              bool wait) {
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         memory_->ReserveRange(pages, owner, alignment));
  const absl::Status committed =
      wait ? memory_->Commit(range, PageCount(0), pages)
           : memory_->TryCommit(range, PageCount(0), pages);
  if (!committed.ok()) {
    memory_->ReleaseRange(range, Fence());
    return committed;
  }
  return range;
}

std::optional<Block> DeviceAllocator::Impl::TakeSlot(int size_class,
                                                     StreamId stream) {
  if (StreamFreeList* const list = FindFreeList(stream)) {
    if (const std::optional<Block> block = list->PopSlot(size_class)) {
      heap_.ReviveSlot(*block);
      return block;
    }
  }
  return heap_.TakeSlot(size_class);
}

std::optional<Block> DeviceAllocator::Impl::TakeSlotOfAnyClass(
    int least, const Request& request) {
  for (int i = least; i < classes_.count(); ++i) {
    if (classes_.slot_size(i).value() % request.alignment.value() != 0) {
      continue;
    }
    if (const auto block = TakeSlot(i, request.stream)) return block;
  }
  return std::nullopt;
}

std::optional<Block> DeviceAllocator::Impl::TakeRange(uint64_t pages,
                                                      const Request& request) {
  StreamFreeList* const list = FindFreeList(request.stream);
  Span* const own =
      list == nullptr ? nullptr : list->FindRange(pages, request.alignment);
  if (own != nullptr && memory_->SetOwner(own->range, request.owner).ok()) {
    list->RemoveRange(own);
    return heap_.ReviveRange(own, pages);
  }
  Span* const free = heap_.FindFreeRange(pages, request.alignment);
  if (free == nullptr || !memory_->SetOwner(free->range, request.owner).ok()) {
    return std::nullopt;
  }
  return heap_.TakeRange(free, pages);
}

std::optional<Block> DeviceAllocator::Impl::TakePartOfOwnRange(
    uint64_t pages, const Request& request) {
  StreamFreeList* const list = FindFreeList(request.stream);
  Span* const own = list == nullptr ? nullptr
                                    : list->ranges().FindFit(pages, UINT64_MAX,
                                                             request.alignment);
  if (own == nullptr) return std::nullopt;
  // The rest still cools.
  const std::optional<Fence> fence = list->FenceOf(own);
  if (!fence || !memory_->SetOwner(own->range, request.owner).ok()) {
    return std::nullopt;
  }
  list->RemoveRange(own);
  const Block block = heap_.ReviveRange(own, pages);
  heap_.ReleaseExcess(own, *fence);
  return block;
}

DeviceAddress DeviceAllocator::Impl::Publish(Block block,
                                             const Request& request) {
  heap_.Describe(block, request.size, request.stream, request.owner);
  ++total_allocations_;
  Trace(TraceAction::kAllocate, request.owner, block.address(), request.size);
  CheckAfterMutation();
  return block.address();
}

// ---- Free -------------------------------------------------------------------

absl::Status DeviceAllocator::Impl::Free(DeviceAddress address,
                                         StreamId stream) {
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
  const Slot slot = block.span->slab->slot(block.slot);
  if (!slot.shared) {
    QUIRE_RETURN_IF_ERROR(CoolOnStream(block, stream));
  } else {
    QUIRE_RETURN_IF_ERROR(CoolOnStreams(block, StreamsOf(block, stream)));
    recorded_streams_.erase(address);
  }
  ++total_frees_;
  Trace(TraceAction::kFree, slot.owner, address, slot.requested);
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::CoolOnStream(Block block, StreamId stream) {
  if (stream == StreamId()) {
    heap_.Free(block);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(StreamFreeList* const list, GetFreeList(stream));
  heap_.Cool(block);
  list->Push(block);
  if (list->open_bytes() >= options_.fence_batch.value()) {
    // Where the driver refuses, the batch stays open and the next free, or the
    // next request for this memory, tries again.
    (void)list->CloseBatch();
  }
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::CoolOnStreams(
    Block block, std::vector<StreamId> streams) {
  if (streams.size() == 1) return CoolOnStream(block, streams.front());
  QUIRE_ASSIGN_OR_RETURN(
      Fence fence,
      RecordOnLiveStreams(memory_->driver(), memory_->device(), streams));
  heap_.Cool(block);
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
  // Makes sure that the stream exists.
  QUIRE_RETURN_IF_ERROR(GetFreeList(stream).status());
  std::vector<StreamId>& streams = recorded_streams_[address];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
  block.span->slab->MarkShared(block.slot);
  return absl::OkStatus();
}

std::vector<StreamId> DeviceAllocator::Impl::StreamsOf(
    Block block, StreamId freed_on) const {
  std::vector<StreamId> streams =
      recorded_streams_.find(block.address())->second;
  if (freed_on != StreamId() &&
      std::find(streams.begin(), streams.end(), freed_on) == streams.end()) {
    streams.push_back(freed_on);
  }
  return streams;
}

absl::StatusOr<Block> DeviceAllocator::Impl::LocateLive(
    DeviceAddress address) const {
  const Span* const found = heap_.Find(address);
  if (found == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%#x was not allocated here, or its memory was given back since",
        address.value()));
  }
  const uint64_t offset = address.value() - found->address().value();
  const uint64_t slot = offset / found->last_slot_size.value();
  if (slot >= found->last_slot_count ||
      offset % found->last_slot_size.value() != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%#x is not the start of an allocation: it is byte %u of one of %u "
        "bytes",
        address.value(), offset % found->last_slot_size.value(),
        found->last_slot_size.value()));
  }
  const SlotUse use =
      found->free() ? SlotUse::kFree : found->slab->slot(slot).use;
  switch (use) {
    case SlotUse::kLive:
      return Block{heap_.spans()[found->index].get(),
                   static_cast<uint32_t>(slot)};
    case SlotUse::kUnused:
      return absl::InvalidArgumentError(
          absl::StrFormat("%#x was never allocated", address.value()));
    case SlotUse::kCooling:
    case SlotUse::kFree:
      break;
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("%#x was freed already", address.value()));
}

// ---- Streams ----------------------------------------------------------------

DeviceAllocator::Impl::FreeLists::iterator
DeviceAllocator::Impl::FreeListPosition(StreamId stream) {
  return std::lower_bound(
      free_lists_.begin(), free_lists_.end(), stream,
      [](const auto& list, StreamId id) { return list->stream() < id; });
}

StreamFreeList* DeviceAllocator::Impl::FindFreeList(StreamId stream) {
  if (recent_list_ != nullptr && recent_list_->stream() == stream) {
    return recent_list_;
  }
  if (stream == StreamId()) return nullptr;
  const auto position = FreeListPosition(stream);
  if (position == free_lists_.end() || (*position)->stream() != stream) {
    return nullptr;
  }
  recent_list_ = position->get();
  return recent_list_;
}

absl::StatusOr<StreamFreeList*> DeviceAllocator::Impl::GetFreeList(
    StreamId stream) {
  if (StreamFreeList* const list = FindFreeList(stream)) return list;
  // A list waits for nothing on a stream that is gone, so a wrong name must not
  // get one.
  QUIRE_RETURN_IF_ERROR(
      Fence::Record(memory_->driver(), memory_->device(), std::span(&stream, 1))
          .status());
  recent_list_ = free_lists_
                     .insert(FreeListPosition(stream),
                             std::make_unique<StreamFreeList>(
                                 memory_->driver(), memory_->device(), stream,
                                 classes_.count()))
                     ->get();
  return recent_list_;
}

// ---- The public face --------------------------------------------------------

std::unique_ptr<DeviceAllocator> DeviceAllocator::Create(
    DeviceMemory* memory, const DeviceAllocatorOptions& options) {
  return std::unique_ptr<DeviceAllocator>(
      new DeviceAllocator(std::make_unique<Impl>(memory, options)));
}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
DeviceAllocator::~DeviceAllocator() = default;

absl::StatusOr<DeviceAddress> DeviceAllocator::Allocate(
    Bytes size, const AllocateOptions& options) {
  return impl_->Allocate(size, options);
}
absl::Status DeviceAllocator::Free(DeviceAddress address, StreamId stream) {
  return impl_->Free(address, stream);
}
absl::Status DeviceAllocator::RecordStream(DeviceAddress address,
                                           StreamId stream) {
  return impl_->RecordStream(address, stream);
}
std::optional<AllocationInfo> DeviceAllocator::Find(
    DeviceAddress address) const {
  return impl_->Find(address);
}
Bytes DeviceAllocator::Trim(Bytes keep) { return impl_->Trim(keep); }
AllocatorStatistics DeviceAllocator::GetStatistics() const {
  return impl_->GetStatistics();
}
Bytes DeviceAllocator::GetLargestPossible() const {
  return impl_->GetLargestPossible();
}
std::vector<AllocationInfo> DeviceAllocator::CalculateLiveAllocations() const {
  return impl_->CalculateLiveAllocations();
}
absl::Status DeviceAllocator::CheckInvariants() const {
  return impl_->CheckInvariants();
}

}  // namespace quire
