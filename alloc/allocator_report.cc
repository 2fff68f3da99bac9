#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "alloc/fragmentation.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

// Spans that a checking build walks after every mutation.
constexpr uint64_t kSpansCheckedAlways = 64;

uint64_t NotNegative(int64_t n) { return n > 0 ? static_cast<uint64_t>(n) : 0; }

}  // namespace

double AllocatorStatistics::internal_fragmentation() const {
  return InternalFragmentation(*this);
}

double AllocatorStatistics::external_fragmentation() const {
  return ExternalFragmentation(*this);
}

// ---- Accounts ---------------------------------------------------------------

void DeviceAllocator::Impl::CountAllocation(OwnerHeap* heap, uint64_t allocated,
                                            uint64_t requested) {
  AllocationCounters& counters = heap->counters();
  counters.live_bytes += static_cast<int64_t>(allocated);
  counters.requested_bytes += static_cast<int64_t>(requested);
  ++counters.allocations;
  UpdatePeak();
}

void DeviceAllocator::Impl::CountFree(OwnerHeap* heap, uint64_t allocated,
                                      uint64_t requested) {
  UpdatePeak();
  AllocationCounters& counters = heap->counters();
  counters.live_bytes -= static_cast<int64_t>(allocated);
  counters.requested_bytes -= static_cast<int64_t>(requested);
  ++counters.frees;
}

AllocationCounters DeviceAllocator::Impl::CountersOf(const ThreadCache& cache) {
  const CacheCounters& counters = cache.counters();
  AllocationCounters counted;
  counted.requested_bytes = counters.requested_bytes.load();
  counted.live_bytes = counters.live_bytes.load();
  // In this order, so that a free is never counted without its allocation.
  counted.frees = counters.frees.load();
  counted.allocations = counters.allocations.load();
  return counted;
}

AllocationCounters DeviceAllocator::Impl::CountAll() const {
  AllocationCounters counted;
  for (const auto& heap : heaps_) counted += heap->counters();
  for (const auto& cache : caches_) counted += CountersOf(*cache);
  return counted;
}

void DeviceAllocator::Impl::UpdatePeak() const {
  int64_t now = 0;
  int64_t above = 0;
  for (const auto& heap : heaps_) now += heap->counters().requested_bytes;
  for (const auto& cache : caches_) {
    const int64_t current = cache->counters().requested_bytes.load();
    now += current;
    above += cache->counters().peak_requested_bytes.load() - current;
    cache->ResetPeak();
  }
  peak_requested_bytes_ = std::max(peak_requested_bytes_, now + above);
}

AllocatorStatistics DeviceAllocator::Impl::GetStatistics() const {
  MutexLock lock(&mutex_);
  UpdatePeak();
  AllocatorStatistics statistics;
  for (const auto& heap : heaps_) {
    const HeapAccounts accounts = heap->accounts();
    statistics.mapped_bytes += accounts.mapped_bytes;
    statistics.cooling_bytes += accounts.cooling_bytes;
    statistics.slack_bytes += accounts.slack_bytes;
    statistics.slab_count += accounts.slabs;
    if (heap->asleep()) statistics.asleep_bytes += accounts.mapped_bytes;
    if (heap->kept_for_graphs()) {
      statistics.graph_pool_bytes += accounts.mapped_bytes;
    }
    for (const auto& list : heap->free_lists()) {
      statistics.metadata_bytes += list->metadata_bytes();
    }
  }
  for (const auto& cache : caches_) {
    statistics.metadata_bytes += cache->metadata_bytes();
  }
  if (spans_ != nullptr) statistics.metadata_bytes += spans_->metadata_bytes();
  const AllocationCounters counted = CountAll();
  statistics.thread_cached_bytes = CachedByThreads();
  statistics.requested_bytes = NotNegative(counted.requested_bytes);
  statistics.live_bytes = NotNegative(counted.live_bytes);
  statistics.total_allocations = counted.allocations;
  statistics.total_frees = counted.frees;
  // Threads go on while this is read, so what is neither is free by definition.
  statistics.cached_bytes = NotNegative(
      static_cast<int64_t>(statistics.mapped_bytes - statistics.cooling_bytes -
                           statistics.slack_bytes) -
      counted.live_bytes);
  statistics.live_allocations = NotNegative(static_cast<int64_t>(
      statistics.total_allocations - statistics.total_frees));
  statistics.peak_requested_bytes = NotNegative(peak_requested_bytes_);
  statistics.peak_mapped_bytes = mapped_.peak_bytes;
  statistics.failed_allocations = failed_allocations_;
  return statistics;
}

