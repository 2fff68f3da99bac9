// Owners of an allocator that sleep and wake up.
//
// Before an owner's pages go, so does what is free of them, and what cools
// between live memory is waited for: what is left is live, or free and between
// what is. From then on its heap is asleep: nobody is handed anything of it,
// its caches of threads stay stopped, and what is freed is free at once, since
// nobody can be using it. DeviceMemory does the rest, and says when: to all
// allocators that work with it, whoever put the owner to sleep or woke it.

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "alloc/poll_interval.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/status_macros.h"

namespace quire {

// ---- Who sleeps -------------------------------------------------------------

bool DeviceAllocator::Impl::IsAsleep(OwnerId owner) const {
  if (sleep_marks_.empty()) return false;
  for (std::optional<OwnerId> id = owner; id;
       id = memory_->owners()->Parent(*id)) {
    const auto mark = sleep_marks_.find(*id);
    if (mark != sleep_marks_.end()) return mark->second;
  }
  return false;
}

absl::Status DeviceAllocator::Impl::CheckAwake(OwnerId owner) const {
  if (!IsAsleep(owner)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      Printable(memory_->owners()->Name(owner)), " is asleep: wake it first"));
}

void DeviceAllocator::Impl::MarkAsleep(OwnerId owner, bool asleep) {
  DropMarks(owner);
  // A mark is needed where it differs from that of the owners above.
  if (IsAsleep(owner) != asleep) sleep_marks_[owner] = asleep;
  ApplyMarks();
}

void DeviceAllocator::Impl::RestoreMarks(OwnerId owner,
                                         const SleepMarks& before) {
  DropMarks(owner);
  for (const auto& [marked, asleep] : before) {
    if (memory_->owners()->IsWithin(marked, owner)) {
      sleep_marks_[marked] = asleep;
    }
  }
  ApplyMarks();
}

void DeviceAllocator::Impl::DropMarks(OwnerId owner) {
  absl::erase_if(sleep_marks_, [&](const auto& mark) {
    return memory_->owners()->IsWithin(mark.first, owner);
  });
}

void DeviceAllocator::Impl::ApplyMarks() {
  some_sleep_.store(!sleep_marks_.empty(), std::memory_order_release);
  for (const auto& heap : heaps_) heap->set_asleep(IsAsleep(heap->owner()));
  for (const auto& cache : caches_) {
    cache->set_kept_stopped(cache->heap()->asleep() ||
                            FindCapture(cache->stream()) != nullptr);
  }
  // Threads are out of those that are to stay stopped, and of no other.
  StopCaches(caches_);
  ResumeCaches(caches_);
}

// ---- Sleep and wake ---------------------------------------------------------

bool DeviceAllocator::Impl::IsToSleep(const OwnerHeap& heap,
                                      OwnerId owner) const {
  return memory_->owners()->IsWithin(heap.owner(), owner) && !heap.asleep();
}

absl::Status DeviceAllocator::Impl::CheckCanSleep(OwnerId owner) const {
  const OwnerRegistry& owners = *memory_->owners();
  for (const PendingSleep& pending : pending_sleeps_) {
    if (owners.IsWithin(owner, pending.owner) ||
        owners.IsWithin(pending.owner, owner)) {
      return absl::FailedPreconditionError(
          absl::StrCat(Printable(owners.Name(pending.owner)),
                       " is being put to sleep by another thread"));
    }
  }
  if (relocating_) {
    return absl::FailedPreconditionError(
        "a relocation pass of this allocator is open");
  }
  for (const auto& [address, special] : special_) {
    if (special.pins == 0 ||
        !IsToSleep(*spans_->Find(DeviceAddress(address))->heap, owner)) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "%#x is pinned: it keeps its pages, so its owner cannot sleep",
        address));
  }
  for (const auto& [id, pool] : graph_pools_) {
    if (!IsToSleep(*pool.heap, owner)) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "graph pool %u keeps its pages, so its owner cannot sleep",
        id.value()));
  }
  return absl::OkStatus();
}

bool DeviceAllocator::Impl::CanSleep(OwnerId owner) const {
  if (!table_error_.ok()) return true;  // there is no memory
  MutexLock lock(&mutex_);
  return CheckCanSleep(owner).ok();
}

