// Decodes 32 consecutive codes of a ScaledMatrix to float32 in registers, for
// every CodeKind. The values are those of code_values.h, bit for bit. Included
// once per SIMD target.

#if defined(QUIRE_MODEL_OPS_SCALED_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#undef QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#else
#define QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "model/ops/code_values.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

inline constexpr size_t kCodeBlock = 32;

// Every decoder has
//   kBytes               of kCodeBlock codes
//   kHasZeros            whether a ScaledMatrix of the kind may have zeros
//   Decode(codes, use)   calls use(i, values) for the vectors at elements i,
//                        i ascending.

template <typename T, bool kZeros>
struct ByteCodes {
  static constexpr size_t kBytes = kCodeBlock;
  static constexpr bool kHasZeros = kZeros;

  template <class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Use& use) const {
    const DF d;
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d))
      use(i, LoadF32(d, reinterpret_cast<const T*>(codes + i)));
  }
};

using F8E4M3Codes = ByteCodes<F8E4M3, false>;
using Int8Codes = ByteCodes<I8, true>;

struct Uint8Codes {
  static constexpr size_t kBytes = kCodeBlock;
  static constexpr bool kHasZeros = true;

  template <class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Use& use) const {
    const DF d;
    const hn::Rebind<uint8_t, DF> d8;
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d)) {
      const VI code = hn::PromoteTo(DI(), hn::LoadU(d8, codes + i));
      use(i, hn::ConvertTo(d, hn::Sub(code, hn::Set(DI(), 128))));
    }
  }
};

// Two codes a byte, the low nibble first: each an index into 16 values.
template <bool kZeros>
struct NibbleCodes {
  static constexpr size_t kBytes = kCodeBlock / 2;
  static constexpr bool kHasZeros = kZeros;

  explicit NibbleCodes(CodeKind kind) : values(NibbleValues(kind).data()) {}

  template <class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Use& use) const {
    const DF d;
    const DI di;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    // Sixteen lanes hold all values.
    const hn::Rebind<uint8_t, DF> d8;
    const VF table = hn::LoadU(d, values);
    const auto bytes = hn::LoadU(d8, codes);
    const auto low = hn::And(bytes, hn::Set(d8, 15));
    const auto high = hn::ShiftRight<4>(bytes);
    const auto look_up = [&](auto nibbles) HWY_ATTR {
      return hn::TableLookupLanes(
          table, hn::IndicesFromVec(d, hn::PromoteTo(di, nibbles)));
    };
    use(0, look_up(hn::InterleaveLower(d8, low, high)));
    use(16, look_up(hn::InterleaveUpper(d8, low, high)));
#else
    int32_t nibbles[kCodeBlock];
    for (size_t i = 0; i < kBytes; ++i) {
      nibbles[2 * i] = codes[i] & 15;
      nibbles[2 * i + 1] = codes[i] >> 4;
    }
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d))
      use(i, hn::GatherIndex(d, values, hn::LoadU(di, nibbles + i)));
#endif
  }

  const float* values;
};

// Calls visit(decoder) with the decoder of `kind`.
template <class Visit>
HWY_INLINE void WithCodes(CodeKind kind, const Visit& visit) {
  switch (kind) {
    case CodeKind::kF8E4M3:
      return visit(F8E4M3Codes());
    case CodeKind::kInt8:
      return visit(Int8Codes());
    case CodeKind::kUint8:
      return visit(Uint8Codes());
    case CodeKind::kUint4:
      return visit(NibbleCodes<true>(kind));
    case CodeKind::kNf4:
    case CodeKind::kF4E2M1:
      return visit(NibbleCodes<false>(kind));
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
