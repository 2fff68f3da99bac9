// Activations of a GPTQ product as integers, once per SIMD target.
//
// Within a segment an activation is n * 2^e, with n an integer of |n| <
// 2^22 and e the smallest that the segment's largest activation allows: what is
// rounded away is at most 2^-22 of that largest, as in a float32 sum of the
// segment's products. e is the same for all columns and depends on the token
// alone.
//
// n is high * 2^15 + low, low in [-2^14, 2^14); with three digits low is
// middle * 2^8 + last. Every digit fits a signed byte or half and the largest
// sum, 128 codes of 255 times 2^14, fits in 32 bits.

#if defined(QUIRE_MODEL_OPS_GPTQ_INPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_GPTQ_INPUT_INL_H_
#undef QUIRE_MODEL_OPS_GPTQ_INPUT_INL_H_
#else
#define QUIRE_MODEL_OPS_GPTQ_INPUT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "model/ops/gptq_codes-inl.h"
#include "model/ops/gptq_segments.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// What a column needs to know of a token's activations in a segment beside
// their digits.
struct SegmentInput {
  float scale;  // 2^e; NaN where an activation is not finite
  int32_t high_sum;
  int32_t low_sum;
};

// 127 * 2^15 + 2^14 - 1: the largest n whose high digit is 127.
inline constexpr float kLargest = 4177919.0f;

// 2^e for activations up to `magnitude`, which is finite.
inline float ScaleFor(float magnitude) {
  const uint32_t exponent = std::bit_cast<uint32_t>(magnitude) >> 23;
  // magnitude < 2^(exponent - 126), so n < 2^22 with e = exponent - 148. e is
  // at least -126, so that 2^-e is a number.
  int e = std::max(static_cast<int>(exponent) - 148, -126);
  const auto power = [](int n) {
    return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
  };
  if (magnitude * power(-e) > kLargest) ++e;
  return power(e);
}

// The digits of a unit's 32 integers, in the order in which dots want them.
HWY_INLINE void PackUnit(const UnitOrder& order, const int32_t* high,
                         const int32_t* low, uint32_t* digits) {
#if HWY_TARGET == HWY_AVX3_DL
  // Dots of 2, 4 and 8 bits reorder within 16 rows, those of 3 bits not at all.
  const hn::CappedTag<int8_t, 16> d8;
  const DI di;
  auto* out = reinterpret_cast<int8_t*>(digits);
  for (size_t i = 0; i < kUnitRows; i += 16) {
    HWY_ALIGN int8_t from[16];
    for (size_t j = 0; j < 16; ++j)
      from[j] = static_cast<int8_t>(order[i + j] - i);
    const auto place = hn::Load(d8, from);
    const auto put = [&](VI v, size_t digit) HWY_ATTR {
      hn::StoreU(hn::TableLookupBytes(hn::DemoteTo(d8, v), place), d8,
                 out + digit * kUnitRows + i);
    };
    const VI l = hn::Load(di, low + i);
    const VI last = hn::ShiftRight<24>(hn::ShiftLeft<24>(l));
    put(hn::Load(di, high + i), 0);
    put(hn::ShiftRight<8>(hn::Sub(l, last)), 1);
    put(last, 2);
  }
#else
  HWY_ALIGN int16_t halves[2 * kUnitRows];
  for (size_t i = 0; i < kUnitRows; ++i) {
    halves[i] = static_cast<int16_t>(high[order[i]]);
    halves[kUnitRows + i] = static_cast<int16_t>(low[order[i]]);
  }
  std::memcpy(digits, halves, sizeof(halves));
#endif
}

// Writes the digits of a segment: segment.units * kUnitWords words, zero for
// rows that are not of the segment. `order` as in GptqMatrix.
template <int kBits>
SegmentInput PrepareSegment(const GptqSegment& segment, const float* input,
                            const uint32_t* order, uint32_t* digits) {
  const DF d;
  const DI di;
  const size_t lanes = hn::Lanes(d);
  const size_t rows = segment.units * kUnitRows;
  const size_t first = segment.begin - segment.first_unit * kUnitRows;

  HWY_ALIGN float values[kSegmentRows];
  std::fill_n(values, rows, 0.0f);
  if (order == nullptr) {
    std::copy(input + segment.begin, input + segment.end, values + first);
  } else {
    for (size_t i = segment.begin; i < segment.end; ++i)
      values[first + i - segment.begin] = input[order[i]];
  }

  // The bits of |x| are in the order of |x|, with infinity and NaN on top.
  VI largest = hn::Zero(di);
  for (size_t i = 0; i < rows; i += lanes) {
    const VF magnitude = hn::Abs(hn::Load(d, values + i));
    largest = hn::Max(largest, hn::BitCast(di, magnitude));
  }
  const auto largest_bits =
      static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  SegmentInput result = {};
  if (largest_bits >= 0x7F800000) {
    std::fill_n(digits, segment.units * kUnitWords, 0u);
    result.scale = std::numeric_limits<float>::quiet_NaN();
    return result;
  }
  result.scale = ScaleFor(std::bit_cast<float>(largest_bits));

  const VF inverse = hn::Set(d, 1.0f / result.scale);
  HWY_ALIGN int32_t high[kSegmentRows];
  HWY_ALIGN int32_t low[kSegmentRows];
  VI high_sum = hn::Zero(di);
  VI low_sum = hn::Zero(di);
  const VI half = hn::Set(di, 1 << 14);
  for (size_t i = 0; i < rows; i += lanes) {
    const VI n = hn::NearestInt(hn::Mul(hn::Load(d, values + i), inverse));
    const VI l =
        hn::Sub(hn::And(hn::Add(n, half), hn::Set(di, (1 << 15) - 1)), half);
    const VI h = hn::ShiftRight<15>(hn::Sub(n, l));
    hn::Store(l, di, low + i);
    hn::Store(h, di, high + i);
    low_sum = hn::Add(low_sum, l);
    high_sum = hn::Add(high_sum, h);
  }
  result.high_sum = hn::GetLane(hn::SumOfLanes(di, high_sum));
  result.low_sum = hn::GetLane(hn::SumOfLanes(di, low_sum));

  constexpr UnitOrder kOrder = Unpacker<kBits>::Order();
  for (size_t unit = 0; unit < segment.units; ++unit) {
    PackUnit(kOrder, high + unit * kUnitRows, low + unit * kUnitRows,
             digits + unit * kUnitWords);
  }
  return result;
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_GPTQ_INPUT_INL_H_
