#include "quire/alloc/allocator.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "alloc/allocator_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// The most that one thread keeps for one stream and owner: a part of the pool,
// and never more than the second figure. All of it is to be had back whenever
// memory is short.
constexpr uint64_t kCachedPartOfPool = 4;
constexpr Bytes kMostCached = GiB(4);

std::atomic<uint64_t> allocators_made{0};

std::vector<uint64_t> SlotSizes(const SizeClasses& classes) {
  std::vector<uint64_t> sizes;
  for (int i = 0; i < classes.count(); ++i) {
    sizes.push_back(classes.slot_size(i).value());
  }
  return sizes;
}

uint64_t CacheByteLimit(const DeviceMemory& memory,
                        const DeviceAllocatorOptions& options) {
  // Where every free is to have a fence of its own, none may wait in a cache.
  if (options.fence_batch.zero()) return 0;
  return std::min(options.thread_cache.value_or(kMostCached).value(),
                  memory.GetStatistics().limit.value() / kCachedPartOfPool);
}

std::unique_ptr<AllocationSampler> MakeSampler(
    const DeviceAllocatorOptions& options) {
  if (options.sample_interval.zero()) return nullptr;
  return std::make_unique<AllocationSampler>(
      AllocationSamplerOptions{.interval = options.sample_interval});
}

}  // namespace

DeviceAllocator::Impl::Impl(DeviceMemory* memory,
                            const DeviceAllocatorOptions& options,
                            absl::StatusOr<std::unique_ptr<SpanTable>> spans)
    : memory_(memory),
      options_(options),
      sampler_(MakeSampler(options)),
      observed_(options.trace != nullptr || sampler_ != nullptr),
      classes_(memory->page_size()),
      slot_sizes_(SlotSizes(classes_)),
      cache_byte_limit_(CacheByteLimit(*memory, options)),
      number_(++allocators_made),
      table_error_(spans.status()),
      spans_(spans.ok() ? *std::move(spans) : nullptr),
      anchor_(std::make_shared<ThreadCacheAnchor>(this)) {
  memory_->AddReclaimer(this);
}

// ---- The fast paths ---------------------------------------------------------

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::Allocate(
    Bytes size, const AllocateOptions& options, const void* caller) {
  if (options.alignment == kDefaultAlignment && !options.movable &&
      size <= classes_.largest()) [[likely]] {
    ThreadCache* const cache =
        thread_cache_index.Find(number_, options.stream, options.owner);
    if (cache != nullptr && cache->Enter()) [[likely]] {
      const int size_class = classes_.ClassOf(size);
      const uint64_t address =
          cache->Allocate(size_class, slot_sizes_[size_class], size.value());
      cache->Leave();
      if (address != 0) [[likely]] {
        if (observed_) [[unlikely]] {
          ObserveFastAllocation(DeviceAddress(address), size, options, caller);
        }
        CheckAfterFastPath();
        return DeviceAddress(address);
      }
    }
  }
  return AllocateSlow(size, options, caller);
}

absl::Status DeviceAllocator::Impl::Free(DeviceAddress address,
                                         StreamId stream) {
  Span* const span = spans_ == nullptr ? nullptr : spans_->Find(address);
  if (span != nullptr && !span->large()) [[likely]] {
    ThreadCache* const cache =
        thread_cache_index.Find(number_, stream, span->heap);
    const std::optional<uint32_t> slot = span->SlotAt(address.value());
    if (cache != nullptr && slot && cache->Enter()) [[likely]] {
      const SlotRecordPlace record = span->record(*slot);
      const SlotRecord was = record.load();
      // Whoever has a stream, or nothing, to wait for beside that of the cache
      // is special.
      const bool freed =
          was.plainly_live_for(cache->stream_index()) &&
          cache->Free(span->size_class, span->slot_size,
                      {record, address.value() | (stream == StreamId())}, was);
      // Once the slot is in the cache and the cache is left, another thread may
      // take it out and make the span anew.
      const OwnerId owner = span->owner;
      const Bytes requested(span->slot_size - was.waste());
      cache->Leave();
      if (freed) [[likely]] {
        if (options_.trace != nullptr) {
          Trace(TraceAction::kFree, owner, address, requested, stream);
        }
        CheckAfterFastPath();
        return absl::OkStatus();
      }
    }
  }
  return FreeSlow(address, stream);
}

// ---- The public face --------------------------------------------------------

