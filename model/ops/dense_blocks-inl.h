// Decodes 32 (Q6_K: 256) consecutive weights of a row to float32, for every
// dtype of DenseMatrix. The value of a weight is the same on every SIMD target.
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

// { uint8 low[128]; uint8 high[64]; int8 scales[16]; f16 d }: a scale for every
// 16 elements, d * scale * (q - 32). Each half of 128 elements has 64 bytes of
// `low`, whose low nibbles are its elements 0..63 and whose high nibbles are
// 64..127, and 32 bytes of `high`, with two bits of elements l, l + 32, l + 64
// and l + 96 each.
struct Q6_KDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 210;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const float d = LoadF16(block + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t* const low = block + 64 * half;
      const uint8_t* const high = block + 128 + 32 * half;
      const size_t first = 128 * half;
      Quarter<0, 0>(low, high, d, scales, first, use);
      Quarter<0, 2>(low + 32, high, d, scales + 2, first + 32, use);
      Quarter<4, 4>(low, high, d, scales + 4, first + 64, use);
      Quarter<4, 6>(low + 32, high, d, scales + 6, first + 96, use);
      scales += 8;
    }
  }

 private:
  // 32 elements: kLow and kHigh are where their bits stand in the bytes.
  template <int kLow, int kHigh, class Use>
  static HWY_INLINE void Quarter(const uint8_t* low, const uint8_t* high,
                                 float d, const int8_t* scales, size_t first,
                                 const Use& use) {
    const DF df;
    const DI di;
    const hn::Rebind<uint8_t, DF> d8;
    for (size_t i = 0; i < 32; i += hn::Lanes(df)) {
      const VF scale = hn::Set(df, d * static_cast<float>(scales[i / 16]));
      // Put together as bytes, which are the smaller vectors.
      const auto low_bits = hn::And(
          hn::ShiftRight<kLow>(hn::LoadU(d8, low + i)), hn::Set(d8, 15));
      const auto high_bits = hn::And(
          hn::ShiftRight<kHigh>(hn::LoadU(d8, high + i)), hn::Set(d8, 3));
      const VI code =
          hn::PromoteTo(di, hn::Or(low_bits, hn::ShiftLeft<4>(high_bits)));
      const VI centred = hn::Sub(code, hn::Set(di, 32));
      use(first + i, hn::Mul(scale, hn::ConvertTo(df, centred)));
    }
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
    case DType::kQ6_K:
      return visit.template operator()<Q6_KDecoder>();
    case DType::kMxfp4:
      return visit.template operator()<Mxfp4Decoder>();
    default:
      return visit.template operator()<PlainDecoder<float>>();
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_DENSE_BLOCKS_INL_H_
