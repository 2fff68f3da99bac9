// KV rows of 8-bit elements: a head's values are divided by a scale, so that
// the largest of them becomes the largest element.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/ops/float_bits.h"
#include "model/ops/kv_codes.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

float LargestElement(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF8E4M3:
      return 448;
    case KvDType::kF8E5M2:
      return 57344;
    default:
      return 127;
  }
}

// The least half that is no less: what is divided by it stays in range.
uint16_t HalfNotBelow(float value) {
  const uint16_t half = F16FromF32(value);
  const bool below = F16ToF32(half) < value;
  return static_cast<uint16_t>(half + (below ? 1 : 0));
}

// Stores the scale of a head, and what it is when it is read. NaN and infinity
// among the values make it no number, so that they show.
float StoreScale(const float* values, size_t count, KvElements elements,
                 void* scale) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(values[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  const float exact = largest / LargestElement(elements.dtype);
  if (elements.scale == KvScale::kF32) {
    std::memcpy(scale, &exact, sizeof(exact));
    return exact;
  }
  const uint16_t half = HalfNotBelow(exact);
  std::memcpy(scale, &half, sizeof(half));
  return F16ToF32(half);
}

void StoreElements(const float* values, size_t count, KvDType dtype,
                   float scale, uint8_t* row) {
  // Of a head of zeros.
  const float factor = scale == 0 ? 0 : 1 / scale;
  // A scale so small that it has no inverse.
  const bool divide = std::isinf(factor);
  for (size_t i = 0; i < count; ++i) {
    const float value = divide ? values[i] / scale : values[i] * factor;
    row[i] = dtype == KvDType::kF8E4M3 ? EncodeF8<E4M3Format>(value)
             : dtype == KvDType::kF8E5M2
                 ? EncodeF8<E5M2Format>(value)
                 : static_cast<uint8_t>(EncodeI8(value));
  }
}

}  // namespace

void StoreScaledKvRow(const float* values, size_t heads, size_t head_dim,
                      KvElements elements, void* row, void* scales) {
  const size_t scale_size = KvScaleSize(elements.scale).value();
  for (size_t h = 0; h < heads; ++h) {
    const float* const head = values + h * head_dim;
    float scale = 1;
    if (elements.scale != KvScale::kNone)
      scale = StoreScale(head, head_dim, elements,
                         static_cast<uint8_t*>(scales) + h * scale_size);
    StoreElements(head, head_dim, elements.dtype, scale,
                  static_cast<uint8_t*>(row) + h * head_dim);
  }
}

}  // namespace quire
