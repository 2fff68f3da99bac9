// What is known of one slot of a slab, in four bytes on the host.
//
// One word, so that the thread that allocates or frees a slot describes it with
// one store and no lock. Whoever holds a slot is the only one to change its
// record: the thread that takes it from a cache, or the holder of the
// allocator's lock while the slot is in a slab or cools.

#ifndef QUIRE_ALLOC_SLOT_RECORD_H_
#define QUIRE_ALLOC_SLOT_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quire {

// What two threads write to should lie so far apart, or each write costs ten
// times as much: a pair of cache lines, which processors fetch together.
inline constexpr size_t kSharingBytes = 128;

enum class SlotUse : uint32_t {
  kUnused = 0,  // never handed out
  kLive = 1,
  kFreed = 2,  // given back; free, in a cache, or cooling
};

class SlotRecord {
 public:
  static constexpr int kWasteBits = 21;
  static constexpr uint32_t kMaxWaste = (1u << kWasteBits) - 1;
  static constexpr int kStreamBits = 6;
  // Stands for every stream that has no index of its own.
  static constexpr uint32_t kOtherStream = (1u << kStreamBits) - 1;

  constexpr SlotRecord() = default;
  constexpr explicit SlotRecord(uint32_t word) : word_(word) {}
  // A live slot for a stream, `waste` bytes longer than what was asked for.
  // REQUIRES: waste <= kMaxWaste and stream <= kOtherStream.
  static constexpr SlotRecord Live(uint32_t waste, uint32_t stream,
                                   bool inherits) {
    return SlotRecord(static_cast<uint32_t>(SlotUse::kLive) |
                      (inherits ? kInherits : 0) | waste << kWasteShift |
                      stream << kStreamShift);
  }

  constexpr uint32_t word() const { return word_; }
  constexpr SlotUse use() const { return static_cast<SlotUse>(word_ & 3); }
  // Live, and nothing has to be waited for beside the work of the stream that
  // it is freed on: the test of the fast path of a free.
  constexpr bool plainly_live_for(uint32_t stream) const {
    const uint32_t state = word_ & (3 | kSpecial | kInherits);
    const auto live = static_cast<uint32_t>(SlotUse::kLive);
    return state == live ||
           (state == (live | kInherits) && this->stream() == stream &&
            stream != kOtherStream);
  }
  // The allocator's table of special blocks knows more.
  constexpr bool special() const { return (word_ & kSpecial) != 0; }
  // It was freed on its stream before and handed out again before the work
  // queued there was known to be done: whoever else gets it must wait for that
  // as well.
  constexpr bool inherits() const { return (word_ & kInherits) != 0; }
  // A relocation pass may move it.
  constexpr bool movable() const { return (word_ & kMovable) != 0; }
  constexpr uint32_t waste() const { return word_ >> kWasteShift & kMaxWaste; }
  constexpr uint32_t stream() const { return word_ >> kStreamShift; }

  constexpr SlotRecord Freed() const {
    return SlotRecord((word_ & ~(3u | kSpecial | kMovable)) |
                      static_cast<uint32_t>(SlotUse::kFreed));
  }
  constexpr SlotRecord WithInherits(bool inherits) const {
    return SlotRecord(inherits ? word_ | kInherits : word_ & ~kInherits);
  }
  constexpr SlotRecord WithSpecial(bool special) const {
    return SlotRecord(special ? word_ | kSpecial : word_ & ~kSpecial);
  }
  constexpr SlotRecord WithMovable(bool movable) const {
    return SlotRecord(movable ? word_ | kMovable : word_ & ~kMovable);
  }

 private:
  static constexpr uint32_t kSpecial = 4;
  static constexpr uint32_t kInherits = 8;
  static constexpr uint32_t kMovable = 16;
  static constexpr int kWasteShift = 5;
  static constexpr int kStreamShift = kWasteShift + kWasteBits;
  static_assert(kStreamShift + kStreamBits == 32);

  uint32_t word_ = 0;
};

// The record where threads find it. Relaxed: the address that a thread was
// given orders everything before it.
class AtomicSlotRecord {
 public:
  SlotRecord load() const {
    return SlotRecord(word_.load(std::memory_order_relaxed));
  }
  void store(SlotRecord record) {
    word_.store(record.word(), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> word_{0};
};
static_assert(sizeof(AtomicSlotRecord) == 4);

}  // namespace quire

#endif  // QUIRE_ALLOC_SLOT_RECORD_H_
