#include "quire/alloc/event_trace.h"

#include <chrono>
#include <utility>

namespace quire {
namespace {

uint64_t SteadyNanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

const char* TraceActionName(TraceAction action) {
  switch (action) {
    case TraceAction::kAllocate:
      return "allocate";
    case TraceAction::kFree:
      return "free";
    case TraceAction::kCommit:
      return "commit";
    case TraceAction::kDecommit:
      return "decommit";
    case TraceAction::kOutOfMemory:
      return "out_of_memory";
    case TraceAction::kMark:
      return "mark";
  }
  return "unknown";
}

EventTrace::EventTrace(size_t capacity)
    : capacity_(capacity), start_(SteadyNanoseconds()) {}

void EventTrace::Record(TraceAction action, OwnerId owner,
                        DeviceAddress address, Bytes size, Bytes in_use) {
  Add({0, action, owner, address, size, in_use, std::string()});
}

void EventTrace::Mark(std::string label) {
  Add({0, TraceAction::kMark, OwnerId(), DeviceAddress(), Bytes(), Bytes(),
       std::move(label)});
}

void EventTrace::Add(TraceEvent event) {
  if (capacity_ == 0) return;
  MutexLock lock(&mutex_);
  // The clock is read under the lock, so that the ring is in order of time.
  event.nanoseconds = SteadyNanoseconds() - start_;
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(event));
  } else {
    ring_[total_ % capacity_] = std::move(event);
  }
  ++total_;
}

std::vector<TraceEvent> EventTrace::Events() const {
  MutexLock lock(&mutex_);
  std::vector<TraceEvent> events;
  events.reserve(ring_.size());
  const size_t oldest = ring_.size() < capacity_ || capacity_ == 0
                            ? 0
                            : static_cast<size_t>(total_ % capacity_);
  for (size_t i = 0; i < ring_.size(); ++i) {
    events.push_back(ring_[(oldest + i) % ring_.size()]);
  }
  return events;
}

uint64_t EventTrace::dropped() const {
  MutexLock lock(&mutex_);
  return total_ - ring_.size();
}

}  // namespace quire
