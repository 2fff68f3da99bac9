// Decodes 32 consecutive codes of a ScaledMatrix to float32 in registers, for
// every CodeKind. The values are those of code_values.h, bit for bit; with
// AVX3_DL those of E4M3 and of nibbles are looked up. Included once per SIMD
// target.

#if defined(QUIRE_MODEL_OPS_SCALED_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#undef QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#else
#define QUIRE_MODEL_OPS_SCALED_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/code_values.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

inline constexpr size_t kCodeBlock = 32;

// Every decoder has
//   kBytes                      of kCodeBlock codes
//   kHasZeros                   whether a ScaledMatrix of the kind may have
//                               zeros
//   Decode(codes, weigh, use)   calls use(i, weigh(values)) for the vectors at
//                               elements i, i ascending. `weigh` computes each
//                               lane from the same lane alone: where all values
//                               of a kind fit in a vector, it is called once.

template <typename T, bool kZeros>
struct ByteCodes {
  static constexpr size_t kBytes = kCodeBlock;
  static constexpr bool kHasZeros = kZeros;

  template <class Weigh, class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Weigh& weigh,
                         const Use& use) const {
    const DF d;
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d))
      use(i, weigh(LoadF32(d, reinterpret_cast<const T*>(codes + i))));
  }
};

#if HWY_TARGET == HWY_AVX3_DL

// An E4M3 is a bfloat16 too, whose two bytes are looked up by the seven bits
// beside the sign. Ten instructions for 16 codes become five.
struct F8E4M3Codes {
  static constexpr size_t kBytes = kCodeBlock;
  static constexpr bool kHasZeros = false;

  template <class Weigh, class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Weigh& weigh,
                         const Use& use) const {
    const auto look_up = [](const F8E4M3Tables::Table& table,
                            __m512i index) HWY_ATTR {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table.data()), index,
                                      _mm512_load_si512(table.data() + 64));
    };
    // What is in the upper half of these does not matter.
    const __m512i code = _mm512_castsi256_si512(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i low = look_up(tables.low, code);
    // high | (code & sign)
    const __m512i high = _mm512_ternarylogic_epi32(
        look_up(tables.high, code), code, _mm512_set1_epi8(INT8_MIN), 0xF8);
    for (size_t half = 0; half < 2; ++half) {
      const __m512i bits = _mm512_maskz_permutex2var_epi8(
          UINT64_C(0xCCCCCCCCCCCCCCCC), low,
          _mm512_load_si512(tables.spread[half].data()), high);
      use(16 * half, weigh(VF{_mm512_castsi512_ps(bits)}));
    }
  }

  const F8E4M3Tables& tables = F8E4M3Tables::Get();
};

#else

using F8E4M3Codes = ByteCodes<F8E4M3, false>;

#endif

using Int8Codes = ByteCodes<I8, true>;

struct Uint8Codes {
  static constexpr size_t kBytes = kCodeBlock;
  static constexpr bool kHasZeros = true;

  template <class Weigh, class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Weigh& weigh,
                         const Use& use) const {
    const DF d;
    const hn::Rebind<uint8_t, DF> d8;
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d)) {
      const VI code = hn::PromoteTo(DI(), hn::LoadU(d8, codes + i));
      use(i, weigh(hn::ConvertTo(d, hn::Sub(code, hn::Set(DI(), 128)))));
    }
  }
};

// Two codes a byte, the low nibble first: each an index into 16 values.
template <bool kZeros>
struct NibbleCodes {
  static constexpr size_t kBytes = kCodeBlock / 2;
  static constexpr bool kHasZeros = kZeros;

  explicit NibbleCodes(CodeKind kind) : values(NibbleValues(kind).data()) {}

  template <class Weigh, class Use>
  HWY_INLINE void Decode(const uint8_t* codes, const Weigh& weigh,
                         const Use& use) const {
    const DF d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    // Sixteen lanes hold the weights of all codes.
    const VF table = weigh(hn::LoadU(d, values));
#if HWY_TARGET == HWY_AVX3_DL
    // Lane i has bits 4i and those that follow of eight codes' bytes; of an
    // index four bits count.
    const __m512i shifts = _mm512_setr_epi64(
        INT64_C(0x0400000000), INT64_C(0x0C00000008), INT64_C(0x1400000010),
        INT64_C(0x1C00000018), INT64_C(0x2400000020), INT64_C(0x2C00000028),
        INT64_C(0x3400000030), INT64_C(0x3C00000038));
    for (size_t half = 0; half < 2; ++half) {
      int64_t bytes;
      std::memcpy(&bytes, codes + 8 * half, sizeof(bytes));
      const __m512i indices =
          _mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(bytes));
      use(16 * half, VF{_mm512_permutexvar_ps(indices, table.raw)});
    }
#else
    const auto look_up = [&](auto nibbles) HWY_ATTR {
      return hn::TableLookupLanes(
          table, hn::IndicesFromVec(d, hn::PromoteTo(DI(), nibbles)));
    };
    const hn::Rebind<uint8_t, DF> d8;
    const auto bytes = hn::LoadU(d8, codes);
    const auto low = hn::And(bytes, hn::Set(d8, 15));
    const auto high = hn::ShiftRight<4>(bytes);
    use(0, look_up(hn::InterleaveLower(d8, low, high)));
    use(16, look_up(hn::InterleaveUpper(d8, low, high)));
#endif
#else
    int32_t nibbles[kCodeBlock];
    for (size_t i = 0; i < kBytes; ++i) {
      nibbles[2 * i] = codes[i] & 15;
      nibbles[2 * i + 1] = codes[i] >> 4;
    }
    for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d))
      use(i, weigh(hn::GatherIndex(d, values, hn::LoadU(DI(), nibbles + i))));
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
