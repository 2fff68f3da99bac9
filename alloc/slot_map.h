// Which slots of a slab are free: one bit each, handed out in random order.
//
// Random, because slabs whose live slots do not overlap can be laid over each
// other in one physical page, and slots in random order rarely overlap where
// few are live. The order is a function of the seed.
//
// Take looks at one word in slabs of up to 64 slots; in longer ones at as many
// as it takes to find one with a free slot, from a random word on. All else is
// O(1). Not thread-safe.

#ifndef QUIRE_ALLOC_SLOT_MAP_H_
#define QUIRE_ALLOC_SLOT_MAP_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

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

 private:
  uint64_t state_;
};

class SlotMap {
 public:
  // Slots whose records share a cache line.
  static constexpr int kGroup = 16;

  SlotMap() = default;

  // Makes all of `slots` slots free.
  void Reset(uint32_t slots) {
    slots_ = slots;
    free_ = slots;
    words_.assign((size_t{slots} + 63) / 64, ~uint64_t{0});
    if (slots % 64 != 0) words_.back() = (uint64_t{1} << (slots % 64)) - 1;
  }

  uint32_t size() const { return slots_; }
  uint32_t free_count() const { return free_; }
  bool IsFree(uint32_t slot) const {
    return (words_[slot / 64] >> (slot % 64) & 1) != 0;
  }

  // Calls `wanted` with each slot that is not free, in order, until it returns
  // false. Returns whether it never did. O(slots / 64 + calls).
  template <typename Wanted>
  bool AllTaken(Wanted wanted) const {
    for (size_t word = 0; word < words_.size(); ++word) {
      uint64_t taken = TakenOf(word);
      for (; taken != 0; taken &= taken - 1) {
        const auto bit = static_cast<size_t>(std::countr_zero(taken));
        if (!wanted(static_cast<uint32_t>(word * 64 + bit))) return false;
      }
    }
    return true;
  }
  // Of slots 64 * word to 64 * word + 63, those that are not free: a bit each.
  uint64_t TakenOf(size_t word) const {
    const uint64_t slots = slots_ - word * 64;
    const uint64_t all = slots < 64 ? (uint64_t{1} << slots) - 1 : ~uint64_t{0};
    return ~words_[word] & all;
  }
  size_t word_count() const { return words_.size(); }

  // A random free slot is free no more. REQUIRES: free_count() > 0.
  uint32_t Take(SlotOrder* order) {
    const uint64_t random = order->Next();
    size_t word =
        words_.size() == 1
            ? 0
            : static_cast<size_t>((random >> 32) * words_.size() >> 32);
    while (words_[word] == 0) word = word + 1 == words_.size() ? 0 : word + 1;
    const int turn = static_cast<int>(random % 64);
    const int bit =
        (std::countr_zero(std::rotr(words_[word], turn)) + turn) % 64;
    words_[word] &= ~(uint64_t{1} << bit);
    --free_;
    return static_cast<uint32_t>(word * 64 + static_cast<size_t>(bit));
  }
  // The same of those beside `slot`, in its group of kGroup, else of all.
  uint32_t TakeNear(uint32_t slot, SlotOrder* order) {
    uint64_t& word = words_[slot / 64];
    const uint32_t begin = slot % 64 / kGroup * kGroup;
    const auto group = static_cast<uint16_t>(word >> begin);
    if (group == 0) return Take(order);
    const int turn = static_cast<int>(order->Next() % kGroup);
    const auto bit = static_cast<uint32_t>(
        (std::countr_zero(std::rotr(group, turn)) + turn) % kGroup);
    word &= ~(uint64_t{1} << (begin + bit));
    --free_;
    return slot / 64 * 64 + begin + bit;
  }
  // REQUIRES: the slot is not free.
  void Put(uint32_t slot) {
    words_[slot / 64] |= uint64_t{1} << (slot % 64);
    ++free_;
  }
  // REQUIRES: the slot is free.
  void TakeThis(uint32_t slot) {
    words_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
    --free_;
  }

  // Free slots by counting bits: for checks.
  uint32_t CalculateFree() const {
    uint32_t free = 0;
    for (const uint64_t word : words_) {
      free += static_cast<uint32_t>(std::popcount(word));
    }
    return free;
  }

 private:
  std::vector<uint64_t> words_;
  uint32_t slots_ = 0;
  uint32_t free_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLOT_MAP_H_