std::unique_ptr<DeviceAllocator> DeviceAllocator::Create(
    DeviceMemory* memory, const DeviceAllocatorOptions& options) {
  return std::unique_ptr<DeviceAllocator>(
      new DeviceAllocator(std::make_unique<Impl>(
          memory, options,
          SpanTable::Create(memory->first_address(),
                            memory->GetStatistics().address_space,
                            memory->page_size()))));
}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
DeviceAllocator::~DeviceAllocator() {
  // What it holds is the parent's.
  if (impl_->in_forked_child()) (void)impl_.release();
}

DeviceMemory* DeviceAllocator::memory() const { return impl_->memory(); }

// Allocate and Free find no cache in a forked child, and look on their slow
// paths.
absl::StatusOr<DeviceAddress> DeviceAllocator::Allocate(
    Bytes size, const AllocateOptions& options) {
  return impl_->Allocate(size, options, __builtin_return_address(0));
}
absl::Status DeviceAllocator::Free(DeviceAddress address, StreamId stream) {
  return impl_->Free(address, stream);
}
absl::Status DeviceAllocator::RecordStream(DeviceAddress address,
                                           StreamId stream) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->RecordStream(address, stream);
}
bool DeviceAllocator::Manages(DeviceAddress address) const {
  return impl_->Manages(address);
}
std::optional<AllocationInfo> DeviceAllocator::Find(
    DeviceAddress address) const {
  if (impl_->in_forked_child()) return std::nullopt;
  return impl_->Find(address);
}
std::optional<OwnerId> DeviceAllocator::OwnerOf(DeviceAddress address) const {
  return impl_->OwnerOf(address);
}
CompactionReport DeviceAllocator::Trim(Bytes keep) {
  if (impl_->in_forked_child()) return CompactionReport();
  return impl_->Trim(keep);
}
absl::StatusOr<CompactionReport> DeviceAllocator::Mesh(
    const QuiescentSection& section, const MeshOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Mesh(section, options);
}
absl::StatusOr<RelocationPass> DeviceAllocator::BeginRelocation(
    const QuiescentSection& section, const RelocationLimits& limits) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->BeginRelocation(section, limits);
}
absl::StatusOr<CompactionReport> DeviceAllocator::Compact(
    const QuiescentSection& section, CompactionPolicy* policy) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Compact(section, policy);
}
absl::Status DeviceAllocator::Pin(DeviceAddress address) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Pin(address);
}
absl::Status DeviceAllocator::Unpin(DeviceAddress address) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Unpin(address);
}
absl::StatusOr<SleepReport> DeviceAllocator::Sleep(
    const QuiescentSection& section, OwnerId owner,
    const SleepOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Sleep(section, owner, options);
}
absl::StatusOr<SleepReport> DeviceAllocator::Wake(OwnerId owner,
                                                  const WakeOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Wake(owner, options);
}
absl::StatusOr<GraphPoolId> DeviceAllocator::CreateGraphPool(OwnerId owner) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->CreateGraphPool(owner);
}
absl::Status DeviceAllocator::BeginGraphCapture(GraphPoolId pool,
                                                StreamId stream) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->BeginGraphCapture(pool, stream);
}
absl::Status DeviceAllocator::EndGraphCapture(StreamId stream) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->EndGraphCapture(stream);
}
absl::Status DeviceAllocator::ReleaseGraphPool(
    GraphPoolId pool, std::span<const StreamId> streams) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->ReleaseGraphPool(pool, streams);
}
AllocatorStatistics DeviceAllocator::GetStatistics() const {
  if (impl_->in_forked_child()) return AllocatorStatistics();
  return impl_->GetStatistics();
}
AllocatorBreakdown DeviceAllocator::CalculateStatistics() const {
  if (impl_->in_forked_child()) return AllocatorBreakdown();
  return impl_->CalculateStatistics();
}
Bytes DeviceAllocator::GetLargestPossible(OwnerId owner) const {
  if (impl_->in_forked_child()) return Bytes(0);
  return impl_->GetLargestPossible(owner);
}
std::vector<AllocationInfo> DeviceAllocator::CalculateLiveAllocations() const {
  if (impl_->in_forked_child()) return {};
  return impl_->CalculateLiveAllocations();
}
const AllocationSampler* DeviceAllocator::sampler() const {
  return impl_->sampler();
}
absl::Status DeviceAllocator::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->CheckInvariants();
}

}  // namespace quire
