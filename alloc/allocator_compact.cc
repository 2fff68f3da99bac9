#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "alloc/allocator_impl.h"
#include "alloc/compaction_timer.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<CompactionReport> DeviceAllocator::Impl::Mesh(
    const QuiescentSection& section, const MeshOptions& options) {
  QUIRE_RETURN_IF_ERROR(section.CheckOpen(*memory_, "mesh"));
  QUIRE_RETURN_IF_ERROR(table_error_);
  Driver* const driver = memory_->driver();
  const CompactionTimer timer(*driver);
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                         driver->CreateStream(memory_->device()));
  TellBefore(CompactionLevel::kMesh);
  CompactionReport report;
  absl::Status status;
  {
    const HookDeferral deferral(memory_);
    MutexLock lock(&mutex_);
    Collect();
    const auto is_pinned = [this](Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                               mutex_) { return IsPinned(block); };
    for (const auto& heap : heaps_) {
      if (heap->asleep()) continue;
      if (heap->kept_for_graphs()) continue;
      if (options.owner && heap->owner() != *options.owner) continue;
      status = heap->Mesh(options.smallest_slot, stream, is_pinned, &report);
      if (!status.ok()) break;
    }
    // Copies of a pass that failed may be on their way.
    (void)driver->SynchronizeStream(stream);
    CheckAfterMutation();
  }
  (void)driver->DestroyStream(stream);
  timer.Report(&report);
  TraceCompaction(TraceAction::kMesh, options.owner, report);
  TellAfter(CompactionLevel::kMesh, report);
  if (absl::IsResourceExhausted(status)) {
    return memory_->DescribeMappingShortage(
        PageCount(1), options.owner.value_or(kUnnamedOwner), status);
  }
  QUIRE_RETURN_IF_ERROR(status);
  return report;
}

void DeviceAllocator::Impl::TraceCompaction(
    TraceAction action, std::optional<OwnerId> owner,
    const CompactionReport& report) const {
  Trace(
      action, owner.value_or(kUnnamedOwner), memory_->first_address(),
      CheckedBytes(report.pages_freed, memory_->page_size()).value_or(Bytes(0)),
      StreamId());
}

