// Parts of the decoders of dense_blocks-inl.h. Included once per SIMD target.

#if defined(QUIRE_MODEL_OPS_DENSE_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_DENSE_CODES_INL_H_
#undef QUIRE_MODEL_OPS_DENSE_CODES_INL_H_
#else
#define QUIRE_MODEL_OPS_DENSE_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/float_bits.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// The float16 at `address`, in every lane.
HWY_INLINE VF BroadcastF16(const uint8_t* address) {
  const DF d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // F16C
  uint16_t bits;
  std::memcpy(&bits, address, sizeof(bits));
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(d, hn::BitCast(dh, hn::Set(d16, bits)));
#else
  return hn::Set(d, LoadF16(address));
#endif
}

// Sixteen bytes whose low nibbles are elements 0..15 and whose high nibbles are
// elements 16..31. `value_of` maps a vector of nibbles (int32) to weights.
template <class ValueOf, class Use>
HWY_INLINE void DecodeNibbles(const uint8_t* bytes, const ValueOf& value_of,
                              const Use& use) {
  const DI di;
  const hn::Rebind<uint8_t, DF> d8;
  const size_t lanes = hn::Lanes(di);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const DF d;
  // Sixteen lanes hold the weights of all nibbles: one computation per block.
  const VF table = value_of(hn::Iota(di, 0));
  const auto weights_of = [&](VI nibbles) HWY_ATTR {
    return hn::TableLookupLanes(table, hn::IndicesFromVec(d, nibbles));
  };
#else
  const auto weights_of = [&](VI nibbles)
                              HWY_ATTR { return value_of(nibbles); };
#endif
  for (size_t i = 0; i < 16; i += lanes) {
    const VI byte = hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
    use(i, weights_of(hn::And(byte, hn::Set(di, 15))));
  }
  for (size_t i = 0; i < 16; i += lanes) {
    const VI byte = hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
    use(16 + i, weights_of(hn::ShiftRight<4>(byte)));
  }
}

// What a nibble stands for in GGUF's IQ4_NL and IQ4_XS: kvalues_iq4nl of ggml.
HWY_INLINE VF Iq4Values(VI nibbles) {
  HWY_ALIGN static constexpr float kValues[16] = {
      -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return hn::GatherIndex(DF(), kValues, nibbles);
}

// The same bytes, with a fifth bit of element i in bit i of the 32 at `high`.
template <class ValueOf, class Use>
HWY_INLINE void DecodeFiveBits(const uint8_t* high, const uint8_t* bytes,
                               const ValueOf& value_of, const Use& use) {
  const DI di;
  const hn::RebindToUnsigned<DI> du;
  const hn::Rebind<uint8_t, DF> d8;
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  // Those of the elements from `first` on, as the fifth bits of codes.
  const auto fifth_bits = [&](size_t first) HWY_ATTR {
    const auto shifted = hn::Shr(hn::Set(du, bits >> first), hn::Iota(du, 0));
    return hn::BitCast(di, hn::ShiftLeft<4>(hn::And(shifted, hn::Set(du, 1))));
  };
  for (size_t i = 0; i < 16; i += hn::Lanes(di)) {
    const VI byte = hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
    use(i, value_of(hn::Or(hn::And(byte, hn::Set(di, 15)), fifth_bits(i))));
  }
  for (size_t i = 0; i < 16; i += hn::Lanes(di)) {
    const VI byte = hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
    use(16 + i, value_of(hn::Or(hn::ShiftRight<4>(byte), fifth_bits(16 + i))));
  }
}

// 32 elements from `first` on, whose codes are kLowCount bits of the bytes of
// `low`, from kLow on, and above them kHighCount bits of those of `high`, from
// kHigh on. `value_of` maps the half of the elements, 0 or 1, and a vector of
// codes (int32) to weights.
template <int kLow, int kLowCount, int kHigh, int kHighCount, class ValueOf,
          class Use>
HWY_INLINE void DecodeRun(const uint8_t* low, const uint8_t* high, size_t first,
                          const ValueOf& value_of, const Use& use) {
  const hn::Rebind<uint8_t, DF> d8;
  for (size_t i = 0; i < 32; i += hn::Lanes(d8)) {
    // Put together as bytes, which are the smaller vectors.
    auto codes = hn::And(hn::ShiftRight<kLow>(hn::LoadU(d8, low + i)),
                         hn::Set(d8, (1 << kLowCount) - 1));
    if constexpr (kHighCount > 0) {
      const auto above = hn::And(hn::ShiftRight<kHigh>(hn::LoadU(d8, high + i)),
                                 hn::Set(d8, (1 << kHighCount) - 1));
      codes = hn::Or(codes, hn::ShiftLeft<kLowCount>(above));
    }
    use(first + i, value_of(i / 16, hn::PromoteTo(DI(), codes)));
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_DENSE_CODES_INL_H_
