// Counts what is no number in tables and weights, by the bits: an element is
// NaN or infinite where its exponent is the largest there is. Loops that the
// compiler turns into vectors, as everything that a checkpoint holds may pass
// through them.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

constexpr size_t kStrip = 4096;  // elements whose count fits in 16 bits

// How many of `count` elements have all bits of `mask`.
template <typename T>
uint64_t CountMasked(const void* values, size_t count, T mask) {
  const auto* const elements = static_cast<const T*>(values);
  uint64_t found = 0;
  for (size_t begin = 0; begin < count; begin += kStrip) {
    const size_t end = std::min(count, begin + kStrip);
    uint16_t here = 0;
    for (size_t i = begin; i < end; ++i)
      here = static_cast<uint16_t>(here + ((elements[i] & mask) == mask));
    found += here;
  }
  return found;
}

// Where ggml's blocks have their float16 scales, of which there are one or two
// side by side (ggml-common.h). MXFP4 has a power of two, which is never NaN.
struct BlockScales {
  size_t offset = 0;
  size_t count = 0;
};
BlockScales ScalesOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {0, 1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 2};
    case DType::kQ3_K:
      return {108, 1};
    case DType::kQ6_K:
      return {208, 1};
    default:
      return {};
  }
}

uint64_t CountInBlocks(const void* values, DType dtype, size_t count) {
  const BlockScales scales = ScalesOf(dtype);
  const size_t block_bytes = BlockBits(dtype) / 8;
  const auto* block = static_cast<const uint8_t*>(values) + scales.offset;
  uint64_t found = 0;
  for (size_t i = count / BlockElements(dtype); i > 0; --i) {
    for (size_t scale = 0; scale < scales.count; ++scale) {
      uint16_t bits;
      std::memcpy(&bits, block + scale * sizeof(bits), sizeof(bits));
      found += (bits & 0x7C00) == 0x7C00 ? 1 : 0;
    }
    block += block_bytes;
  }
  return found;
}

}  // namespace

uint64_t CountNonFinite(const void* values, DType dtype, size_t count) {
  switch (dtype) {
    case DType::kF32:
      return CountMasked<uint32_t>(values, count, 0x7F800000);
    case DType::kF16:
      return CountMasked<uint16_t>(values, count, 0x7C00);
    case DType::kBF16:
      return CountMasked<uint16_t>(values, count, 0x7F80);
    case DType::kF8E8M0:
      return CountMasked<uint8_t>(values, count, 0xFF);
    case DType::kF8E4M3:
      return CountMasked<uint8_t>(values, count, 0x7F);
    default:
      return CountInBlocks(values, dtype, count);
  }
}

NonFiniteCounts CountNonFinite(const ScaledMatrix& matrix, ThreadPool* pool) {
  NonFiniteCounts counts;
  counts.scales = CountNonFinite(
      matrix.scales, matrix.scales_dtype,
      ScaleBytes(matrix).value() * 8 / BlockBits(matrix.scales_dtype));
  if (matrix.kind != CodeKind::kF8E4M3) return counts;

  constexpr size_t kRowsOfOneTask = 64;
  std::atomic<uint64_t> nans = 0;
  pool->ParallelFor(
      matrix.out_features, kRowsOfOneTask, [&](size_t begin, size_t end) {
        uint64_t found = 0;
        for (size_t row = begin; row < end; ++row)
          found += CountNonFinite(matrix.codes + row * matrix.row_bytes,
                                  DType::kF8E4M3, matrix.in_features);
        nans += found;
      });
  counts.codes = nans;
  return counts;
}

}  // namespace quire