absl::Status DeviceAllocator::Impl::BeforeSleep(OwnerId owner) {
  if (!table_error_.ok()) return absl::OkStatus();  // there is no memory
  std::vector<OwnerHeap*> heaps;
  {
    MutexLock lock(&mutex_);
    QUIRE_RETURN_IF_ERROR(CheckCanSleep(owner));
    for (const auto& heap : heaps_) {
      if (IsToSleep(*heap, owner)) heaps.push_back(heap.get());
    }
    pending_sleeps_.push_back({owner, sleep_marks_});
    // Nothing can be allocated from here on, so that what is free stays free.
    MarkAsleep(owner, true);
  }
  const absl::Status cooled = AwaitCooling(heaps);
  if (!cooled.ok()) AfterSleep(owner, /*succeeded=*/false);
  return cooled;
}

absl::Status DeviceAllocator::Impl::AwaitCooling(
    const std::vector<OwnerHeap*>& heaps) {
  const HeapFilter falls_asleep = [&](const OwnerHeap& heap) {
    return std::find(heaps.begin(), heaps.end(), &heap) != heaps.end();
  };
  for (PollInterval interval;; interval.Sleep()) {
    const HookDeferral deferral(memory_);
    MutexLock lock(&mutex_);
    Collect();
    for (OwnerHeap* const heap : heaps) {
      TrimDetours(heap, /*all=*/true);
      heap->ReleaseFree(UINT64_MAX);
    }
    // Whole pages can cool without the owner.
    ReleaseCooling(UINT64_MAX, falls_asleep);
    CheckAfterMutation();
    const bool cools =
        std::any_of(heaps.begin(), heaps.end(), [](const OwnerHeap* heap) {
          return heap->accounts().cooling_bytes > 0;
        });
    if (!cools) return absl::OkStatus();
    if (!CanCool(falls_asleep)) {
      return absl::FailedPreconditionError(
          "memory that was freed on a stream lies between what is to sleep, "
          "and the driver cannot tell when the stream is done with it");
    }
  }
}

void DeviceAllocator::Impl::AfterSleep(OwnerId owner, bool succeeded) {
  MutexLock lock(&mutex_);
  const auto pending = std::find_if(
      pending_sleeps_.begin(), pending_sleeps_.end(),
      [owner](const PendingSleep& other) { return other.owner == owner; });
  if (pending == pending_sleeps_.end()) return;
  if (!succeeded) RestoreMarks(owner, pending->before);
  pending_sleeps_.erase(pending);
  CheckAfterMutation();
}

void DeviceAllocator::Impl::AfterWake(OwnerId owner) {
  MutexLock lock(&mutex_);
  MarkAsleep(owner, false);
  CheckAfterMutation();
}

absl::StatusOr<SleepReport> DeviceAllocator::Impl::Sleep(
    const QuiescentSection& section, OwnerId owner,
    const SleepOptions& options) {
  QUIRE_RETURN_IF_ERROR(section.CheckOpen(*memory_, "sleep"));
  QUIRE_RETURN_IF_ERROR(table_error_);
  TellBefore(CompactionLevel::kSleep);
  const absl::StatusOr<SleepReport> report =
      memory_->Sleep(section, owner, options);
  TellAfter(CompactionLevel::kSleep, report.value_or(SleepReport()));
  return report;
}

absl::StatusOr<SleepReport> DeviceAllocator::Impl::Wake(
    OwnerId owner, const WakeOptions& options) {
  QUIRE_RETURN_IF_ERROR(table_error_);
  TellBefore(CompactionLevel::kWake);
  const absl::StatusOr<SleepReport> report = memory_->Wake(owner, options);
  TellAfter(CompactionLevel::kWake, report.value_or(SleepReport()));
  return report;
}

// ---- While an owner sleeps --------------------------------------------------

void DeviceAllocator::Impl::FreeAsleep(Block block, StreamId stream) {
  OwnerHeap* const heap = block.span->heap;
  const DeviceAddress address = block.address();
  const uint64_t size = block.size();
  const uint64_t requested = RequestedOf(block);
  const SlotRecord was = block.record().load();
  block.record().store(was.Freed());
  if (was.special()) ForgetSpecial(address);
  CountFree(heap, size, requested);
  Trace(TraceAction::kFree, heap->owner(), address, Bytes(requested), stream);
  heap->Free(block);
  // What was saved of it goes at once.
  heap->ReleaseFree(UINT64_MAX);
}

absl::Status DeviceAllocator::Impl::RefuseAsleep(Block block) {
  OwnerHeap* const heap = block.span->heap;
  heap->Free(block);
  heap->ReleaseFree(UINT64_MAX);
  CheckAfterMutation();
  return CheckAwake(heap->owner());
}

}  // namespace quire
