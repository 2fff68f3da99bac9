// Memory that graphs keep.
//
// A pool is an OwnerHeap beside that of its owner, which is kept for graphs: it
// gives back no page, and takes part in no compaction. Requests for a stream
// that is captured find it instead of their owner's (HeapFor). The caches that
// threads have for such a stream are stopped, so that every request for it
// looks there; those of other streams know nothing of it.
//
// No event is recorded on a captured stream: it would become a node of the
// graph, and to ask for it would be an error. Lists of what was freed on the
// stream keep their last batch open (StreamFreeList::set_captured), and blocks
// that wait for several streams get their fence later (SharedCooling).
//
// When a pool is released its heap becomes an ordinary one, which no request
// comes to: it ends when the last block of it was freed and is done.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status UnknownPool(GraphPoolId pool) {
  return absl::NotFoundError(
      absl::StrFormat("there is no graph pool %u", pool.value()));
}

// Of no other pool of the process, so that an allocator does not take one of
// another allocator for its own.
GraphPoolId NewPoolId() {
  static std::atomic<uint64_t> last{0};
  return GraphPoolId(last.fetch_add(1, std::memory_order_relaxed) + 1);
}

}  // namespace

absl::StatusOr<GraphPoolId> DeviceAllocator::Impl::CreateGraphPool(
    OwnerId owner) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  QUIRE_RETURN_IF_ERROR(table_error_);
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(CheckAwake(owner));
  const GraphPoolId id = NewPoolId();
  OwnerHeap* const heap = AddHeap(owner, ++graph_pools_made_);
  heap->set_kept_for_graphs(true);
  graph_pools_[id].heap = heap;
  return id;
}

absl::Status DeviceAllocator::Impl::BeginGraphCapture(GraphPoolId pool,
                                                      StreamId stream) {
  if (stream == StreamId()) {
    return absl::InvalidArgumentError("BeginGraphCapture without a stream");
  }
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  const auto found = graph_pools_.find(pool);
  if (found == graph_pools_.end()) return UnknownPool(pool);
  if (const Capture* const open = FindCapture(stream)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stream %u is captured already, into graph pool %u",
                        stream.value(), open->pool.value()));
  }
  QUIRE_RETURN_IF_ERROR(CheckStream(stream));
  StopCaches(caches_);
  for (const auto& cache : caches_) {
    if (cache->stream() != stream) continue;
    DrainCache(cache.get(), /*half=*/false);
    cache->set_kept_stopped(true);
  }
  ResumeCaches(caches_);
  for (const auto& heap : heaps_) {
    StreamFreeList* const list = heap->FindFreeList(stream);
    if (list == nullptr) continue;
    // The last chance before the capture ends; without it others wait longer.
    (void)list->CloseBatch();
    list->set_captured(true);
  }
  ++found->second.captures;
  captures_.push_back({stream, pool});
  some_capture_.store(true, std::memory_order_release);
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::EndGraphCapture(StreamId stream) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  const Capture* const capture = FindCapture(stream);
  if (capture == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stream %u is not captured", stream.value()));
  }
  GraphPool& pool = graph_pools_.at(capture->pool);
  std::erase_if(captures_, [stream](const Capture& open) {
    return open.stream == stream;
  });
  some_capture_.store(!captures_.empty(), std::memory_order_release);
  for (const auto& cache : caches_) {
    if (cache->stream() != stream) continue;
    cache->set_kept_stopped(cache->heap()->asleep());
    cache->Resume();
  }
  for (const auto& heap : heaps_) {
    if (heap.get() == pool.heap) continue;
    if (StreamFreeList* const list = heap->FindFreeList(stream)) {
      list->set_captured(false);
    }
  }
  if (--pool.captures == 0) {
    // Nothing has run. The next capture comes after this one, in every launch.
    for (const auto& list : pool.heap->free_lists()) {
      list->CloseBatchWith(Fence());
    }
  }
  Poll();
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::ReleaseGraphPool(
    GraphPoolId pool, std::span<const StreamId> streams) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  const auto found = graph_pools_.find(pool);
  if (found == graph_pools_.end()) return UnknownPool(pool);
  if (found->second.captures > 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%u captures into graph pool %u are open",
                        found->second.captures, pool.value()));
  }
  QUIRE_ASSIGN_OR_RETURN(const Fence fence, RecordFence(streams));
  OwnerHeap* const heap = found->second.heap;
  graph_pools_.erase(found);
  released_pools_.push_back({heap, {streams.begin(), streams.end()}});
  heap->set_kept_for_graphs(false);
  heap->ReleaseFree(UINT64_MAX, OwnerHeap::Keep::kNothing, fence);
  // What callers had freed waits for the graphs as well.
  for (SharedCooling& cooling : shared_cooling_) {
    if (cooling.block.span->heap != heap) continue;
    cooling.streams.insert(cooling.streams.end(), streams.begin(),
                           streams.end());
    cooling.fence.reset();
  }
  Poll();
  CheckAfterMutation();
  return absl::OkStatus();
}

const DeviceAllocator::Impl::Capture* DeviceAllocator::Impl::FindCapture(
    StreamId stream) const {
  const auto capture = std::find_if(
      captures_.begin(), captures_.end(),
      [stream](const Capture& open) { return open.stream == stream; });
  return capture == captures_.end() ? nullptr : &*capture;
}

absl::Status DeviceAllocator::Impl::CoolForGraphs(Block block,
                                                  StreamId stream) {
  std::vector<StreamId> streams = StreamsOf(block, stream);
  if (streams.empty()) return CoolOnStream(block, StreamId());
  const Capture* const capture = FindCapture(stream);
  if (capture != nullptr && streams.size() == 1 &&
      graph_pools_.at(capture->pool).heap == block.span->heap) {
    return CoolOnStream(block, stream);
  }
  // The lists of the heap are those of captured streams, so what waits for real
  // work does so by itself.
  if (stream != StreamId()) QUIRE_RETURN_IF_ERROR(CheckStream(stream));
  return CoolTogether(block, std::move(streams));
}

const std::vector<StreamId>* DeviceAllocator::Impl::ReleasedOn(
    const OwnerHeap& heap) const {
  const auto pool = std::find_if(
      released_pools_.begin(), released_pools_.end(),
      [&heap](const ReleasedPool& released) { return released.heap == &heap; });
  return pool == released_pools_.end() ? nullptr : &pool->streams;
}

void DeviceAllocator::Impl::DropReleasedPools() {
  for (size_t i = released_pools_.size(); i-- > 0;) {
    OwnerHeap* const heap = released_pools_[i].heap;
    if (heap->accounts().mapped_bytes > 0) continue;
    heap->ReleaseAll(Fence());
    HeapOf(heap->owner())->counters() += heap->counters();
    std::erase_if(heaps_,
                  [heap](const auto& other) { return other.get() == heap; });
    released_pools_.erase(released_pools_.begin() +
                          static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace quire
