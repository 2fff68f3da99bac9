// How codes of a column are taken out of packed words and multiplied with
// activations, once per SIMD target.
//
// A vector holds one word (or what is made of it) of each of its columns. An
// *unpacker* turns a step of words into dots: vectors with kCodesPerDot codes
// in the bytes or halves of every 32-bit lane. Activations are laid out to
// match, so that a code meets its activation without being moved.
//
// An activation is an integer of 23 bits (see gptq_input-inl.h) cut into
// digits, which products take one at a time:
//   with VNNI     bytes: 4 codes in a dot, 3 digits
//   elsewhere     16-bit halves: 2 codes in a dot, 2 digits
// All sums are exact, so both give the same numbers.

#if defined(QUIRE_MODEL_OPS_GPTQ_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_GPTQ_CODES_INL_H_
#undef QUIRE_MODEL_OPS_GPTQ_CODES_INL_H_
#else
#define QUIRE_MODEL_OPS_GPTQ_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/ops/gptq_segments.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// Bits [kFrom, kFrom + kBits) of every lane, moved to kTo.
template <int kBits, int kFrom, int kTo>
HWY_INLINE VU Field(VU v) {
  const VU mask = hn::Set(DU(), ((1u << kBits) - 1) << kTo);
  if constexpr (kFrom > kTo) {
    return hn::And(hn::ShiftRight<kFrom - kTo>(v), mask);
  } else if constexpr (kFrom < kTo) {
    return hn::And(hn::ShiftLeft<kTo - kFrom>(v), mask);
  } else {
    return hn::And(v, mask);
  }
}

// The rows of a unit in the order in which dots hold them: dot j has rows
// [j * kCodesPerDot, (j + 1) * kCodesPerDot) of the array.
using UnitOrder = std::array<uint8_t, kUnitRows>;

#if HWY_TARGET == HWY_AVX3_DL

inline constexpr size_t kCodesPerDot = 4;
inline constexpr size_t kDigits = 3;

// For 2, 4 and 8 bits: every kStride-th code of a word, one in each byte.
template <int kBits>
struct Unpacker {
  static constexpr size_t kStepWords = 1;
  static constexpr size_t kStepDots = 8 / kBits;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* words) {
    const DU du;
    constexpr uint32_t kByteMask = ((1u << kBits) - 1) * 0x01010101u;
    return hn::And(hn::ShiftRight<kDot * kBits>(words[0]),
                   hn::Set(du, kByteMask));
  }

  static constexpr UnitOrder Order() {
    constexpr size_t kWordCodes = 32 / kBits;
    UnitOrder order = {};
    for (size_t i = 0; i < kUnitRows; ++i) {
      const size_t in_word = i % kWordCodes;
      order[i] = static_cast<uint8_t>(i - in_word + in_word % 4 * kStepDots +
                                      in_word / 4);
    }
    return order;
  }
};

template <>
struct Unpacker<8> {
  static constexpr size_t kStepWords = 1;
  static constexpr size_t kStepDots = 1;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* words) {
    return words[0];
  }

  static constexpr UnitOrder Order() {
    UnitOrder order = {};
    for (size_t i = 0; i < kUnitRows; ++i) order[i] = static_cast<uint8_t>(i);
    return order;
  }
};

