// The host-side record of a run of equal slots in device memory.
//
// Nothing is ever written into the memory itself: the device may be using it,
// and the host may not be able to reach it. A large allocation is a slab of one
// slot.
//
// A slot is in one of four uses:
//   unused   never handed out, free
//   live     handed out
//   cooling  given back, but a stream may still be using it
//   free     given back, and every use of it is over
// Slots are taken in random order: slabs whose live slots do not overlap can be
// laid over each other in one physical page, and slots in random order rarely
// overlap where few are live. The order is a function of the seed.
//
// Invariant: the first free_count() entries of free_ are exactly the slots that
// are unused or free, each once.
//
// All operations are O(1). Not thread-safe.

#ifndef QUIRE_ALLOC_SLAB_H_
#define QUIRE_ALLOC_SLAB_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

// A small generator with a full period over all of its states (SplitMix64).
class SlotOrder {
 public:
  explicit SlotOrder(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // REQUIRES: n > 0.
  uint32_t Below(uint32_t n) {
    return static_cast<uint32_t>(((Next() >> 32) * n) >> 32);
  }

 private:
  uint64_t state_;
};

enum class SlotUse : uint8_t { kUnused, kLive, kCooling, kFree };

// What the slab knows of a slot. Of slots that are not live, what they were.
struct Slot {
  Bytes requested;
  StreamId stream;
  OwnerId owner;
  SlotUse use = SlotUse::kUnused;
  // More streams than one use it; the allocator knows which.
  bool shared = false;
};

class Slab {
 public:
  // REQUIRES: slot_size and slots are not 0.
  Slab(Bytes slot_size, uint32_t slots, uint64_t seed);

  Bytes slot_size() const { return slot_size_; }
  uint32_t slot_count() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t live_count() const { return live_count_; }
  uint32_t cooling_count() const { return cooling_count_; }
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }
  // No use of any slot is left.
  bool empty() const { return free_.size() == slots_.size(); }
  const Slot& slot(uint32_t i) const { return slots_[i]; }

  // A random free slot becomes live. REQUIRES: free_count() > 0.
  uint32_t Take();
  // A cooling slot becomes live again, for the stream that gave it back.
  void Revive(uint32_t i);
  // Describes a slot that was taken or revived. REQUIRES: it is live.
  void Describe(uint32_t i, Bytes requested, StreamId stream, OwnerId owner);
  void MarkShared(uint32_t i) { slots_[i].shared = true; }
  // A live slot begins to cool.
  void Cool(uint32_t i);
  // A cooling slot becomes free.
  void Free(uint32_t i);

  absl::Status CheckInvariants() const;

 private:
  const Bytes slot_size_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  SlotOrder order_;
  uint32_t live_count_ = 0;
  uint32_t cooling_count_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLAB_H_
