// Decodes 32 consecutive weights of a row to float32, or the 256 of a block of
// dense_super_blocks-inl.h, for every dtype of DenseMatrix. The value of a
// weight is the same on every SIMD target.
//
// Block layouts: ggml's ggml-common.h and ggml-quants.c. Included once per SIMD
// target.

#if defined(QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_
#undef QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_
#else
#define QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/dense_codes-inl.h"
#include "model/ops/dense_super_blocks-inl.h"
#include "model/ops/float_bits.h"
#include "model/ops/simd_float-inl.h"
#include "quire/loader/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// Every decoder has
//   kElements, kBytes    of one block
//   Decode(block, use)   calls use(i, weights) for the vectors at elements i,
//                        i ascending.

template <typename T>
struct PlainDecoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = kElements * sizeof(T);

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const T* const elements = reinterpret_cast<const T*>(block);
    for (size_t i = 0; i < kElements; i += hn::Lanes(d))
      use(i, LoadF32(d, elements + i));
  }
};

// { f16 d; int8 q[32] }: d * q.
struct Q8_0Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 34;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const hn::Rebind<int8_t, DF> d8;
    const VF scale = BroadcastF16(block);
    const auto* const codes = reinterpret_cast<const int8_t*>(block + 2);
    for (size_t i = 0; i < kElements; i += hn::Lanes(d)) {
      const VI code = hn::PromoteTo(DI(), hn::LoadU(d8, codes + i));
      use(i, hn::Mul(scale, hn::ConvertTo(d, code)));
    }
  }
};

// { f16 d; uint8 q[16] }: d * (q - 8).
struct Q4_0Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 18;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const VF scale = BroadcastF16(block);
    DecodeNibbles(
        block + 2,
        [&](VI nibble) HWY_ATTR {
          const VI code = hn::Sub(nibble, hn::Set(DI(), 8));
          return hn::Mul(scale, hn::ConvertTo(d, code));
        },
        use);
  }
};

// { f16 d; f16 m; uint8 q[16] }: d * q + m, rounded twice.
struct Q4_1Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 20;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const VF scale = BroadcastF16(block);
    const VF minimum = BroadcastF16(block + 2);
    DecodeNibbles(
        block + 4,
        [&](VI nibble) HWY_ATTR {
          return hn::Add(hn::Mul(scale, hn::ConvertTo(d, nibble)), minimum);
        },
        use);
  }
};

// { f16 d; uint8 high[4]; uint8 q[16] }: d * (q - 16), the fifth bits in
// `high`.
struct Q5_0Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 22;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const VF scale = BroadcastF16(block);
    DecodeFiveBits(
        block + 2, block + 6,
        [&](VI codes) HWY_ATTR {
          const VI centred = hn::Sub(codes, hn::Set(DI(), 16));
          return hn::Mul(scale, hn::ConvertTo(d, centred));
        },
        use);
  }
};

// { f16 d; f16 m; uint8 high[4]; uint8 q[16] }: d * q + m, rounded twice.
struct Q5_1Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 24;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const VF scale = BroadcastF16(block);
    const VF minimum = BroadcastF16(block + 2);
    DecodeFiveBits(
        block + 4, block + 8,
        [&](VI codes) HWY_ATTR {
          return hn::Add(hn::Mul(scale, hn::ConvertTo(d, codes)), minimum);
        },
        use);
  }
};

// { f16 d; uint8 q[16] }: d times what a nibble stands for (Iq4Values).
struct IQ4_NLDecoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 18;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const VF scale = BroadcastF16(block);
    DecodeNibbles(
        block + 2,
        [&](VI nibbles) HWY_ATTR { return hn::Mul(scale, Iq4Values(nibbles)); },
        use);
  }
};

