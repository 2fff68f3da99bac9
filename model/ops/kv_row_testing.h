// What the elements of a KV row are, by the definition of their types.

#ifndef QUIRE_MODEL_OPS_KV_ROW_TESTING_H_
#define QUIRE_MODEL_OPS_KV_ROW_TESTING_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "model/ops/float_bits.h"
#include "quire/model/ops.h"

namespace quire {

// Sign, exponent and mantissa, by hand. E4M3 has one NaN and no infinity.
inline double F8Value(KvDType dtype, uint8_t code) {
  const bool e4m3 = dtype == KvDType::kF8E4M3;
  const int mantissa_bits = e4m3 ? 3 : 2;
  const int bias = e4m3 ? 7 : 15;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code & 0x7F) >> mantissa_bits;
  const double sign = code & 0x80 ? -1 : 1;
  if (e4m3 ? (code & 0x7F) == 0x7F : exponent == 31 && mantissa != 0)
    return std::numeric_limits<double>::quiet_NaN();
  if (!e4m3 && exponent == 31)
    return sign * std::numeric_limits<double>::infinity();
  if (exponent == 0)
    return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa,
                           exponent - bias - mantissa_bits);
}

// Element i of a row, its scale included.
inline float KvElementAt(KvElements elements, const uint8_t* row,
                         const uint8_t* scales, size_t head_dim, size_t i) {
  if (elements.dtype == KvDType::kF32) {
    float v;
    std::memcpy(&v, row + 4 * i, 4);
    return v;
  }
  if (elements.dtype == KvDType::kF16 || elements.dtype == KvDType::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    return elements.dtype == KvDType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
  }
  double scale = 1;
  const size_t head = i / head_dim;
  if (elements.scale == KvScale::kF16) {
    scale = static_cast<double>(LoadF16(scales + 2 * head));
  } else if (elements.scale == KvScale::kF32) {
    float exact;
    std::memcpy(&exact, scales + 4 * head, 4);
    scale = static_cast<double>(exact);
  }
  const double value = elements.dtype == KvDType::kInt8
                           ? static_cast<double>(static_cast<int8_t>(row[i]))
                           : F8Value(elements.dtype, row[i]);
  return static_cast<float>(value * scale);
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_KV_ROW_TESTING_H_
