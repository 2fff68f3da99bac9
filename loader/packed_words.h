// Codes packed into words of 32 bits, as GPTQ, AWQ and compressed-tensors store
// them.

#ifndef QUIRE_LOADER_PACKED_WORDS_H_
#define QUIRE_LOADER_PACKED_WORDS_H_

#include <cstdint>

namespace quire {

inline constexpr uint64_t kWordBits = 32;

// Does not overflow. REQUIRES: divisor > 0.
inline uint64_t CeilDivide(uint64_t n, uint64_t divisor) {
  return n / divisor + (n % divisor != 0 ? 1 : 0);
}

}  // namespace quire

#endif  // QUIRE_LOADER_PACKED_WORDS_H_
