// Decodes GGUF's blocks of 256 weights: the K-quants, and IQ4_XS. A block is
// eight or sixteen runs, each with a scale that is a small integer times one or
// two float16 of the block.
//
// Layouts: ggml's ggml-common.h; meaning: dequantize_row_* of ggml-quants.c,
// whose products and sums are rounded one by one, as here. Included once per
// SIMD target.

#if defined(QUIRE_MODEL_OPS_DENSE_SUPER_BLOCKS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_DENSE_SUPER_BLOCKS_INL_H_
#undef QUIRE_MODEL_OPS_DENSE_SUPER_BLOCKS_INL_H_
#else
#define QUIRE_MODEL_OPS_DENSE_SUPER_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/dense_codes-inl.h"
#include "model/ops/float_bits.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// scale * code - minimum.
HWY_INLINE VF ScaleAndShift(float scale, float minimum, VI codes) {
  const DF d;
  return hn::Sub(hn::Mul(hn::Set(d, scale), hn::ConvertTo(d, codes)),
                 hn::Set(d, minimum));
}

// scale * (code - zero).
HWY_INLINE VF ShiftAndScale(float scale, int32_t zero, VI codes) {
  const DF d;
  const VI centred = hn::Sub(codes, hn::Set(DI(), zero));
  return hn::Mul(hn::Set(d, scale), hn::ConvertTo(d, centred));
}

// { uint8 scales[16]; uint8 q[64]; f16 d; f16 dmin }: for every 16 elements the
// low nibble of `scales` times d is the scale, the high one times dmin what is
// taken off. Each half of 128 elements has 32 bytes of q, with two bits of
// elements l, l + 32, l + 64 and l + 96 each.
struct Q2_KDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 84;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const float d = LoadF16(block + 80);
    const float dmin = LoadF16(block + 82);
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t* const q = block + 16 + 32 * half;
      const uint8_t* const scales = block + 8 * half;
      const size_t first = 128 * half;
      Quarter<0>(q, scales, d, dmin, first, use);
      Quarter<2>(q, scales + 2, d, dmin, first + 32, use);
      Quarter<4>(q, scales + 4, d, dmin, first + 64, use);
      Quarter<6>(q, scales + 6, d, dmin, first + 96, use);
    }
  }

 private:
  template <int kShift, class Use>
  static HWY_INLINE void Quarter(const uint8_t* q, const uint8_t* scales,
                                 float d, float dmin, size_t first,
                                 const Use& use) {
    DecodeRun<kShift, 2, 0, 0>(
        q, q, first,
        [&](size_t part, VI codes) HWY_ATTR {
          return ScaleAndShift(d * static_cast<float>(scales[part] & 15),
                               dmin * static_cast<float>(scales[part] >> 4),
                               codes);
        },
        use);
  }
};

// { uint8 high[32]; uint8 low[64]; uint8 scales[12]; f16 d }: d * (scale - 32)
// * (q - 4), a scale of six bits for every 16 elements. `low` is q of Q2_K; bit
// b of the bytes of `high` has the third bit of elements 32 b to 32 b + 31.
struct Q3_KDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 110;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const float d = LoadF16(block + 108);
    float scales[16];
    for (size_t i = 0; i < 16; ++i) {
      const uint8_t* const packed = block + 96;
      const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
      const int high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
      scales[i] = d * static_cast<float>((low | high << 4) - 32);
    }
    const uint8_t* const low = block + 32;
    Quarter<0, 0>(low, block, scales, 0, use);
    Quarter<2, 1>(low, block, scales + 2, 32, use);
    Quarter<4, 2>(low, block, scales + 4, 64, use);
    Quarter<6, 3>(low, block, scales + 6, 96, use);
    Quarter<0, 4>(low + 32, block, scales + 8, 128, use);
    Quarter<2, 5>(low + 32, block, scales + 10, 160, use);
    Quarter<4, 6>(low + 32, block, scales + 12, 192, use);
    Quarter<6, 7>(low + 32, block, scales + 14, 224, use);
  }

 private:
  template <int kLow, int kHigh, class Use>
  static HWY_INLINE void Quarter(const uint8_t* low, const uint8_t* high,
                                 const float* scales, size_t first,
                                 const Use& use) {
    DecodeRun<kLow, 2, kHigh, 1>(
        low, high, first,
        [&](size_t part, VI codes)
            HWY_ATTR { return ShiftAndScale(scales[part], 4, codes); },
        use);
  }
};

