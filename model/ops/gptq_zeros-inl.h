// Unpacks the zero points of a group for a range of columns, once per SIMD
// target.

#if defined(QUIRE_MODEL_OPS_GPTQ_ZEROS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_GPTQ_ZEROS_INL_H_
#undef QUIRE_MODEL_OPS_GPTQ_ZEROS_INL_H_
#else
#define QUIRE_MODEL_OPS_GPTQ_ZEROS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/packed_codes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// zeros[i] = (code i of the bit string `words` + offset) mod 2^kBits. Reads no
// word without a code below `count`.
template <int kBits>
void LoadZeros(const uint32_t* words, size_t count, uint32_t offset,
               uint8_t* zeros) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const hn::CappedTag<uint8_t, 16> d8;
  using V8 = hn::Vec<decltype(d8)>;
  size_t i = 0;
  if constexpr (kBits == 2 || kBits == 4 || kBits == 8) {
    const size_t codes_per_vector = hn::Lanes(d8) * 8 / kBits;
    const V8 add = hn::Set(d8, static_cast<uint8_t>(offset));
    const V8 mask = hn::Set(d8, static_cast<uint8_t>(kMask));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(words);
    const auto finish = [&](V8 codes) HWY_ATTR {
      return hn::And(hn::Add(codes, add), mask);
    };
    for (; i + codes_per_vector <= count; i += codes_per_vector) {
      const V8 v = hn::LoadU(d8, bytes + i * kBits / 8);
      if constexpr (kBits == 8) {
        hn::StoreU(finish(v), d8, zeros + i);
      } else if constexpr (kBits == 4) {
        hn::StoreInterleaved2(finish(v), finish(hn::ShiftRight<4>(v)), d8,
                              zeros + i);
      } else {
        hn::StoreInterleaved4(finish(v), finish(hn::ShiftRight<2>(v)),
                              finish(hn::ShiftRight<4>(v)),
                              finish(hn::ShiftRight<6>(v)), d8, zeros + i);
      }
    }
  } else if constexpr (kBits == 3) {
    // Eight codes are three bytes, spread over eight by halving; a fourth byte
    // is read with them, which belongs to the codes after.
    const auto* const bytes = reinterpret_cast<const uint8_t*>(words);
    const uint64_t add = (offset & kMask) * 0x0101010101010101u;
    for (; i + 16 <= count; i += 8) {
      uint32_t raw;
      std::memcpy(&raw, bytes + i / 8 * 3, sizeof(raw));
      uint64_t codes = raw & 0xFFFFFF;
      codes = (codes | codes << 20) & 0x00000FFF00000FFFu;
      codes = (codes | codes << 10) & 0x003F003F003F003Fu;
      codes = (codes | codes << 5) & 0x0707070707070707u;
      codes = (codes + add) & 0x0707070707070707u;
      std::memcpy(zeros + i, &codes, sizeof(codes));
    }
  }
  for (; i < count; ++i) {
    zeros[i] =
        static_cast<uint8_t>((PackedCode(words, 1, kBits, i) + offset) & kMask);
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_GPTQ_ZEROS_INL_H_
