// Scalar conversions between float32 and the elements of KV rows that have 8
// bits: E4M3 (no infinities; 448 is the largest) and E5M2 of OCP's 8-bit
// floating point specification, and int8.
//
// Decoding is exact. Encoding rounds to nearest, ties to even, goes no further
// than the largest element, and keeps NaN where there is one.

#ifndef QUIRE_MODEL_OPS_KV_CODES_H_
#define QUIRE_MODEL_OPS_KV_CODES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace quire {

// Elements in memory, so that code over them can be overloaded on their type.
struct F8E4M3 {
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};
struct I8 {
  int8_t value;
};

// The formats, as what both directions need of them.
struct E4M3Format {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr uint8_t kLargest = 0x7E;  // 448; above it is NaN
  static constexpr uint8_t kNaN = 0x7F;
};
struct E5M2Format {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr uint8_t kLargest = 0x7B;  // 57344; above it are inf and NaN
  static constexpr uint8_t kNaN = 0x7E;
};

template <typename Format>
uint8_t EncodeF8(float value) {
  constexpr int kShift = 23 - Format::kMantissaBits;
  constexpr int kRebias = 127 - Format::kBias;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return sign | Format::kNaN;
  if (rest < static_cast<uint32_t>(kRebias + 1) << 23) {
    // Subnormal: in a sum with this power of two the last place is that of the
    // format's subnormals, and the addition rounds as it should.
    constexpr auto kPower = static_cast<uint32_t>(kRebias + 1 + kShift) << 23;
    const float sum = std::bit_cast<float>(rest) + std::bit_cast<float>(kPower);
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - kPower));
  }
  // Round half to even on the bits that go; a carry rightly raises the
  // exponent.
  rest += (uint32_t{1} << (kShift - 1)) - 1 + (rest >> kShift & 1);
  const uint32_t code = (rest >> kShift) - (static_cast<uint32_t>(kRebias)
                                            << Format::kMantissaBits);
  return static_cast<uint8_t>(sign |
                              std::min<uint32_t>(code, Format::kLargest));
}

inline int8_t EncodeI8(float value) {
  // NaN has no element: its scale shows it.
  if (std::isnan(value)) return 0;
  return static_cast<int8_t>(
      std::nearbyint(std::clamp(value, -127.0f, 127.0f)));
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_KV_CODES_H_