// { uint8 e; uint8 q[16] }: 2^(e - 128) times twice the value of an E2M1 code,
// so that there are integers only.
struct Mxfp4Decoder {
  static constexpr size_t kElements = 32;
  static constexpr size_t kBytes = 17;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const DF d;
    const VF scale = hn::Set(d, HalfScale(block[0]));
    DecodeNibbles(
        block + 1,
        [&](VI nibble) HWY_ATTR {
          const VI rest = hn::And(nibble, hn::Set(DI(), 7));
          const VI sign = hn::ShiftLeft<28>(hn::And(nibble, hn::Set(DI(), 8)));
          // As DecodeF8: exponent and mantissa are where float32 has them, the
          // bias apart.
          const VF magnitude = hn::Mul(hn::BitCast(d, hn::ShiftLeft<22>(rest)),
                                       hn::Set(d, 0x1p127f));
          const VF value =
              hn::BitCast(d, hn::Or(hn::BitCast(DI(), magnitude), sign));
          // There is no negative zero.
          return hn::Mul(scale, hn::Add(value, hn::Zero(d)));
        },
        use);
  }

 private:
  // 2^(exponent - 128), in float32 a subnormal for 0 and 1.
  static float HalfScale(uint8_t exponent) {
    const uint32_t bits = exponent < 2
                              ? 0x00200000u << exponent
                              : static_cast<uint32_t>(exponent - 1) << 23;
    return std::bit_cast<float>(bits);
  }
};

// Decodes `columns` weights; reads nothing past them.
template <class Decoder>
void DequantizeElements(const uint8_t* row, size_t columns, float* output) {
  const DF d;
  size_t i = 0;
  for (; i + Decoder::kElements <= columns; i += Decoder::kElements) {
    Decoder::Decode(row, [&](size_t j, VF weights) HWY_ATTR {
      hn::StoreU(weights, d, output + i + j);
    });
    row += Decoder::kBytes;
  }
  if (i == columns) return;
  alignas(4) uint8_t padded[Decoder::kBytes] = {};
  HWY_ALIGN float decoded[Decoder::kElements];
  // Only the plain dtypes come here: their elements are all of one size.
  std::memcpy(padded, row,
              (columns - i) * (Decoder::kBytes / Decoder::kElements));
  Decoder::Decode(padded, [&](size_t j, VF weights)
                              HWY_ATTR { hn::Store(weights, d, decoded + j); });
  std::memcpy(output + i, decoded, (columns - i) * sizeof(float));
}

// Calls visit.template operator()<Decoder>() for the decoder of `dtype`.
// REQUIRES: dtype is one of DenseMatrix's.
template <class Visit>
HWY_INLINE void WithDecoder(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF16:
      return visit.template operator()<PlainDecoder<F16>>();
    case DType::kBF16:
      return visit.template operator()<PlainDecoder<BF16>>();
    case DType::kQ8_0:
      return visit.template operator()<Q8_0Decoder>();
    case DType::kQ4_0:
      return visit.template operator()<Q4_0Decoder>();
    case DType::kQ4_1:
      return visit.template operator()<Q4_1Decoder>();
    case DType::kQ5_0:
      return visit.template operator()<Q5_0Decoder>();
    case DType::kQ5_1:
      return visit.template operator()<Q5_1Decoder>();
    case DType::kQ2_K:
      return visit.template operator()<Q2_KDecoder>();
    case DType::kQ3_K:
      return visit.template operator()<Q3_KDecoder>();
    case DType::kQ4_K:
      return visit.template operator()<Q4_KDecoder>();
    case DType::kQ5_K:
      return visit.template operator()<Q5_KDecoder>();
    case DType::kQ6_K:
      return visit.template operator()<Q6_KDecoder>();
    case DType::kIQ4_NL:
      return visit.template operator()<IQ4_NLDecoder>();
    case DType::kIQ4_XS:
      return visit.template operator()<IQ4_XSDecoder>();
    case DType::kMxfp4:
      return visit.template operator()<Mxfp4Decoder>();
    default:
      return visit.template operator()<PlainDecoder<float>>();
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_