CompactionFacts DeviceAllocator::Impl::GatherFacts(
    std::chrono::steady_clock::time_point now) {
  const auto seconds_since = [now](std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  CompactionFacts facts;
  facts.pool_limit = pool.limit;
  facts.pool_in_use = pool.in_use;
  facts.time = std::chrono::system_clock::now();
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  Collect();
  for (const auto& heap : heaps_) {
    if (heap->kept_for_graphs()) continue;
    const HeapAccounts accounts = heap->accounts();
    facts.mapped = Bytes(facts.mapped.value() + accounts.mapped_bytes);
    facts.live = Bytes(facts.live.value() + accounts.held_bytes);
    facts.cached = Bytes(facts.cached.value() + accounts.free_bytes);
    facts.pinned = Bytes(facts.pinned.value() + heap->pinned_bytes());
  }
  facts.failed_allocations = failed_allocations_ - failures_at_compaction_;
  facts.seconds_since_last = last_compaction_
                                 ? seconds_since(*last_compaction_)
                                 : std::numeric_limits<double>::infinity();
  // Counters that are there anyway tell whether anything was done since: the
  // fast paths need not look at a clock.
  const AllocationCounters counted = CountAll();
  const uint64_t operations = counted.allocations + counted.frees;
  if (!idle_since_ || operations != operations_at_compaction_) {
    operations_at_compaction_ = operations;
    idle_since_ = now;
  }
  facts.seconds_idle = seconds_since(*idle_since_);
  return facts;
}

absl::StatusOr<CompactionReport> DeviceAllocator::Impl::Compact(
    const QuiescentSection& section, CompactionPolicy* policy) {
  QUIRE_RETURN_IF_ERROR(section.CheckOpen(*memory_, "compact"));
  QUIRE_RETURN_IF_ERROR(table_error_);
  const auto now = std::chrono::steady_clock::now();
  const CompactionFacts facts = GatherFacts(now);
  const std::vector<CompactionLevel> levels = policy->Decide(facts);
  CompactionReport sum;
  const CompactionTimer timer(*memory_->driver());
  for (const CompactionLevel level : levels) {
    CompactionReport report;
    if (level == CompactionLevel::kMesh) {
      QUIRE_ASSIGN_OR_RETURN(report, Mesh(section, {}));
    } else if (level == CompactionLevel::kTrim) {
      report = TrimToDriver();
    }
    sum.moves += report.moves;
    sum.bytes_moved =
        Bytes(sum.bytes_moved.value() + report.bytes_moved.value());
    sum.pages_freed =
        PageCount(sum.pages_freed.value() + report.pages_freed.value());
  }
  timer.Report(&sum);
  if (!levels.empty()) {
    MutexLock lock(&mutex_);
    last_compaction_ = now;
    failures_at_compaction_ = failed_allocations_;
  }
  return sum;
}

PageReclaimer::CompactionEstimate DeviceAllocator::Impl::EstimateCompaction()
    const {
  const DeviceMemoryStatistics pool = memory_->GetStatistics();
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  FlushCaches();
  const auto is_pinned = [this](Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                             mutex_) { return IsPinned(block); };
  const auto is_movable = [this](Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                              mutex_) { return IsMovable(block); };
  const auto stays = [](const OwnerHeap& heap) {
    return heap.asleep() || heap.kept_for_graphs();
  };
  std::vector<OwnerHeap::MeshEstimate> meshed(heaps_.size());
  uint64_t mesh = 0;
  for (size_t i = 0; i < heaps_.size(); ++i) {
    if (stays(*heaps_[i])) continue;
    meshed[i] = heaps_[i]->EstimateMesh(MeshOptions().smallest_slot, is_pinned,
                                        is_movable);
    mesh += meshed[i].pages;
  }
  // What BeginRelocation finds, or makes.
  const uint64_t page = pool.page_size.value();
  const uint64_t growable = pool.growable.value() / page;
  uint64_t prepared = std::max(pool.cached.value() / page + mesh,
                               std::min<uint64_t>(growable, 1));
  uint64_t relocation = 0;
  // No pass begins while another one is open.
  for (size_t i = 0; i < heaps_.size() && !relocating_; ++i) {
    if (stays(*heaps_[i])) continue;
    relocation += heaps_[i]->EstimateRelocation(meshed[i], &prepared);
  }
  return {PageCount(mesh), PageCount(relocation)};
}

void DeviceAllocator::Impl::TellBefore(CompactionLevel level) const {
  if (options_.listener == nullptr) return;
  options_.listener->BeforeCompaction(level);
}

void DeviceAllocator::Impl::TellAfter(CompactionLevel level,
                                      const CompactionReport& report) const {
  if (options_.listener == nullptr) return;
  options_.listener->AfterCompaction(level, report);
}

CompactionReport DeviceAllocator::Impl::Trim(Bytes keep) {
  TellBefore(CompactionLevel::kTrim);
  CompactionReport report;
  const CompactionTimer timer(*memory_->driver());
  report.pages_freed = TrimToPool(keep);
  timer.Report(&report);
  TellAfter(CompactionLevel::kTrim, report);
  return report;
}

CompactionReport DeviceAllocator::Impl::TrimToDriver() {
  TellBefore(CompactionLevel::kTrim);
  CompactionReport report;
  const CompactionTimer timer(*memory_->driver());
  TrimToPool(Bytes(0));
  report.pages_freed = memory_->Trim(PageCount(0)).pages_freed;
  timer.Report(&report);
  TellAfter(CompactionLevel::kTrim, report);
  return report;
}

}  // namespace quire