// For other widths: four consecutive codes, which may go on in the next word;
// VBMI spreads them over bytes.
template <int kBits>
struct StringUnpacker {
  static constexpr size_t kStepWords = kBits;
  static constexpr size_t kStepDots = 8;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* words) {
    constexpr int kFirst = 4 * kBits * kDot;
    constexpr int kWord = kFirst / 32;
    constexpr int kBit = kFirst % 32;
    if constexpr (kBit + 4 * kBits <= 32) {
      return Spread<kBit>(words[kWord].raw);
    } else {
      return Spread<0>(
          _mm512_shrdi_epi32(words[kWord].raw, words[kWord + 1].raw, kBit));
    }
  }

  static constexpr UnitOrder Order() { return Unpacker<8>::Order(); }

 private:
  // The bytes of a lane: 8 bits each, from bit kBit on and every kBits-th. The
  // instruction counts bits in lanes of 64.
  template <int kBit>
  static HWY_INLINE VU Spread(__m512i v) {
    constexpr int64_t kLow = (kBit) | (kBit + kBits) << 8 |
                             (kBit + 2 * kBits) << 16 |
                             static_cast<int64_t>(kBit + 3 * kBits) << 24;
    constexpr int64_t kControl = kLow | (kLow + 0x20202020) << 32;
    const __m512i fields =
        _mm512_multishift_epi64_epi8(_mm512_set1_epi64(kControl), v);
    return hn::And(VU{fields},
                   hn::Set(DU(), ((1u << kBits) - 1) * 0x01010101u));
  }
};

template <>
struct Unpacker<3> : StringUnpacker<3> {};
template <>
struct Unpacker<5> : StringUnpacker<5> {};
template <>
struct Unpacker<6> : StringUnpacker<6> {};
template <>
struct Unpacker<7> : StringUnpacker<7> {};

// The sums of one digit, a lane per column.
struct DotSums {
  VI sums;

  // Written out: an implicit constructor is not compiled for the target.
  HWY_INLINE DotSums() : sums(hn::Zero(DI())) {}
  HWY_INLINE void Add(VU codes, VU digits) {
    // Not the intrinsic: Highway 1.0.3 compiles this target for AVX-VNNI, which
    // has no 512-bit form, where it means and tests AVX512-VNNI.
    asm("vpdpbusd %2, %1, %0"
        : "+v"(sums.raw)
        : "v"(codes.raw), "v"(digits.raw));
  }
  HWY_INLINE VI Total() const { return sums; }
};

#else  // 16-bit halves

inline constexpr size_t kCodesPerDot = 2;
inline constexpr size_t kDigits = 2;

// For 2, 4 and 8 bits: code kDot of each half of a word.
template <int kBits>
struct Unpacker {
  static constexpr size_t kStepWords = 1;
  static constexpr size_t kStepDots = 16 / kBits;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* words) {
    constexpr uint32_t kHalfMask = ((1u << kBits) - 1) * 0x00010001u;
    return hn::And(hn::ShiftRight<kDot * kBits>(words[0]),
                   hn::Set(DU(), kHalfMask));
  }

  static constexpr UnitOrder Order() {
    constexpr size_t kWordCodes = 32 / kBits;
    UnitOrder order = {};
    for (size_t i = 0; i < kUnitRows; ++i) {
      const size_t in_word = i % kWordCodes;
      order[i] = static_cast<uint8_t>(i - in_word + in_word % 2 * kStepDots +
                                      in_word / 2);
    }
    return order;
  }
};

// 96 bits in three words: ten whole codes in each, from bits 0, 1 and 2 on, and
// the codes 10 and 21 across words.
template <>
struct Unpacker<3> {
  static constexpr size_t kStepWords = 3;
  static constexpr size_t kStepDots = 16;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* w) {
    if constexpr (kDot < 10) {
      return hn::Or(Field<3, 3 * kDot, 0>(w[0]),
                    Field<3, 3 * kDot + 1, 16>(w[1]));
    } else if constexpr (kDot < 15) {
      constexpr int kFirst = 3 * (kDot - 10) + 2;
      return hn::Or(Field<3, kFirst, 0>(w[2]), Field<3, kFirst + 15, 16>(w[2]));
    } else {
      const VU low = hn::Or(Field<2, 30, 0>(w[0]), Field<1, 0, 2>(w[1]));
      const VU high = hn::Or(Field<1, 31, 16>(w[1]), Field<2, 0, 17>(w[2]));
      return hn::Or(low, high);
    }
  }

  static constexpr UnitOrder Order() {
    UnitOrder order = {};
    for (uint8_t dot = 0; dot < 16; ++dot) {
      const uint8_t low = dot < 10 ? dot : dot < 15 ? dot + 12 : 10;
      const uint8_t high = dot < 10 ? dot + 11 : dot < 15 ? dot + 17 : 21;
      order[2 * dot] = low;
      order[2 * dot + 1] = high;
    }
    return order;
  }
};

