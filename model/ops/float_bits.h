// Scalar conversions between float32 and the 16-bit floats, by their bits.
//
// Exact for every input: subnormals, infinities and NaN included. Narrowing
// rounds to nearest, ties to even, and keeps NaN a (quiet) NaN. The vector code
// gives the same bits.

#ifndef QUIRE_MODEL_OPS_FLOAT_BITS_H_
#define QUIRE_MODEL_OPS_FLOAT_BITS_H_

#include <bit>
#include <cstdint>
#include <cstring>

namespace quire {

// Elements in memory, so that code over them can be overloaded on their type.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7FFF;
  // Infinity and NaN: the largest exponent stays the largest; NaN turns quiet.
  if (rest >= 0x7C00) {
    const uint32_t quiet = rest > 0x7C00 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7F800000 | quiet | (rest << 13));
  }
  // Read the half's bits as a float whose exponent is 112 too small; the
  // product with 2^112 is exact, for subnormal halves too.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t F16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000)  // NaN: quiet, with the top of its payload
    return static_cast<uint16_t>(sign | 0x7E00 | ((rest >> 13) & 0x1FF));
  if (rest >= 0x47800000) return sign | 0x7C00;  // at least 2^16
  if (rest < 0x38800000) {
    // Below 2^-14, so subnormal: adding 0.5 moves the last place of the sum to
    // 2^-24, and the addition rounds as it should.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  // Rebias the exponent; round half to even on the 13 bits that go. A carry out
  // of the mantissa rightly raises the exponent, up to infinity.
  rest += 0xC8000FFF + ((rest >> 13) & 1);
  return static_cast<uint16_t>(sign | (rest >> 13));
}

inline float BF16ToF32(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

inline uint16_t BF16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000)
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Reads a half at any address: GGUF's blocks put them at odd multiples of two.
inline float LoadF16(const uint8_t* address) {
  uint16_t half;
  std::memcpy(&half, address, sizeof(half));
  return F16ToF32(half);
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_FLOAT_BITS_H_