Bytes DeviceAllocator::Impl::GetLargestPossible(OwnerId owner) {
  if (!CheckOwner(owner).ok() || !table_error_.ok()) return Bytes(0);
  {
    // Its end tells the hooks which pages went, and they may allocate: before
    // anything is looked at, or the promise would be older than what they took.
    const HookDeferral deferral(memory_);
    MutexLock lock(&mutex_);
    KeepToLimit();
  }
  Bytes room;
  {
    const HookDeferral deferral(memory_);
    MutexLock lock(&mutex_);
    if (IsAsleep(owner)) return Bytes(0);
    FlushCaches();
    if (owner.value() < heap_of_owner_.size() &&
        heap_of_owner_[owner.value()] != nullptr) {
      room = heap_of_owner_[owner.value()]->LargestRoom();
    }
  }
  return std::max(room, CheckedBytes(LargestCommit(owner), memory_->page_size())
                            .value_or(Bytes(UINT64_MAX)));
}

PageCount DeviceAllocator::Impl::LargestCommit(OwnerId owner) {
  std::vector<uint64_t> idle;
  {
    const HookDeferral deferral(memory_);
    MutexLock lock(&mutex_);
    FlushCaches();
    for (const auto& heap : heaps_) {
      const size_t id = heap->owner().value();
      if (id >= idle.size()) idle.resize(id + 1);
      idle[id] += AwaitablePages(*heap);
    }
  }
  // Asks reclaimers, and this one takes the lock.
  return memory_->CalculateLargestCommit(owner, idle);
}

uint64_t DeviceAllocator::Impl::AwaitablePages(const OwnerHeap& heap) const {
  const auto is_captured = [&heap](const SharedCooling& shared) {
    return !shared.fence && shared.block.span->heap == &heap;
  };
  const auto is_of_capture = [](const auto& list) {
    return list->captured() && !list->empty();
  };
  const bool awaits_capture =
      !captures_.empty() && (absl::c_any_of(heap.free_lists(), is_of_capture) ||
                             absl::c_any_of(shared_cooling_, is_captured));
  return awaits_capture ? heap.free_pages() : heap.reclaimable_pages();
}

uint64_t DeviceAllocator::Impl::RequestedOf(Block block) const {
  return block.span->large() ? block.span->requested.value()
                             : block.size() - block.record().load().waste();
}

AllocationInfo DeviceAllocator::Impl::InfoOf(Block block) const {
  const SlotRecord record = block.record().load();
  StreamId stream = block.span->stream;
  if (!block.span->large()) {
    stream = record.stream() < SlotRecord::kOtherStream
                 ? streams_[record.stream()]
                 : StreamId();
  }
  return {block.address(), Bytes(RequestedOf(block)), Bytes(block.size()),
          stream, block.span->heap->owner()};
}

bool DeviceAllocator::Impl::Manages(DeviceAddress address) const {
  return spans_ != nullptr && spans_->Find(address) != nullptr;
}

std::optional<OwnerId> DeviceAllocator::Impl::OwnerOf(
    DeviceAddress address) const {
  const Span* const span = spans_ == nullptr ? nullptr : spans_->Find(address);
  if (span == nullptr) return std::nullopt;
  return span->owner;
}

