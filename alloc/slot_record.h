// What is known of one slot of a slab, in four bytes on the host; in two where
// the slot is so small that four would be more than 1 % of it.
//
// One word, so that the thread that allocates or frees a slot describes it with
// one store and no lock. Whoever holds a slot is the only one to change its
// record: the thread that takes it from a cache, or the holder of the
// allocator's lock while the slot is in a slab or cools.

#ifndef QUIRE_ALLOC_SLOT_RECORD_H_
#define QUIRE_ALLOC_SLOT_RECORD_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quire {

// What two threads write to should lie so far apart, or each write costs ten
// times as much: a pair of cache lines, which processors fetch together.
inline constexpr size_t kSharingBytes = 128;

enum class SlotUse {
  kUnused,  // never handed out
  kLive,
  kFreed,  // given back; free, in a cache, or cooling
};

class SlotRecord {
 public:
  static constexpr int kWasteBits = 21;
  static constexpr uint32_t kMaxWaste = (1u << kWasteBits) - 1;
  static constexpr int kStreamBits = 6;
  // Stands for every stream that has no index of its own.
  static constexpr uint32_t kOtherStream = (1u << kStreamBits) - 1;

  // What a record of two bytes has room for. A stream above is kOtherStream
  // when the record is read again.
  static constexpr int kShortWasteBits = 8;
  static constexpr uint32_t kMaxShortWaste = 1u << kShortWasteBits;
  static constexpr int kShortStreamBits = 4;
  static constexpr uint32_t kOtherShortStream = (1u << kShortStreamBits) - 1;

  constexpr SlotRecord() = default;
  constexpr explicit SlotRecord(uint32_t word) : word_(word) {}
  // A live slot for a stream, `waste` bytes longer than what was asked for.
  // REQUIRES: waste <= kMaxWaste and stream <= kOtherStream.
  static constexpr SlotRecord Live(uint32_t waste, uint32_t stream,
                                   bool inherits) {
    return SlotRecord(kLive | (inherits ? kInherits : 0) |
                      stream << kStreamShift | waste << kWasteShift);
  }

  constexpr uint32_t word() const { return word_; }
  constexpr SlotUse use() const {
    if ((word_ & kLive) != 0) return SlotUse::kLive;
    return (word_ & kFreedOrSpecial) != 0 ? SlotUse::kFreed : SlotUse::kUnused;
  }
  // Live, and nothing has to be waited for beside the work of the stream that
  // it is freed on: the test of the fast path of a free.
  constexpr bool plainly_live_for(uint32_t stream) const {
    const uint32_t state = word_ & (kLive | kFreedOrSpecial | kInherits);
    return state == kLive ||
           (state == (kLive | kInherits) && this->stream() == stream &&
            stream != kOtherStream);
  }
  // The allocator's table of special blocks knows more. Of a live slot.
  constexpr bool special() const {
    return (word_ & (kLive | kFreedOrSpecial)) == (kLive | kFreedOrSpecial);
  }
  // It was freed on its stream before and handed out again before the work
  // queued there was known to be done: whoever else gets it must wait for that
  // as well.
  constexpr bool inherits() const { return (word_ & kInherits) != 0; }
  // A relocation pass may move it.
  constexpr bool movable() const { return (word_ & kMovable) != 0; }
  constexpr uint32_t waste() const { return word_ >> kWasteShift; }
  constexpr uint32_t stream() const {
    return word_ >> kStreamShift & kOtherStream;
  }

  constexpr SlotRecord Freed() const {
    return SlotRecord((word_ & ~(kLive | kMovable)) | kFreedOrSpecial);
  }
  constexpr SlotRecord WithInherits(bool inherits) const {
    return SlotRecord(inherits ? word_ | kInherits : word_ & ~kInherits);
  }
  // REQUIRES: it is live.
  constexpr SlotRecord WithSpecial(bool special) const {
    return SlotRecord(special ? word_ | kFreedOrSpecial
                              : word_ & ~kFreedOrSpecial);
  }
  constexpr SlotRecord WithMovable(bool movable) const {
    return SlotRecord(movable ? word_ | kMovable : word_ & ~kMovable);
  }

