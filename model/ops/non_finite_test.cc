#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "model/ops/float_bits.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

TEST(CountNonFiniteTest, FindsEveryNanAndInfinityOf16Bits) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto count = [&](float (*to_float)(uint16_t)) {
    return std::count_if(all.begin(), all.end(), [&](uint16_t bits) {
      return !std::isfinite(to_float(bits));
    });
  };
  EXPECT_EQ(CountNonFinite(all.data(), DType::kF16, all.size()),
            static_cast<uint64_t>(count(F16ToF32)));
  EXPECT_EQ(CountNonFinite(all.data(), DType::kBF16, all.size()),
            static_cast<uint64_t>(count(BF16ToF32)));
}

TEST(CountNonFiniteTest, FindsThemAtEveryPlaceAndLength) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t size : {1u, 7u, 64u, 5000u}) {
      std::vector<float> values(size, std::numeric_limits<float>::max());
      EXPECT_EQ(CountNonFinite(values.data(), DType::kF32, size), 0u);
      for (size_t i = 0; i < size; i += 1 + size / 50) {
        values[i] = bad;
        EXPECT_EQ(CountNonFinite(values.data(), DType::kF32, size), 1u) << i;
        values[i] = 0;
      }
      std::fill(values.begin(), values.end(), bad);
      EXPECT_EQ(CountNonFinite(values.data(), DType::kF32, size), size);
    }
  }
}

TEST(CountNonFiniteTest, CodesAndPowersOfTwo) {
  std::vector<uint8_t> all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  // OCP's 8-bit floats: E4M3 has two NaN and no infinity, E8M0 one NaN.
  EXPECT_EQ(CountNonFinite(all.data(), DType::kF8E4M3, all.size()), 2u);
  EXPECT_EQ(CountNonFinite(all.data(), DType::kF8E8M0, all.size()), 1u);
}

// NaN at each place of a block: it is counted where, and only where, the
// decoder of the block makes weights of it that are no numbers.
TEST(CountNonFiniteTest, ScalesOfBlocksAreWhereTheDecodersReadThem) {
  for (const DType dtype :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
        DType::kIQ4_NL, DType::kMxfp4, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
        DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}) {
    const size_t elements = 2 * BlockElements(dtype);
    const size_t bytes = 2 * BlockBits(dtype) / 8;
    std::vector<float> weights(elements);
    for (size_t at = 0; at + 2 <= bytes; ++at) {
      std::vector<uint8_t> blocks(bytes, 0);
      blocks[at + 1] = 0x7E;
      DequantizeRow(DenseMatrix{.data = blocks.data(),
                                .dtype = dtype,
                                .out_features = 1,
                                .in_features = elements},
                    0, weights.data());
      const bool decoded =
          std::any_of(weights.begin(), weights.end(),
                      [](float weight) { return !std::isfinite(weight); });
      EXPECT_EQ(CountNonFinite(blocks.data(), dtype, elements),
                decoded ? 1u : 0u)
          << DTypeName(dtype) << ", byte " << at;
    }
  }
}

TEST(CountNonFiniteTest, CountsScalesAndCodesOfAMatrix) {
  constexpr size_t kRows = 130;
  constexpr size_t kColumns = 64;
  std::vector<uint8_t> codes(kRows * kColumns, 0x38);
  std::vector<float> scales(kRows, 1.0f);
  const ScaledMatrix matrix = {.kind = CodeKind::kF8E4M3,
                               .in_features = kColumns,
                               .out_features = kRows,
                               .codes = codes.data(),
                               .row_bytes = kColumns,
                               .scales = scales.data(),
                               .scales_dtype = DType::kF32,
                               .block_rows = 1,
                               .block_columns = kColumns};
  ThreadPool pool(2);
  EXPECT_EQ(CountNonFinite(matrix, &pool).scales, 0u);
  EXPECT_EQ(CountNonFinite(matrix, &pool).codes, 0u);
  codes.front() = 0x7F;
  codes.back() = 0xFF;
  scales[100] = std::numeric_limits<float>::quiet_NaN();
  scales[101] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(CountNonFinite(matrix, &pool).scales, 2u);
  EXPECT_EQ(CountNonFinite(matrix, &pool).codes, 2u);
  std::vector<float> row(kColumns);
  DequantizeRow(matrix, 0, row.data());
  EXPECT_TRUE(std::isnan(row[0]));
}

}  // namespace
}  // namespace quire