std::optional<AllocationInfo> DeviceAllocator::Impl::Find(
    DeviceAddress address) const {
  if (spans_ == nullptr) return std::nullopt;
  MutexLock lock(&mutex_);
  Span* span = spans_->Find(address);
  if (span != nullptr && span->marker) span = span->heap->FindLarge(address);
  if (span == nullptr) return std::nullopt;
  const std::optional<uint32_t> slot = span->SlotAround(address.value());
  if (!slot || span->record(*slot).load().use() != SlotUse::kLive) {
    return std::nullopt;
  }
  return InfoOf({span, *slot});
}

std::vector<AllocationInfo> DeviceAllocator::Impl::CalculateLiveAllocations()
    const {
  std::vector<AllocationInfo> live;
  if (spans_ == nullptr) return live;
  MutexLock lock(&mutex_);
  for (Span* const span : spans_->spans()) {
    if (span == nullptr) continue;
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      if (span->record(i).load().use() != SlotUse::kLive) continue;
      live.push_back(InfoOf({span, i}));
    }
  }
  std::sort(live.begin(), live.end(),
            [](const AllocationInfo& a, const AllocationInfo& b) {
              return a.address < b.address;
            });
  return live;
}

// ---- Failures ---------------------------------------------------------------

absl::Status DeviceAllocator::Impl::CheckAgainstLimit(
    const Request& request) const {
  if (request.size <= memory_->limit()) return absl::OkStatus();
  return memory_->DescribeShortage(PagesFor(request.size, memory_->page_size()),
                                   request.owner);
}

OutOfMemoryVerdict DeviceAllocator::Impl::Diagnose(const Request& request,
                                                   OutOfMemoryVerdict verdict) {
  verdict.requested = request.size;
  if (verdict.kind == ShortageKind::kAddressSpace) return verdict;
  verdict.largest_possible = GetLargestPossible(request.owner);
  MutexLock lock(&mutex_);
  // The pool counts slabs as live; only the allocator knows what is in them.
  Bytes pinned;
  for (const auto& heap : heaps_) {
    pinned = CheckedAdd(pinned, Bytes(heap->pinned_bytes()))
                 .value_or(Bytes(UINT64_MAX));
  }
  const Bytes missing = SaturatingSubtract(request.size, verdict.free);
  const bool sleep_helps = verdict.sleep_frees >= missing;
  // A little is unused wherever memory is in use. To a request for a slot that
  // says nothing, as long as owners rest who could give it a page.
  const bool small =
      classes_.ClassFor(request.size, request.alignment).has_value();
  if (verdict.kind != ShortageKind::kCapacity || missing.zero() ||
      (small && sleep_helps) ||
      PagesFor(missing, memory_->page_size()).value() >
          pinned.value() / memory_->page_size().value()) {
    return verdict;
  }
  verdict.kind = ShortageKind::kFragmentation;
  verdict.advice = absl::StrFormat(
      "%s lie free between live allocations, in slots of other sizes: free "
      "allocations of one size together, or allocate them in fewer sizes",
      FormatBytes(pinned));
  if (sleep_helps) {
    absl::StrAppend(&verdict.advice,
                    ", or put owners that rest to sleep, who could give up ",
                    FormatBytes(verdict.sleep_frees));
  }
  return verdict;
}

absl::Status DeviceAllocator::Impl::Fail(const Request& request,
                                         const absl::Status& cause) {
  absl::Status status = cause;
  if (const auto verdict = OutOfMemoryVerdict::FromStatus(cause)) {
    status = Diagnose(request, *verdict).ToStatus();
  }
  MutexLock lock(&mutex_);
  ++failed_allocations_;
  if (absl::IsResourceExhausted(status)) {
    Trace(TraceAction::kOutOfMemory, request.owner, DeviceAddress(),
          request.size, request.stream);
  }
  return status;
}

void DeviceAllocator::Impl::Trace(TraceAction action, OwnerId owner,
                                  DeviceAddress address, Bytes size,
                                  StreamId stream) const {
  if (options_.trace == nullptr) return;
  options_.trace->Record(action, owner, address, size, memory_->live_bytes(),
                         stream);
}

// ---- Checks -----------------------------------------------------------------