// Of Q4_K and Q5_K, for every 32 elements: { f16 d; f16 dmin; uint8 packed[12]
// }, six bits each for a scale and for what is taken off. Those of the first
// four runs are in bytes of their own, whose upper two bits belong to the
// others.
struct RunScales {
  explicit RunScales(const uint8_t* block) {
    const float d = LoadF16(block);
    const float dmin = LoadF16(block + 2);
    const uint8_t* const packed = block + 4;
    for (size_t i = 0; i < 8; ++i) {
      const int scale = i < 4 ? packed[i] & 63
                              : (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
      const int minimum =
          i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | packed[i] >> 6 << 4;
      scales[i] = d * static_cast<float>(scale);
      minima[i] = dmin * static_cast<float>(minimum);
    }
  }
  float scales[8];
  float minima[8];
};

// { RunScales; uint8 q[128] }: 32 bytes for 64 elements, the low nibbles first.
struct Q4_KDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 144;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const RunScales runs(block);
    for (size_t pair = 0; pair < 4; ++pair) {
      const uint8_t* const q = block + 16 + 32 * pair;
      Run<0>(q, runs, 2 * pair, use);
      Run<4>(q, runs, 2 * pair + 1, use);
    }
  }

 private:
  template <int kShift, class Use>
  static HWY_INLINE void Run(const uint8_t* q, const RunScales& runs,
                             size_t run, const Use& use) {
    DecodeRun<kShift, 4, 0, 0>(
        q, q, 32 * run,
        [&](size_t /*part*/, VI codes) HWY_ATTR {
          return ScaleAndShift(runs.scales[run], runs.minima[run], codes);
        },
        use);
  }
};

// { RunScales; uint8 high[32]; uint8 q[128] }: as Q4_K, with a fifth bit of run
// b in bit b of the bytes of `high`.
struct Q5_KDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 176;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const RunScales runs(block);
    Pair<0>(block, runs, use);
    Pair<1>(block, runs, use);
    Pair<2>(block, runs, use);
    Pair<3>(block, runs, use);
  }

 private:
  template <int kPair, class Use>
  static HWY_INLINE void Pair(const uint8_t* block, const RunScales& runs,
                              const Use& use) {
    const uint8_t* const q = block + 48 + 32 * kPair;
    Run<0, 2 * kPair>(q, block + 16, runs, use);
    Run<4, 2 * kPair + 1>(q, block + 16, runs, use);
  }
  template <int kShift, int kRun, class Use>
  static HWY_INLINE void Run(const uint8_t* q, const uint8_t* high,
                             const RunScales& runs, const Use& use) {
    DecodeRun<kShift, 4, kRun, 1>(
        q, high, 32 * kRun,
        [&](size_t /*part*/, VI codes) HWY_ATTR {
          return ScaleAndShift(runs.scales[kRun], runs.minima[kRun], codes);
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
  template <int kLow, int kHigh, class Use>
  static HWY_INLINE void Quarter(const uint8_t* low, const uint8_t* high,
                                 float d, const int8_t* scales, size_t first,
                                 const Use& use) {
    DecodeRun<kLow, 4, kHigh, 2>(
        low, high, first,
        [&](size_t part, VI codes) HWY_ATTR {
          return ShiftAndScale(d * static_cast<float>(scales[part]), 32, codes);
        },
        use);
  }
};

// { f16 d; uint16 high; uint8 low[4]; uint8 q[128] }: a scale of six bits for
// every 32 elements, whose lower four bits are nibbles of `low`: d * (scale -
// 32) times what a nibble of q stands for (Iq4Values).
struct IQ4_XSDecoder {
  static constexpr size_t kElements = 256;
  static constexpr size_t kBytes = 136;

  template <class Use>
  static HWY_INLINE void Decode(const uint8_t* block, const Use& use) {
    const float d = LoadF16(block);
    uint16_t high;
    std::memcpy(&high, block + 2, sizeof(high));
    for (size_t run = 0; run < 8; ++run) {
      const int low = block[4 + run / 2] >> (run % 2 * 4) & 15;
      const int scale = low | (high >> (run * 2) & 3) << 4;
      const VF factor = hn::Set(DF(), d * static_cast<float>(scale - 32));
      DecodeNibbles(
          block + 8 + 16 * run,
          [&](VI nibbles)
              HWY_ATTR { return hn::Mul(factor, Iq4Values(nibbles)); },
          [&](size_t i, VF weights) HWY_ATTR { use(32 * run + i, weights); });
    }
  }
};

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_DENSE_SUPER_BLOCKS_INL_H_
