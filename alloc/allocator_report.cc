#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0
                    : static_cast<double>(part) / static_cast<double>(whole);
}

// Checking builds walk everything after every mutation while that is cheap, and
// after one in so many beyond.
constexpr uint64_t kAllocationsCheckedAlways = 64;
constexpr uint64_t kMutationsPerCheck = 64;

AllocationInfo InfoOf(Block block) {
  const Slot& slot = block.span->slab->slot(block.slot);
  return {block.address(), slot.requested, block.size(), slot.stream,
          slot.owner};
}

}  // namespace

double AllocatorStatistics::internal_fragmentation() const {
  return Ratio(live_bytes - requested_bytes, live_bytes);
}

double AllocatorStatistics::external_fragmentation() const {
  return Ratio(mapped_bytes - live_bytes, mapped_bytes);
}

AllocatorStatistics DeviceAllocator::Impl::GetStatistics() const {
  MutexLock lock(&mutex_);
  AllocatorStatistics statistics = heap_.accounts();
  statistics.total_allocations = total_allocations_;
  statistics.total_frees = total_frees_;
  statistics.failed_allocations = failed_allocations_;
  return statistics;
}

Bytes DeviceAllocator::Impl::GetLargestPossible() const {
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  const uint64_t page = pool.page_size.value();
  const uint64_t pages =
      pool.growable.value() / page + pool.cached.value() / page +
      pool.cooling.value() / page + memory_->ReclaimablePages().value();
  if (pages > 0) {
    return CheckedBytes(PageCount(pages), pool.page_size)
        .value_or(Bytes(UINT64_MAX));
  }
  MutexLock lock(&mutex_);
  return heap_.LargestIdleSlot();
}

std::optional<AllocationInfo> DeviceAllocator::Impl::Find(
    DeviceAddress address) const {
  MutexLock lock(&mutex_);
  Span* const span = heap_.Find(address);
  if (span == nullptr || span->free()) return std::nullopt;
  const Slab& slab = *span->slab;
  const uint64_t slot =
      (address.value() - span->address().value()) / slab.slot_size().value();
  if (slot >= slab.slot_count() || slab.slot(slot).use != SlotUse::kLive) {
    return std::nullopt;
  }
  return InfoOf({span, static_cast<uint32_t>(slot)});
}

std::vector<AllocationInfo> DeviceAllocator::Impl::CalculateLiveAllocations()
    const {
  MutexLock lock(&mutex_);
  std::vector<AllocationInfo> live;
  live.reserve(heap_.accounts().live_allocations);
  for (const auto& span : heap_.spans()) {
    if (span == nullptr || span->free()) continue;
    for (uint32_t i = 0; i < span->slab->slot_count(); ++i) {
      if (span->slab->slot(i).use != SlotUse::kLive) continue;
      live.push_back(InfoOf({span.get(), i}));
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
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  if (request.size <= pool.limit) return absl::OkStatus();
  ShortageFacts facts;
  facts.requested = request.size;
  facts.limit = pool.limit;
  facts.in_use = pool.in_use;
  facts.cached = pool.cached;
  facts.cooling = pool.cooling;
  facts.device_free = pool.growable;
  facts.device_total = pool.limit;
  if (const absl::StatusOr<DeviceMemoryInfo> device =
          memory_->driver()->GetMemoryInfo(memory_->device());
      device.ok()) {
    facts.device_free = device->free;
    facts.device_total = device->total;
  }
  return DiagnoseShortage(std::move(facts)).ToStatus();
}

OutOfMemoryVerdict DeviceAllocator::Impl::Diagnose(
    const Request& request, OutOfMemoryVerdict verdict) const {
  verdict.requested = request.size;
  if (verdict.kind == ShortageKind::kAddressSpace) return verdict;
  verdict.largest_possible = GetLargestPossible();
  MutexLock lock(&mutex_);
  // The pool counts slabs as live; only the allocator knows what is in them.
  const Bytes pinned = heap_.pinned_bytes();
  verdict.held_as_slack =
      CheckedAdd(verdict.held_as_slack, pinned).value_or(Bytes(UINT64_MAX));
  const Bytes missing =
      CheckedSubtract(request.size, verdict.free).value_or(Bytes(0));
  if (verdict.kind == ShortageKind::kCapacity && pinned >= missing &&
      !pinned.zero()) {
    verdict.kind = ShortageKind::kFragmentation;
    verdict.advice = absl::StrFormat(
        "%s lie free between live allocations, in slots of other sizes: free "
        "allocations of one size together, or allocate them in fewer sizes",
        FormatBytes(pinned));
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
          request.size);
  }
  return status;
}

void DeviceAllocator::Impl::Trace(TraceAction action, OwnerId owner,
                                  DeviceAddress address, Bytes size) const {
  if (options_.trace == nullptr) return;
  options_.trace->Record(action, owner, address, size,
                         memory_->GetStatistics().live);
}

// ---- Checks -----------------------------------------------------------------

absl::Status DeviceAllocator::Impl::CheckInvariants() const {
  MutexLock lock(&mutex_);
  return CheckInvariantsLocked();
}

void DeviceAllocator::Impl::CheckAfterMutation() const {
  if constexpr (kInternalChecks) {
    if (heap_.accounts().live_allocations > kAllocationsCheckedAlways &&
        ++mutations_ % kMutationsPerCheck != 0) {
      return;
    }
    RequireInvariant(CheckInvariantsLocked());
  }
}

absl::Status DeviceAllocator::Impl::CheckInvariantsLocked() const {
  QUIRE_RETURN_IF_ERROR(heap_.CheckInvariants());
  for (size_t i = 0; i < free_lists_.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(free_lists_[i]->CheckInvariants());
    if (i > 0 && free_lists_[i - 1]->stream() >= free_lists_[i]->stream()) {
      return absl::InternalError("allocator: free lists out of order");
    }
  }
  // Every cooling block is in one list, and no other block is in any.
  std::map<const Span*, uint64_t> cooling;
  for (const auto& list : free_lists_) list->CountBySpan(&cooling);
  for (const SharedCooling& shared : shared_cooling_) {
    ++cooling[shared.block.span];
    if (shared.block.span->slab->slot(shared.block.slot).use !=
        SlotUse::kCooling) {
      return absl::InternalError(
          absl::StrFormat("allocator: %#x is listed as cooling and is not",
                          shared.block.address().value()));
    }
  }
  uint64_t shared_live = 0;
  for (const auto& span : heap_.spans()) {
    if (span == nullptr || span->free()) continue;
    const auto listed = cooling.find(span.get());
    const uint64_t count = listed == cooling.end() ? 0 : listed->second;
    if (count != span->slab->cooling_count()) {
      return absl::InternalError(absl::StrFormat(
          "allocator: %u slots of the span at %#x cool, %u are listed",
          span->slab->cooling_count(), span->address().value(), count));
    }
    for (uint32_t i = 0; i < span->slab->slot_count(); ++i) {
      const Slot& slot = span->slab->slot(i);
      if (slot.use != SlotUse::kLive || !slot.shared) continue;
      ++shared_live;
      if (!recorded_streams_.contains(Block{span.get(), i}.address())) {
        return absl::InternalError(
            absl::StrFormat("allocator: the streams of %#x are not known",
                            Block{span.get(), i}.address().value()));
      }
    }
  }
  if (shared_live != recorded_streams_.size()) {
    return absl::InternalError(absl::StrFormat(
        "allocator: streams are recorded for %u blocks, %u of them live",
        recorded_streams_.size(), shared_live));
  }
  return absl::OkStatus();
}

}  // namespace quire
