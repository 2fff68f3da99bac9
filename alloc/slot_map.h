// Which slots of a slab are free: one bit each, handed out in random order.
//
// Random, because slabs whose live slots do not overlap can be laid over each
// other in one physical page, and slots in random order rarely overlap where
// few are live. The order is a function of the seed.
//
// Slots may also be taken in *groups* of a power of two, up to 64, aligned to
// it: for a thread that wants neighbours to itself.
//
// Take looks at one word in slabs of up to 64 slots; in longer ones at as many
// as it takes to find one with a free slot, from a random word on.
// TakeOfFreeGroup looks at a few words. All else is O(1). Not thread-safe.

#ifndef QUIRE_ALLOC_SLOT_MAP_H_
#define QUIRE_ALLOC_SLOT_MAP_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
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
    size_t word = RandomWord(random);
    while (words_[word] == 0) word = WordAfter(word);
    return TakeOf(word, words_[word], random);
  }
  // A random slot of a group that is all free, where there is one in the words
  // that are looked at.
  std::optional<uint32_t> TakeOfFreeGroup(uint32_t group, SlotOrder* order) {
    const uint64_t random = order->Next();
    size_t word = RandomWord(random);
    for (size_t i = 0; i < std::min(words_.size(), kWordsTried); ++i) {
      if (const uint64_t free = FreeGroups(words_[word], group)) {
        return TakeOf(word, free, random);
      }
      word = WordAfter(word);
    }
    return std::nullopt;
  }
  // A random free slot of the group of `slot`.
  std::optional<uint32_t> TakeBeside(uint32_t slot, uint32_t group,
                                     SlotOrder* order) {
    const size_t word = slot / 64;
    const uint32_t begin = slot % 64 / group * group;
    const uint64_t free = words_[word] & (Ones(group) << begin);
    if (free == 0) return std::nullopt;
    return TakeOf(word, free, begin + order->Next() % group);
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
  // TakeOfFreeGroup is to be fast too where a slab has not many of them.
  static constexpr size_t kWordsTried = 8;

  static uint64_t Ones(uint32_t count) {
    return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  }
  // The bits of `word` that lie in groups of ones.
  static uint64_t FreeGroups(uint64_t word, uint32_t group) {
    for (uint32_t i = 1; i < group; i *= 2) word &= word >> i;
    // Each begins a run of `group` ones; those count that begin a group.
    word &= ~uint64_t{0} / Ones(group);
    return word * Ones(group);
  }
  size_t RandomWord(uint64_t random) const {
    return words_.size() == 1
               ? 0
               : static_cast<size_t>((random >> 32) * words_.size() >> 32);
  }
  size_t WordAfter(size_t word) const {
    return word + 1 == words_.size() ? 0 : word + 1;
  }
  // The first of the `free` bits of a word, from a random one on.
  uint32_t TakeOf(size_t word, uint64_t free, uint64_t random) {
    const int turn = static_cast<int>(random % 64);
    const int bit = (std::countr_zero(std::rotr(free, turn)) + turn) % 64;
    words_[word] &= ~(uint64_t{1} << bit);
    --free_;
    return static_cast<uint32_t>(word * 64 + static_cast<size_t>(bit));
  }

  std::vector<uint64_t> words_;
  uint32_t slots_ = 0;
  uint32_t free_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLOT_MAP_H_
