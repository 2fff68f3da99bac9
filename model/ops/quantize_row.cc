// Rounding to int8 and NF4, as bitsandbytes' int8_vectorwise_quant and
// quantize_4bit do.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "model/ops/code_values.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

constexpr float kInt8Max = 127;

// Infinite or NaN where one of the values is.
float LargestMagnitude(const float* values, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    // A NaN must not be passed over.
    if (!(magnitude <= largest)) largest = magnitude;
    if (!std::isfinite(largest)) return largest;
  }
  return largest;
}

bool QuantizeInt8(const float* row, size_t count, uint8_t* codes,
                  float* scale) {
  const float largest = LargestMagnitude(row, count);
  if (!std::isfinite(largest)) return false;
  *scale = largest / kInt8Max;
  // In the order of bitsandbytes' arithmetic, which rounds some halves
  // otherwise than 127 / largest would. Below 2^-127 or so the reciprocal is
  // infinite; all of it rounds to zero.
  const float factor = kInt8Max * (1 / largest);
  const float finite_factor = std::isfinite(factor) ? factor : 0;
  for (size_t i = 0; i < count; ++i) {
    const float rounded = std::nearbyint(row[i] * finite_factor);
    codes[i] = static_cast<uint8_t>(
        static_cast<int8_t>(std::clamp(rounded, -kInt8Max, kInt8Max)));
  }
  return true;
}

// The nearest level's index; of two equally near ones the lower.
uint8_t NearestNf4(float value) {
  uint8_t index = 0;
  for (size_t level = 1; level < kNf4Levels.size(); ++level) {
    const float middle = (kNf4Levels[level - 1] + kNf4Levels[level]) / 2;
    if (value > middle) index = static_cast<uint8_t>(level);
  }
  return index;
}

bool QuantizeNf4(const float* row, size_t count, uint8_t* codes,
                 float* scales) {
  std::fill_n(codes, (count + 1) / 2, uint8_t{0});
  for (size_t begin = 0; begin < count; begin += kNf4BlockColumns) {
    const size_t end = std::min(begin + kNf4BlockColumns, count);
    const float largest = LargestMagnitude(row + begin, end - begin);
    if (!std::isfinite(largest)) return false;
    scales[begin / kNf4BlockColumns] = largest;
    for (size_t i = begin; i < end; ++i) {
      const uint8_t code = NearestNf4(largest > 0 ? row[i] / largest : 0);
      codes[i / 2] |= static_cast<uint8_t>(code << (i % 2 == 0 ? 0 : 4));
    }
  }
  return true;
}

}  // namespace

bool QuantizeRow(CodeKind kind, const float* row, size_t count, uint8_t* codes,
                 float* scales) {
  return kind == CodeKind::kNf4 ? QuantizeNf4(row, count, codes, scales)
                                : QuantizeInt8(row, count, codes, scales);
}

}  // namespace quire