  // In two bytes, and back; waste() of what is not live is lost. REQUIRES:
  // waste() <= kMaxShortWaste.
  //
  // The largest waste, of a request for nothing, is one too large for its bits.
  // It is told by what no other record is, movable and not live; the bits say
  // whether it is movable then.
  constexpr uint16_t Shortened() const {
    const uint32_t stream = std::min(this->stream(), kOtherShortStream)
                            << kStreamShift;
    if (waste() == kMaxShortWaste && (word_ & kLive) != 0) [[unlikely]] {
      return static_cast<uint16_t>((word_ & (kFreedOrSpecial | kInherits)) |
                                   kMovable | stream |
                                   (movable() ? 1u << kShortWasteShift : 0));
    }
    return static_cast<uint16_t>((word_ & kFlags) | stream |
                                 waste() % kMaxShortWaste << kShortWasteShift);
  }
  static constexpr SlotRecord FromShort(uint16_t word) {
    const uint32_t short_stream = word >> kStreamShift & kOtherShortStream;
    const uint32_t stream =
        short_stream == kOtherShortStream ? kOtherStream : short_stream;
    const uint32_t waste = word >> kShortWasteShift;
    if ((word & (kLive | kMovable)) == kMovable) [[unlikely]] {
      return SlotRecord(kLive | (word & (kFreedOrSpecial | kInherits)) |
                        stream << kStreamShift | kMaxShortWaste << kWasteShift)
          .WithMovable(waste != 0);
    }
    return SlotRecord((word & kFlags) | stream << kStreamShift |
                      waste << kWasteShift);
  }

 private:
  static constexpr uint32_t kLive = 1;
  static constexpr uint32_t kFreedOrSpecial = 2;  // special where it is live
  static constexpr uint32_t kInherits = 4;
  static constexpr uint32_t kMovable = 8;
  static constexpr uint32_t kFlags = 15;
  static constexpr int kStreamShift = 4;
  static constexpr int kWasteShift = kStreamShift + kStreamBits;
  static constexpr int kShortWasteShift = kStreamShift + kShortStreamBits;
  static_assert(kWasteShift + kWasteBits <= 32);
  static_assert(kShortWasteShift + kShortWasteBits == 16);

  uint32_t word_ = 0;
};

// Where threads find a record: a place of two or four bytes, at a multiple of
// its size. Relaxed: the address that a thread was given orders everything
// before it.
class SlotRecordPlace {
 public:
  SlotRecordPlace() = default;
  static SlotRecordPlace Short(void* place) {
    return SlotRecordPlace(reinterpret_cast<uintptr_t>(place) | kShort);
  }
  static SlotRecordPlace Long(void* place) {
    return SlotRecordPlace(reinterpret_cast<uintptr_t>(place));
  }

  bool is_short() const { return (tagged_ & kShort) != 0; }
  void* address() const { return reinterpret_cast<void*>(tagged_ & ~kShort); }
  SlotRecordPlace operator+(size_t bytes) const {
    return SlotRecordPlace(tagged_ + bytes);
  }
  // In bytes. REQUIRES: it lies behind the other, of one array.
  size_t operator-(SlotRecordPlace other) const {
    return tagged_ - other.tagged_;
  }
  // The first stream that is kOtherStream in a record here.
  uint32_t first_other_stream() const {
    return is_short() ? SlotRecord::kOtherShortStream
                      : SlotRecord::kOtherStream;
  }

  SlotRecord load() const {
    if (is_short()) {
      return SlotRecord::FromShort(
          Word<uint16_t>().load(std::memory_order_relaxed));
    }
    return SlotRecord(Word<uint32_t>().load(std::memory_order_relaxed));
  }
  void store(SlotRecord record) const {
    if (is_short()) {
      Word<uint16_t>().store(record.Shortened(), std::memory_order_relaxed);
    } else {
      Word<uint32_t>().store(record.word(), std::memory_order_relaxed);
    }
  }

 private:
  static constexpr uintptr_t kShort = 1;

  explicit SlotRecordPlace(uintptr_t tagged) : tagged_(tagged) {}
  template <typename T>
  std::atomic_ref<T> Word() const {
    return std::atomic_ref<T>(*static_cast<T*>(address()));
  }

  uintptr_t tagged_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLOT_RECORD_H_
