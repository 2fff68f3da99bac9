// Reads float32, float16, bfloat16 and elements of 8 bits as vectors of
// float32, and the vector tag that all operations use. Included once per SIMD
// target.

#if defined(QUIRE_MODEL_OPS_SIMD_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_SIMD_FLOAT_INL_H_
#undef QUIRE_MODEL_OPS_SIMD_FLOAT_INL_H_
#else
#define QUIRE_MODEL_OPS_SIMD_FLOAT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/float_bits.h"
#include "model/ops/kv_codes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of 32 weights is a whole number of vectors.
inline constexpr size_t kMaxLanes = 16;
using DF = hn::CappedTag<float, kMaxLanes>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

HWY_INLINE VF LoadF32(DF d, const float* from) { return hn::LoadU(d, from); }

HWY_INLINE VF LoadF32(DF d, const BF16* from) {
  const hn::Rebind<uint16_t, DF> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
}

HWY_INLINE VF LoadF32(DF d, const F16* from) {
  const hn::Rebind<uint16_t, DF> d16;
  const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // F16C
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(d, hn::BitCast(dh, half));
#else
  // As F16ToF32(), which says why.
  const DU du;
  const auto bits = hn::PromoteTo(du, half);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  const auto rest = hn::And(bits, hn::Set(du, 0x7FFF));
  const auto wide = hn::ShiftLeft<13>(rest);
  const auto finite =
      hn::BitCast(du, hn::Mul(hn::BitCast(d, wide), hn::Set(d, 0x1p112f)));
  const auto quiet = hn::IfThenElseZero(hn::Gt(rest, hn::Set(du, 0x7C00)),
                                        hn::Set(du, 0x400000));
  const auto special = hn::Or(hn::Or(wide, hn::Set(du, 0x7F800000)), quiet);
  const auto magnitude =
      hn::IfThenElse(hn::Gt(rest, hn::Set(du, 0x7BFF)), special, finite);
  return hn::BitCast(d, hn::Or(sign, magnitude));
#endif
}

// Reads the code's bits as a float whose exponent is too small by the
// difference of the biases; the product is exact, for subnormal codes too.
template <typename Format>
HWY_INLINE VF DecodeF8(DF d, const uint8_t* from) {
  const DU du;
  const hn::Rebind<uint8_t, DF> d8;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d8, from));
  const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80)));
  const auto rest = hn::And(bits, hn::Set(du, 0x7F));
  const auto wide = hn::ShiftLeft<23 - Format::kMantissaBits>(rest);
  constexpr uint32_t kFactor = (254u - Format::kBias) << 23;
  const auto finite = hn::BitCast(
      du, hn::Mul(hn::BitCast(d, wide), hn::BitCast(d, hn::Set(du, kFactor))));
  // Infinity, where there is one, and NaN, whose mantissa is not 0.
  const auto special = hn::Or(wide, hn::Set(du, 0x7F800000));
  const auto magnitude = hn::IfThenElse(
      hn::Gt(rest, hn::Set(du, uint32_t{Format::kLargest})), special, finite);
  return hn::BitCast(d, hn::Or(sign, magnitude));
}

HWY_INLINE VF LoadF32(DF d, const F8E4M3* from) {
  return DecodeF8<E4M3Format>(d, &from->bits);
}

HWY_INLINE VF LoadF32(DF d, const F8E5M2* from) {
  return DecodeF8<E5M2Format>(d, &from->bits);
}

HWY_INLINE VF LoadF32(DF d, const I8* from) {
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(d, hn::PromoteTo(DI(), hn::LoadU(d8, &from->value)));
}

// The first `count` < Lanes(d) elements, then zeros; reads nothing past them.
template <typename T>
HWY_INLINE VF LoadPartialF32(DF d, const T* from, size_t count) {
  T padded[kMaxLanes] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return LoadF32(d, padded);
}

HWY_INLINE void StorePartial(DF d, VF value, float* to, size_t count) {
  HWY_ALIGN float lanes[kMaxLanes];
  hn::Store(value, d, lanes);
  std::memcpy(to, lanes, count * sizeof(float));
}

HWY_INLINE float SumLanes(DF d, VF value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_SIMD_FLOAT_INL_H_
