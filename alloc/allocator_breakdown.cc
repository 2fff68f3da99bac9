// Statistics of a DeviceAllocator by size class, stream and owner.
//
// One walk over spans and their slots gives what is live and how slabs are
// filled; heaps, free lists and caches know the rest. Threads are kept from
// their caches meanwhile, so that all of it is of one moment.

#include "quire/alloc/allocator_breakdown.h"

#include <cstdint>
#include <map>

#include "alloc/allocator_impl.h"
#include "alloc/fragmentation.h"

namespace quire {
namespace {

// Counts one live allocation in a row of any kind.
template <typename Row>
void AddLive(uint64_t requested, uint64_t allocated, Row* row) {
  ++row->live_allocations;
  row->requested_bytes += requested;
  row->live_bytes += allocated;
}

// mapped = live + cached + cooling + slack, and all but the cached is counted
// elsewhere: what a thread has cached looks like what is live but for its
// record.
template <typename Row>
void SetCached(Row* row) {
  row->cached_bytes = row->mapped_bytes - row->live_bytes - row->cooling_bytes -
                      row->slack_bytes;
}

// Of what is no slab.
constexpr uint64_t kNoSlotSize = 0;

}  // namespace

double SizeClassStatistics::internal_fragmentation() const {
  return InternalFragmentation(*this);
}
double SizeClassStatistics::external_fragmentation() const {
  return ExternalFragmentation(*this);
}
double OwnerUseStatistics::internal_fragmentation() const {
  return InternalFragmentation(*this);
}
double OwnerUseStatistics::external_fragmentation() const {
  return ExternalFragmentation(*this);
}

AllocatorBreakdown DeviceAllocator::Impl::CalculateStatistics() const {
  if (spans_ == nullptr) return AllocatorBreakdown();
  MutexLock lock(&mutex_);
  StopCaches(caches_);
  AllocatorBreakdown breakdown = CalculateStatisticsLocked();
  ResumeCaches(caches_);
  return breakdown;
}

AllocatorBreakdown DeviceAllocator::Impl::CalculateStatisticsLocked() const {
  std::map<uint64_t, SizeClassStatistics> classes;  // by slot size
  std::map<StreamId, StreamStatistics> streams;
  std::map<OwnerId, OwnerUseStatistics> owners;
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->marker) continue;
    SizeClassStatistics& row =
        classes[span->large() ? kNoSlotSize : span->slot_size];
    OwnerUseStatistics& owner = owners[span->owner];
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      const Block block{const_cast<Span*>(span), i};
      if (block.record().load().use() != SlotUse::kLive) continue;
      const AllocationInfo info = InfoOf(block);
      const uint64_t requested = info.requested.value();
      AddLive(requested, block.size(), &row);
      AddLive(requested, block.size(), &owner);
      AddLive(requested, block.size(), &streams[info.stream]);
    }
    // A guest's pages, and what cools of it, are its host's.
    if (span->large() || span->host != nullptr) continue;
    const uint64_t room = OwnerHeap::RoomOf(*span);
    ++row.slabs;
    row.mapped_bytes += room;
    row.slack_bytes += room - span->capacity();
    row.cooling_bytes += span->cooling * span->slot_size;
  }
  uint64_t mapped = 0;
  uint64_t cooling = 0;
  for (const auto& heap : heaps_) {
    const HeapAccounts accounts = heap->accounts();
    mapped += accounts.mapped_bytes;
    cooling += accounts.cooling_bytes;
    OwnerUseStatistics& owner = owners[heap->owner()];
    owner.cooling_bytes += accounts.cooling_bytes;
    owner.slack_bytes += accounts.slack_bytes;
    owner.mapped_bytes += accounts.mapped_bytes;
    owner.slabs += accounts.slabs;
    if (heap->asleep()) owner.asleep_bytes += accounts.mapped_bytes;
    if (heap->kept_for_graphs()) {
      owner.graph_pool_bytes += accounts.mapped_bytes;
    }
    for (const auto& list : heap->free_lists()) {
      if (list->empty()) continue;
      streams[list->stream()].cooling_bytes += list->bytes();
    }
  }
  for (const SharedCooling& shared : shared_cooling_) {
    for (const StreamId stream : shared.streams) {
      streams[stream].shared_cooling_bytes += shared.block.size();
    }
  }
  for (const auto& cache : caches_) {
    if (cache->cached_bytes() == 0) continue;
    streams[cache->stream()].thread_cached_bytes += cache->cached_bytes();
  }
  // What slabs do not have.
  SizeClassStatistics& rest = classes[kNoSlotSize];
  for (const auto& [slot_size, row] : classes) {
    if (slot_size == kNoSlotSize) continue;
    mapped -= row.mapped_bytes;
    cooling -= row.cooling_bytes;
  }
  rest.mapped_bytes = mapped;
  rest.cooling_bytes = cooling;

  AllocatorBreakdown breakdown;
  for (auto& [slot_size, row] : classes) {
    row.slot_size = slot_size;
    SetCached(&row);
    if (slot_size != kNoSlotSize) breakdown.classes.push_back(row);
  }
  if (rest.mapped_bytes > 0) breakdown.classes.push_back(rest);
  for (auto& [stream, row] : streams) {
    row.stream = stream;
    breakdown.streams.push_back(row);
  }
  for (auto& [owner, row] : owners) {
    row.owner = owner;
    SetCached(&row);
    if (row.mapped_bytes > 0) breakdown.owners.push_back(row);
  }
  return breakdown;
}

}  // namespace quire
