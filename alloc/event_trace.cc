#include "quire/alloc/event_trace.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "alloc/event_ring.h"
#include "alloc/tick_clock.h"

namespace quire {
namespace {

std::atomic<uint64_t> next_trace_serial{1};
std::atomic<uint32_t> next_thread_number{1};

// What Record needs at hand: trivial, so that it is still there while a thread
// ends.
struct Recent {
  uint64_t trace_serial = 0;  // 0: of no trace
  EventRing* ring = nullptr;
  uint32_t thread = 0;  // 0: not numbered yet
  bool ended = false;   // this thread's rings went back
};
constinit thread_local Recent recent;

// The rings that this thread writes, one per trace. Each is shared with its
// trace, so that neither outlives what the other needs.
class HeldRings {
 public:
  ~HeldRings() {
    for (const Held& held : held_) held.ring->LetGo();
    recent.trace_serial = 0;
    recent.ended = true;
  }

  EventRing* Find(uint64_t trace_serial) const {
    for (const Held& held : held_) {
      if (held.trace_serial == trace_serial) return held.ring.get();
    }
    return nullptr;
  }
  void Add(uint64_t trace_serial, std::shared_ptr<EventRing> ring) {
    // Rings that nobody else knows are those of traces that are gone.
    std::erase_if(held_,
                  [](const Held& held) { return held.ring.use_count() == 1; });
    held_.push_back({trace_serial, std::move(ring)});
  }

 private:
  struct Held {
    uint64_t trace_serial;
    std::shared_ptr<EventRing> ring;
  };
  std::vector<Held> held_;
};
thread_local HeldRings held_rings;

uint32_t ThisThread() {
  if (recent.thread == 0) {
    recent.thread = next_thread_number.fetch_add(1, std::memory_order_relaxed);
  }
  return recent.thread;
}

constexpr struct {
  TraceAction action;
  const char* name;
} kActionNames[] = {
    {TraceAction::kAllocate, "allocate"},
    {TraceAction::kFree, "free"},
    {TraceAction::kFreeCompleted, "free_completed"},
    {TraceAction::kRecordStream, "record_stream"},
    {TraceAction::kOutOfMemory, "out_of_memory"},
    {TraceAction::kCommit, "commit"},
    {TraceAction::kDecommit, "decommit"},
    {TraceAction::kReserve, "reserve"},
    {TraceAction::kRelease, "release"},
    {TraceAction::kLimit, "limit"},
    {TraceAction::kSoftLimit, "soft_limit"},
    {TraceAction::kOwnerLimit, "owner_limit"},
    {TraceAction::kOwnerSoftLimit, "owner_soft_limit"},
    {TraceAction::kOwnerMinimum, "owner_minimum"},
    {TraceAction::kTrim, "trim"},
    {TraceAction::kMesh, "mesh"},
    {TraceAction::kRelocate, "relocate"},
    {TraceAction::kSleep, "sleep"},
    {TraceAction::kWake, "wake"},
    {TraceAction::kMark, "mark"},
};

}  // namespace

const char* TraceActionName(TraceAction action) {
  for (const auto& known : kActionNames) {
    if (known.action == action) return known.name;
  }
  return "unknown";
}

std::optional<TraceAction> TraceActionFromName(std::string_view name) {
  for (const auto& known : kActionNames) {
    if (known.name == name) return known.action;
  }
  return std::nullopt;
}

EventTrace::EventTrace(size_t capacity)
    : capacity_(capacity),
      serial_(next_trace_serial.fetch_add(1, std::memory_order_relaxed)),
      clock_(std::make_unique<TickClock>()) {}

EventTrace::~EventTrace() = default;

EventRing* EventTrace::FindRing() {
  if (recent.ended) return nullptr;
  EventRing* ring = held_rings.Find(serial_);
  if (ring == nullptr) {
    MutexLock lock(&mutex_);
    std::shared_ptr<EventRing> shared;
    // The ring of a thread that has ended serves the next one, so that memory
    // is bounded by the threads there are at a time.
    for (const std::shared_ptr<EventRing>& each : rings_) {
      if (!each->TryHold()) continue;
      shared = each;
      break;
    }
    if (shared == nullptr) {
      shared = std::make_shared<EventRing>(capacity_);
      (void)shared->TryHold();
      rings_.push_back(shared);
    }
    ring = shared.get();
    held_rings.Add(serial_, std::move(shared));
  }
  recent.trace_serial = serial_;
  recent.ring = ring;
  return ring;
}

void EventTrace::Record(TraceAction action, OwnerId owner,
                        DeviceAddress address, Bytes size, Bytes in_use,
                        StreamId stream) {
  if (capacity_ == 0) return;
  const RingEvent event = {clock_->Ticks(), action, owner,  ThisThread(),
                           address,         size,   in_use, stream};
  EventRing* const ring =
      recent.trace_serial == serial_ ? recent.ring : FindRing();
  if (ring != nullptr) return ring->Push(event);
  MutexLock lock(&mutex_);
  if (late_ring_ == nullptr) {
    late_ring_ = std::make_shared<EventRing>(capacity_);
    (void)late_ring_->TryHold();  // never a thread's
    rings_.push_back(late_ring_);
  }
  late_ring_->Push(event);
}

void EventTrace::Mark(std::string label) {
  if (capacity_ == 0) return;
  MutexLock lock(&mutex_);
  // The clock is read under the lock, so that marks are in order of time.
  marks_.push_back({clock_->Ticks(), ThisThread(), std::move(label)});
  if (marks_.size() > capacity_) marks_.pop_front();
  ++total_marks_;
}

uint64_t EventTrace::Total() const {
  uint64_t total = total_marks_;
  for (const auto& ring : rings_) total += ring->count();
  return total;
}

std::vector<TraceEvent> EventTrace::Events() const {
  std::vector<RingEvent> recorded;
  std::deque<TraceMark> marks;
  {
    MutexLock lock(&mutex_);
    marks = marks_;
    for (const auto& ring : rings_) ring->AppendTo(&recorded);
  }
  // A later tick is never an earlier time, so that the order stays.
  const TickClock::Reading time = clock_->Read();
  std::vector<TraceEvent> events;
  events.reserve(marks.size() + recorded.size());
  for (TraceMark& mark : marks) {
    events.push_back({.nanoseconds = time.Nanoseconds(mark.ticks),
                      .thread = mark.thread,
                      .label = std::move(mark.label)});
  }
  for (const RingEvent& event : recorded) {
    events.push_back({.nanoseconds = time.Nanoseconds(event.ticks),
                      .action = event.action,
                      .owner = event.owner,
                      .address = event.address,
                      .size = event.size,
                      .in_use = event.in_use,
                      .stream = event.stream,
                      .thread = event.thread});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) {
                     return a.nanoseconds < b.nanoseconds;
                   });
  // Each ring keeps as many as all of them may: what is last of all is there.
  if (events.size() > capacity_) {
    events.erase(events.begin(),
                 events.end() - static_cast<std::ptrdiff_t>(capacity_));
  }
  return events;
}

uint64_t EventTrace::dropped() const {
  MutexLock lock(&mutex_);
  const uint64_t total = Total();
  return total - std::min<uint64_t>(total, capacity_);
}

}  // namespace quire
