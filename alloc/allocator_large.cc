// Allocations larger than any size class: bytes of a heap's arena, planned once
// and taken where the plan still holds.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "alloc/allocator_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A heap that grows takes more pages than it needs: as many as it made detours
// since it last grew, up to one for so many pages that it has. Without any to
// spare, what comes apart at the peak of one round of a program would have to
// be put together again in each. But a program that is in its first round grows
// all the time, and has its peak before it.
constexpr uint64_t kPagesPerSpare = 512;
// Detours after which a heap that has stopped growing does so too, once.
constexpr uint64_t kDetoursBeforeSpares = 24;

// After so many, a large allocation takes all of its pages from the pool.
constexpr uint64_t kAttemptsBeforePool = 3;

}  // namespace

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateLarge(
    const Request& request) {
  QUIRE_RETURN_IF_ERROR(CheckAgainstLimit(request));
  // Below the limit, so this cannot overflow.
  const uint64_t bytes = PieceBytes(request.size);
  {
    MutexLock lock(&mutex_);
    KeepToLimit();
    OwnerHeap* const heap = HeapFor(request);
    std::optional<Block> block =
        heap->IsUntidy()
            ? TakeOrMap(heap, bytes, request)
            : heap->TakeLarge(bytes, request.alignment, request.stream,
                              /*tidily=*/false);
    if (!block) {
      Poll();
      block = TakeOrMap(heap, bytes, request);
    }
    if (block) return Publish(*block, request);
  }
  return AllocateNewRange(bytes, request);
}

absl::StatusOr<DeviceAddress> DeviceAllocator::Impl::AllocateNewRange(
    uint64_t bytes, const Request& request) {
  const auto add =
      [&](OwnerHeap* heap, RangeNeeds* needs)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            const uint64_t attempts = needs->attempts;
            if (attempts >= kAttemptsBeforePool) GiveOwnPages(heap, request);
            const auto make_plan = [&] {
              return heap->PlanLarge(bytes, request.alignment, request.stream);
            };
            LargePlan plan = make_plan();
            if (plan.new_pages > 0) {
              RecycleForLarge(plan.new_pages, heap);
              plan = make_plan();
            }
            const uint64_t spare =
                attempts == 0 ? SparePages(*heap, plan.new_pages) : 0;
            const uint64_t pages = plan.new_pages + spare;
            const uint64_t prepared = memory_->Harvest().value();
            *needs = {.pages = PageCount(pages),
                      .addresses = PageCount(plan.addresses + spare),
                      .alignment = request.alignment,
                      .missing = pages - std::min(pages, prepared),
                      .spare = spare,
                      .large = true,
                      .attempts = attempts + 1};
            absl::StatusOr<Block> block = heap->AddLarge(plan, spare);
            if (block.ok()) TrimDetours(heap, /*all=*/false);
            return block;
          };
  return AddAndPublish(request, add);
}

uint64_t DeviceAllocator::Impl::SparePages(const OwnerHeap& heap,
                                           uint64_t pages) const {
  if (pages == 0 && (heap.has_spares() ||
                     heap.detours_since_growth() < kDetoursBeforeSpares)) {
    return 0;
  }
  const uint64_t page = memory_->page_size().value();
  const uint64_t spare =
      std::min(heap.detours_since_growth(),
               heap.accounts().mapped_bytes / page / kPagesPerSpare);
  // Most heaps are too small to have any.
  if (spare == 0) return 0;
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  const uint64_t room = (pool.growable.value() + pool.cached.value()) / page;
  // Only where there is plenty.
  return room / 2 > pages + spare ? spare : 0;
}

void DeviceAllocator::Impl::KeepToLimit() {
  // One load, as long as there is plenty.
  if (memory_->pressure() == PressureLevel::kNone) return;
  const Bytes over = memory_->GetStatistics().over_limit;
  if (over.zero()) return;
  Collect();
  ReleaseFree(PagesFor(over, memory_->page_size()).value(), nullptr);
}

// Who is short of pages asks everybody for them, and this heap too: it would
// give a few each time, and be as short as before.
void DeviceAllocator::Impl::GiveOwnPages(OwnerHeap* heap,
                                         const Request& request) {
  heap->ReleaseFree(UINT64_MAX);
  if (StreamFreeList* const list = heap->FindFreeList(request.stream)) {
    heap->ReleaseCooling(list, UINT64_MAX);
  }
}

std::optional<Block> DeviceAllocator::Impl::TakeOrMap(OwnerHeap* heap,
                                                      uint64_t bytes,
                                                      const Request& request) {
  const bool untidy = heap->IsUntidy();
  if (const auto block =
          heap->TakeLarge(bytes, request.alignment, request.stream, untidy)) {
    return block;
  }
  // Without a page that is made.
  const LargePlan plan =
      heap->PlanLarge(bytes, request.alignment, request.stream);
  if (plan.new_pages > 0) {
    if (!untidy) return std::nullopt;
    return heap->TakeLarge(bytes, request.alignment, request.stream,
                           /*tidily=*/false);
  }
  if (SparePages(*heap, 0) > 0) return std::nullopt;
  const absl::StatusOr<Block> block = heap->UsePlan(plan);
  if (!block.ok()) return std::nullopt;
  TrimDetours(heap, /*all=*/false);
  return *block;
}

bool DeviceAllocator::Impl::DropAllDetours() {
  uint64_t dropped = 0;
  for (const auto& heap : heaps_) {
    dropped += TrimDetours(heap.get(), /*all=*/true);
  }
  return dropped > 0;
}

bool DeviceAllocator::Impl::FreeAddresses() {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  return DropAllDetours();
}

uint64_t DeviceAllocator::Impl::TrimDetours(OwnerHeap* heap, bool all) {
  return heap->TrimDetours(
      all, [this](StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return FindCapture(stream) == nullptr;
      });
}

uint64_t DeviceAllocator::Impl::RecycleForLarge(uint64_t wanted,
                                                OwnerHeap* heap) {
  uint64_t prepared = memory_->Harvest().value();
  if (prepared >= wanted) return prepared;
  const uint64_t before = heap->free_pages();
  CollectFor(wanted - prepared);
  heap->DissolveEmptySlabs(wanted - prepared, OwnerHeap::Keep::kSmallComebacks);
  const uint64_t gained =
      heap->free_pages() - std::min(before, heap->free_pages());
  for (const auto& other : heaps_) {
    if (prepared + gained >= wanted) break;
    if (other.get() == heap) continue;
    prepared += other->ReleaseFree(wanted - prepared - gained);
  }
  return memory_->Harvest().value() + gained;
}

}  // namespace quire
