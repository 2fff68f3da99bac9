// Streams by the index that records of slots have for them.
//
// A program may make a stream for each request. Records have few bits for one,
// and whoever has none is waited for together with all others that have none:
// so indices of streams that are gone are used again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "alloc/allocator_impl.h"

namespace quire {
namespace {

// Looking for streams that are gone takes some calls of the driver for each
// that is known, and a walk over the live slots: only where short records have
// no index left, and no more often than for so many new streams, or this part
// of the known ones.
constexpr size_t kStreamsPerLook = 8;
constexpr size_t kKnownStreamsPerLook = 8;

}  // namespace

uint32_t DeviceAllocator::Impl::IndexOfStream(StreamId stream) {
  const auto known = index_of_stream_.find(stream);
  const size_t index =
      known == index_of_stream_.end() ? AddStream(stream) : known->second;
  return static_cast<uint32_t>(
      std::min<size_t>(index, SlotRecord::kOtherStream));
}

size_t DeviceAllocator::Impl::AddStream(StreamId stream) {
  if (unused_stream_indices_.empty() && streams_.size() >= streams_at_look_) {
    DropStreamsThatAreGone();
  }
  if (unused_stream_indices_.empty()) {
    unused_stream_indices_.push_back(streams_.size());
    streams_.emplace_back();
  }
  const size_t index = unused_stream_indices_.back();
  unused_stream_indices_.pop_back();
  streams_[index] = stream;
  index_of_stream_[stream] = index;
  return index;
}

// Destroying a stream waits for its work, so that nobody has to wait for it any
// more, and its index may mean another one; what is cached for it serves
// others. But live slots say for which stream they are.
void DeviceAllocator::Impl::DropStreamsThatAreGone() {
  std::vector<bool> gone(streams_.size());
  for (size_t i = 0; i < streams_.size(); ++i) {
    gone[i] =
        streams_[i] != StreamId() && absl::IsNotFound(CheckStream(streams_[i]));
  }
  std::vector<ThreadCache*> caches;
  for (const auto& cache : caches_) {
    const auto known = index_of_stream_.find(cache->stream());
    if (known != index_of_stream_.end() && gone[known->second]) {
      caches.push_back(cache.get());
    }
  }
  StopCaches(caches);
  for (ThreadCache* const cache : caches) DrainCache(cache, /*half=*/false);
  for (const Span* const span : spans_->spans()) {
    if (span == nullptr || span->large()) continue;
    for (uint32_t i = 0; i < span->slot_count; ++i) {
      const SlotRecord record = span->record(i).load();
      if (record.use() == SlotUse::kLive && record.stream() < gone.size()) {
        gone[record.stream()] = false;
      }
    }
  }
  // Whoever goes on with one of them all the same gets no index by its cache.
  for (ThreadCache* const cache : caches) {
    if (gone[index_of_stream_.at(cache->stream())]) {
      cache->set_stream_index(SlotRecord::kOtherStream);
    }
  }
  ResumeCaches(caches);
  for (size_t i = gone.size(); i-- > 0;) {
    if (!gone[i]) continue;
    index_of_stream_.erase(streams_[i]);
    streams_[i] = StreamId();
    unused_stream_indices_.push_back(i);  // the lowest is the last
  }
  const size_t enough =
      std::max(kStreamsPerLook, streams_.size() / kKnownStreamsPerLook);
  streams_at_look_ = unused_stream_indices_.size() >= enough
                         ? streams_.size()
                         : streams_.size() + enough;
}

}  // namespace quire