absl::Status DeviceAllocator::Impl::CheckInvariants() const {
  if (spans_ == nullptr) return absl::OkStatus();
  MutexLock lock(&mutex_);
  return CheckInvariantsLocked();
}

void DeviceAllocator::Impl::CheckAfterMutation() const {
  if constexpr (kInternalChecks) {
    if (spans_->spans().size() > kSpansCheckedAlways &&
        ++mutations_ % kMutationsPerCheck != 0) {
      return;
    }
    RequireInvariant(CheckInvariantsLocked());
  }
}

void DeviceAllocator::Impl::CheckAfterFastPath() const {
  if constexpr (kInternalChecks) {
    MutexLock lock(&mutex_);
    CheckAfterMutation();
  }
}

absl::Status DeviceAllocator::Impl::CheckInvariantsLocked() const {
  StopCaches(caches_);
  absl::Status status;
  for (const auto& heap : heaps_) {
    if (status.ok()) status = heap->CheckInvariants();
  }
  if (status.ok()) status = CheckCooling();
  if (status.ok()) status = CheckLive();
  ResumeCaches(caches_);
  return status;
}

// Every cooling block is in one list, and no other block is in any.
absl::Status DeviceAllocator::Impl::CheckCooling() const {
  std::map<const Span*, uint64_t> cooling;
  for (const auto& heap : heaps_) {
    const auto& lists = heap->free_lists();
    for (size_t i = 0; i < lists.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(lists[i]->CheckInvariants());
      if (i > 0 && lists[i - 1]->stream() >= lists[i]->stream()) {
        return absl::InternalError("allocator: free lists out of order");
      }
      lists[i]->CountBySpan(&cooling);
    }
  }
  for (const SharedCooling& shared : shared_cooling_) {
    ++cooling[shared.block.span];
  }
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->host == nullptr) continue;
    cooling[span->host] += cooling[span];
  }
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr) continue;
    // What cools of a guest is its host's.
    if (span->host != nullptr) continue;
    const uint64_t count = cooling[span];
    if (count != span->cooling) {
      return absl::InternalError(absl::StrFormat(
          "allocator: %u slots of the span at %#x cool, %u are listed",
          span->cooling, span->base, count));
    }
  }
  return absl::OkStatus();
}

// What is held is live or in the cache of a thread; what is live adds up to the
// counters.
absl::Status DeviceAllocator::Impl::CheckLive() const {
  int64_t live = 0;
  int64_t requested = 0;
  uint64_t special = 0;
  for (Span* const span : spans_->spans()) {
    if (span == nullptr) continue;
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      const Block block = {span, i};
      const SlotRecord record = block.record().load();
      if (record.use() != SlotUse::kLive) continue;
      if (RequestedOf(block) > block.size()) {
        return absl::InternalError(
            absl::StrFormat("allocator: %#x is smaller than what was asked for",
                            block.address().value()));
      }
      live += static_cast<int64_t>(block.size());
      requested += static_cast<int64_t>(RequestedOf(block));
      if (!record.special()) continue;
      ++special;
      if (!special_.contains(block.address().value())) {
        return absl::InternalError(
            absl::StrFormat("allocator: the streams of %#x are not known",
                            block.address().value()));
      }
    }
  }
  const AllocationCounters counted = CountAll();
  const uint64_t cached = CachedByThreads();
  uint64_t held = 0;
  for (const auto& heap : heaps_) held += heap->accounts().held_bytes;
  if (live != counted.live_bytes || requested != counted.requested_bytes ||
      held != static_cast<uint64_t>(live) + cached + reserved_bytes_ ||
      special != special_.size()) {
    return absl::InternalError(absl::StrFormat(
        "allocator: %d live bytes and %d requested by walking the spans, %d "
        "and %d counted; %u held, %u of them cached by threads; %u special "
        "blocks, %u known; %u bytes kept for moves",
        live, requested, counted.live_bytes, counted.requested_bytes, held,
        cached, special, special_.size(), reserved_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace quire