// For 5, 6 and 7 bits: two consecutive codes, which may go on in the next word.
template <int kBits>
struct StringUnpacker {
  static constexpr size_t kStepWords = kBits;
  static constexpr size_t kStepDots = 16;

  template <size_t kDot>
  static HWY_INLINE VU Dot(const VU* words) {
    return hn::Or(Code<2 * kDot, 0>(words), Code<2 * kDot + 1, 16>(words));
  }

  static constexpr UnitOrder Order() {
    UnitOrder order = {};
    for (size_t i = 0; i < kUnitRows; ++i) order[i] = static_cast<uint8_t>(i);
    return order;
  }

 private:
  // Code kCode of the unit, moved to bit kTo.
  template <size_t kCode, int kTo>
  static HWY_INLINE VU Code(const VU* words) {
    constexpr int kFirst = static_cast<int>(kCode) * kBits;
    constexpr int kWord = kFirst / 32;
    constexpr int kBit = kFirst % 32;
    constexpr int kRest = 32 - kBit;  // bits of this word
    if constexpr (kRest >= kBits) {
      return Field<kBits, kBit, kTo>(words[kWord]);
    } else {
      return hn::Or(Field<kRest, kBit, kTo>(words[kWord]),
                    Field<kBits - kRest, 0, kTo + kRest>(words[kWord + 1]));
    }
  }
};

template <>
struct Unpacker<5> : StringUnpacker<5> {};
template <>
struct Unpacker<6> : StringUnpacker<6> {};
template <>
struct Unpacker<7> : StringUnpacker<7> {};

struct DotSums {
#if HWY_TARGET == HWY_SCALAR
  // One 32-bit lane has no vector of two halves.
  int32_t sum = 0;

  HWY_INLINE void Add(VU codes, VU digits) {
    const uint32_t c = hn::GetLane(codes);
    const uint32_t x = hn::GetLane(digits);
    sum += static_cast<int16_t>(c) * static_cast<int16_t>(x) +
           static_cast<int16_t>(c >> 16) * static_cast<int16_t>(x >> 16);
  }
  HWY_INLINE VI Total() const { return hn::Set(DI(), sum); }
#else
  // Some targets leave part of the sums in the second vector.
  VI sums;
  VI more;

  HWY_INLINE DotSums() : sums(hn::Zero(DI())), more(hn::Zero(DI())) {}
  HWY_INLINE void Add(VU codes, VU digits) {
    const hn::Repartition<int16_t, DI> d16;
    sums = hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, codes),
                                         hn::BitCast(d16, digits), sums, more);
  }
  HWY_INLINE VI Total() const { return hn::RearrangeToOddPlusEven(sums, more); }
#endif
};

#endif  // HWY_TARGET == HWY_AVX3_DL

inline constexpr size_t kUnitDots = kUnitRows / kCodesPerDot;
// Words of activations for a unit: digit by digit, kUnitDots words each.
inline constexpr size_t kUnitWords = kDigits * kUnitDots;

// Calls visit.template operator()<bits>() for 2 to 8.
template <class Visit>
HWY_INLINE void WithBits(int bits, const Visit& visit) {
  switch (bits) {
    case 2:
      return visit.template operator()<2>();
    case 3:
      return visit.template operator()<3>();
    case 4:
      return visit.template operator()<4>();
    case 5:
      return visit.template operator()<5>();
    case 6:
      return visit.template operator()<6>();
    case 7:
      return visit.template operator()<7>();
    default:
      return visit.template operator()<8>();
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_GPTQ_CODES_INL_H_
