// What a test writes into an allocation, to know it again: words that depend on
// their address and on which allocation at this address it is.

#ifndef QUIRE_ALLOC_TESTING_PATTERN_H_
#define QUIRE_ALLOC_TESTING_PATTERN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "quire/alloc/units.h"

namespace quire {

// For memory of HostDriver. Covers the first and the last bytes and one word in
// each 512, so that large allocations cost no more than they must.
struct Pattern {
  DeviceAddress address;
  uint64_t size;
  uint64_t generation;

  void Write() const {
    ForEachWord([this](uint64_t offset, uint64_t bytes) {
      const uint64_t word = WordAt(offset);
      std::memcpy(At(offset), &word, bytes);
      return true;
    });
  }
  bool Holds() const {
    return ForEachWord([this](uint64_t offset, uint64_t bytes) {
      const uint64_t word = WordAt(offset);
      return std::memcmp(At(offset), &word, bytes) == 0;
    });
  }

 private:
  static constexpr uint64_t kStride = 512;

  char* At(uint64_t offset) const {
    return DeviceAddress(address.value() + offset).host_pointer<char>();
  }
  uint64_t WordAt(uint64_t offset) const {
    uint64_t z = (address.value() + offset) ^ (generation << 40);
    z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9;
    return z ^ (z >> 27);
  }
  template <typename Function>
  bool ForEachWord(Function function) const {
    for (uint64_t offset = 0; offset < size; offset += kStride) {
      if (!function(offset, std::min<uint64_t>(8, size - offset))) return false;
    }
    // The word before last may overlap this one only if it is the same.
    return size < 8 || size % kStride < 16 || function(size - 8, 8);
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_PATTERN_H_
