#include "alloc/event_ring.h"

#include <algorithm>
#include <new>

namespace quire {
namespace {

// Action, thread and owner share a word.
constexpr int kThreadShift = 8;
constexpr int kOwnerShift = 32;
constexpr uint64_t kThreadMask =
    (uint64_t{1} << (kOwnerShift - kThreadShift)) - 1;

uint64_t Pack(const RingEvent& event) {
  return uint64_t{static_cast<uint8_t>(event.action)} |
         (event.thread & kThreadMask) << kThreadShift |
         uint64_t{event.owner.value()} << kOwnerShift;
}

void Unpack(uint64_t word, RingEvent* event) {
  event->action = static_cast<TraceAction>(word & 0xff);
  event->thread = static_cast<uint32_t>(word >> kThreadShift & kThreadMask);
  event->owner = OwnerId(static_cast<uint32_t>(word >> kOwnerShift));
}

}  // namespace

EventRing::EventRing(size_t capacity)
    : capacity_(capacity),
      slots_(capacity + 1),
      chunks_((slots_ + kSlotsPerChunk - 1) / kSlotsPerChunk) {}

EventRing::~EventRing() {
  for (const std::atomic<Chunk*>& chunk : chunks_) delete chunk.load();
}

EventRing::Slot* EventRing::SlotForWriting(size_t position) {
  std::atomic<Chunk*>& place = chunks_[position / kSlotsPerChunk];
  Chunk* chunk = place.load(std::memory_order_relaxed);
  if (chunk == nullptr) {
    chunk = new (std::nothrow) Chunk();
    place.store(chunk, std::memory_order_release);
    if (chunk == nullptr) return nullptr;
  }
  return &(*chunk)[position % kSlotsPerChunk];
}

void EventRing::Push(const RingEvent& event) {
  if (Slot* const slot = SlotForWriting(position_)) {
    const std::array<uint64_t, kWords> words = {
        event.ticks,        Pack(event),          event.address.value(),
        event.size.value(), event.in_use.value(), event.stream.value()};
    for (size_t i = 0; i < kWords; ++i) {
      (*slot)[i].store(words[i], std::memory_order_release);
    }
  }
  position_ = position_ + 1 == slots_ ? 0 : position_ + 1;
  count_.store(count_.load(std::memory_order_relaxed) + 1,
               std::memory_order_release);
}

void EventRing::AppendTo(std::vector<RingEvent>* events) const {
  const uint64_t end = count();
  const uint64_t begin = end - std::min<uint64_t>(end, capacity_);
  const size_t first = events->size();
  // Numbers of those copied, to tell which were overwritten.
  std::vector<uint64_t> numbers;
  for (uint64_t n = begin; n < end; ++n) {
    const auto position = static_cast<size_t>(n % slots_);
    const Chunk* const chunk =
        chunks_[position / kSlotsPerChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) continue;
    const Slot& slot = (*chunk)[position % kSlotsPerChunk];
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) {
      words[i] = slot[i].load(std::memory_order_acquire);
    }
    RingEvent event;
    event.ticks = words[0];
    Unpack(words[1], &event);
    event.address = DeviceAddress(words[2]);
    event.size = Bytes(words[3]);
    event.in_use = Bytes(words[4]);
    event.stream = StreamId(words[5]);
    events->push_back(event);
    numbers.push_back(n);
  }
  const uint64_t now = count();
  const uint64_t whole = now - std::min<uint64_t>(now, capacity_);
  const auto torn = static_cast<std::ptrdiff_t>(
      std::lower_bound(numbers.begin(), numbers.end(), whole) -
      numbers.begin());
  const auto from = events->begin() + static_cast<std::ptrdiff_t>(first);
  events->erase(from, from + torn);
}

}  // namespace quire
