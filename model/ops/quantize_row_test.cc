#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

struct Quantized {
  bool ok;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> values;  // what they mean
};

Quantized Quantize(CodeKind kind, const std::vector<float>& row) {
  const bool nf4 = kind == CodeKind::kNf4;
  const size_t block = nf4 ? kNf4BlockColumns : row.size();
  Quantized q;
  const GuardedBuffer<float> input(row);
  GuardedBuffer<uint8_t> codes(
      std::vector<uint8_t>(nf4 ? (row.size() + 1) / 2 : row.size(), 0xAA));
  GuardedBuffer<float> scales(std::vector<float>((row.size() - 1) / block + 1));
  q.ok =
      QuantizeRow(kind, input.data(), row.size(), codes.data(), scales.data());
  const ScaledMatrix matrix = {.kind = kind,
                               .in_features = row.size(),
                               .out_features = 1,
                               .codes = codes.data(),
                               .scales = scales.data(),
                               .scales_dtype = DType::kF32,
                               .block_rows = 1,
                               .block_columns = block};
  q.values.resize(row.size());
  DequantizeRow(matrix, 0, q.values.data());
  return q;
}

float LargestOf(const std::vector<float>& row, size_t begin, size_t end) {
  float largest = 0;
  for (size_t i = begin; i < end; ++i)
    largest = std::max(largest, std::fabs(row[i]));
  return largest;
}

TEST(QuantizeRowTest, Int8IsWithinHalfAStepAndKeepsTheLargest) {
  std::mt19937 random(1);
  for (const size_t count : {1, 7, 64, 1000}) {
    const std::vector<float> row = RandomNormal(count, &random);
    const Quantized q = Quantize(CodeKind::kInt8, row);
    ASSERT_TRUE(q.ok);
    const float largest = LargestOf(row, 0, count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(q.values[i], row[i], largest / 127 * 0.5001f);
      if (std::fabs(row[i]) == largest) {
        EXPECT_NEAR(q.values[i], row[i], 1e-6 * largest);
      }
    }
  }
}

// Every value becomes a level times the block's largest, and no other level is
// nearer.
TEST(QuantizeRowTest, Nf4TakesTheNearestLevelOfItsBlock) {
  constexpr float kLevels[] = {
      -1.0f,        -0.69619280f, -0.52507305f, -0.39491749f,
      -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
      0.07958030f,  0.16093020f,  0.24611230f,  0.33791524f,
      0.44070983f,  0.56261700f,  0.72295684f,  1.0f};
  std::mt19937 random(2);
  for (const size_t count : {1, 63, 64, 65, 500}) {
    const std::vector<float> row = RandomNormal(count, &random);
    const Quantized q = Quantize(CodeKind::kNf4, row);
    ASSERT_TRUE(q.ok);
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = i / 64 * 64;
      const float largest =
          LargestOf(row, begin, std::min<size_t>(begin + 64, count));
      float nearest = largest;
      for (const float level : kLevels)
        nearest = std::min(nearest, std::fabs(level * largest - row[i]));
      EXPECT_NEAR(std::fabs(q.values[i] - row[i]), nearest, 1e-6f * largest)
          << count << ": " << i;
    }
  }
}

TEST(QuantizeRowTest, ZerosAndTinyValuesStayFinite) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    for (const float value : {0.0f, 1e-45f, -1e-40f}) {
      const Quantized q = Quantize(kind, std::vector<float>(70, value));
      ASSERT_TRUE(q.ok);
      for (const float v : q.values) EXPECT_NEAR(v, value, 1e-38);
    }
  }
}

TEST(QuantizeRowTest, ValuesThatAreNotFiniteAreRefused) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      std::vector<float> row(130, 0.5f);
      row[100] = value;
      EXPECT_FALSE(Quantize(kind, row).ok);
    }
  }
}

}  // namespace
}  // namespace quire
