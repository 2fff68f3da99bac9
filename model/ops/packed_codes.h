// One code of a packed bit string, scalar.

#ifndef QUIRE_MODEL_OPS_PACKED_CODES_H_
#define QUIRE_MODEL_OPS_PACKED_CODES_H_

#include <cstddef>
#include <cstdint>

namespace quire {

// Code `i` of a little-endian string of `bits`-bit codes whose words are
// `stride` apart: a row of qzeros (stride 1) or a column of qweight (stride N).
inline uint32_t PackedCode(const uint32_t* words, size_t stride, int bits,
                           size_t i) {
  const size_t bit = i * static_cast<size_t>(bits);
  const uint32_t* const word = words + bit / 32 * stride;
  const int shift = static_cast<int>(bit % 32);
  uint32_t code = word[0] >> shift;
  // Codes of 3 bits may go on in the next word.
  if (shift + bits > 32) code |= word[stride] << (32 - shift);
  return code & ((1u << bits) - 1);
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_PACKED_CODES_H_
