// A ring of trace events with one writer and any number of readers, none of
// whom waits for another.
//
// Every word is atomic. The writer publishes an event by counting it; a reader
// copies and then looks at the count again: what may have been overwritten
// meanwhile is left out. Release stores of the words make that sound: whoever
// sees a word of event n + slots also sees that event n + slots - 1 was
// counted. There is one slot more than events to keep: the one being written.
//
// Memory is taken in chunks as events come.

#ifndef QUIRE_ALLOC_EVENT_RING_H_
#define QUIRE_ALLOC_EVENT_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "quire/alloc/event_trace.h"

namespace quire {

// A TraceEvent as the ring keeps it, without a label. What it is made of is
// trivial, so that a thread that records does little else.
struct RingEvent {
  uint64_t ticks;  // TickClock's
  TraceAction action;
  OwnerId owner;
  uint32_t thread;
  DeviceAddress address;
  Bytes size;
  Bytes in_use;
  StreamId stream;
};

class EventRing {
 public:
  // REQUIRES: capacity > 0.
  explicit EventRing(size_t capacity);
  ~EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // Only from the thread that holds the ring.
  void Push(const RingEvent& event);

  // Adds what is held, oldest first.
  void AppendTo(std::vector<RingEvent>* events) const;
  // Events pushed so far, those without memory included.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  // A ring is one thread's at a time; the next one goes on where it stopped.
  bool TryHold() { return !held_.exchange(true, std::memory_order_acquire); }
  void LetGo() { held_.store(false, std::memory_order_release); }

 private:
  static constexpr size_t kWords = 6;
  static constexpr size_t kSlotsPerChunk = 256;
  using Slot = std::array<std::atomic<uint64_t>, kWords>;
  using Chunk = std::array<Slot, kSlotsPerChunk>;

  // Null where there is no memory for it. Writer only.
  Slot* SlotForWriting(size_t position);

  const size_t capacity_;
  const size_t slots_;
  std::atomic<bool> held_{false};
  std::atomic<uint64_t> count_{0};
  size_t position_ = 0;  // count_ % slots_; the writer's
  // Each is made at most once and stays.
  std::vector<std::atomic<Chunk*>> chunks_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_EVENT_RING_H_
