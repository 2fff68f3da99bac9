// Elements of 8 bits: codes against the definition, all of them, and rows by
// what comes back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "model/ops/kv_codes.h"
#include "model/ops/kv_row_testing.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

uint8_t Encode(KvDType dtype, float value) {
  return dtype == KvDType::kF8E4M3 ? EncodeF8<E4M3Format>(value)
                                   : EncodeF8<E5M2Format>(value);
}

// The finite codes of one sign, by rising value.
std::vector<double> Values(KvDType dtype) {
  std::vector<double> values;
  for (int code = 0; code < 128; ++code) {
    const double value = F8Value(dtype, static_cast<uint8_t>(code));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(EncodeF8Test, EveryCodeComesBack) {
  for (const KvDType dtype : {KvDType::kF8E4M3, KvDType::kF8E5M2}) {
    for (int code = 0; code < 256; ++code) {
      const double value = F8Value(dtype, static_cast<uint8_t>(code));
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(Encode(dtype, static_cast<float>(value)), code) << value;
    }
  }
}

TEST(EncodeF8Test, RoundsToTheNearestCodeAndHalfWayToTheEvenOne) {
  for (const KvDType dtype : {KvDType::kF8E4M3, KvDType::kF8E5M2}) {
    const std::vector<double> values = Values(dtype);
    for (size_t code = 0; code + 1 < values.size(); ++code) {
      const auto middle =
          static_cast<float>((values[code] + values[code + 1]) / 2);  // exact
      for (const float sign : {1.0f, -1.0f}) {
        const uint8_t bit = sign < 0 ? 0x80 : 0;
        EXPECT_EQ(Encode(dtype, sign * std::nextafter(middle, 0.0f)),
                  code | bit);
        EXPECT_EQ(Encode(dtype, sign * std::nextafter(middle, kInfinity)),
                  (code + 1) | bit);
        EXPECT_EQ(Encode(dtype, sign * middle), (code + code % 2) | bit);
      }
    }
    const auto largest = static_cast<float>(values.back());
    for (const float beyond : {largest * 1.01f, largest * 2, 1e30f, kInfinity})
      EXPECT_EQ(F8Value(dtype, Encode(dtype, -beyond)),
                -static_cast<double>(largest));
    EXPECT_TRUE(std::isnan(F8Value(dtype, Encode(dtype, kNaN))));
    EXPECT_EQ(Encode(dtype, -0.0f), 0x80);
    EXPECT_EQ(Encode(dtype, 1e-40f), 0);
  }
}

TEST(EncodeI8Test, RoundsToTheNearestInteger) {
  EXPECT_EQ(EncodeI8(2.5f), 2);
  EXPECT_EQ(EncodeI8(3.5f), 4);
  EXPECT_EQ(EncodeI8(-126.6f), -127);
  EXPECT_EQ(EncodeI8(1e9f), 127);
  EXPECT_EQ(EncodeI8(-1e9f), -127);
}

struct Row {
  Row(const std::vector<float>& values, size_t heads, KvElements e)
      : elements(e),
        head_dim(values.size() / heads),
        codes(values.size()),
        scales(heads * 4) {
    StoreScaledKvRow(values.data(), heads, head_dim, elements, codes.data(),
                     scales.data());
  }
  float operator[](size_t i) const {
    return KvElementAt(elements, codes.data(), scales.data(), head_dim, i);
  }
  KvElements elements;
  size_t head_dim;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

// The largest error is half a step of the element type, of the head's largest
// magnitude: 1/16 of a value for E4M3, 1/8 for E5M2, 1/254 of the largest for
// int8. The scale itself is a little above what is exact where it is a half.
TEST(StoreScaledKvRowTest, EveryHeadHasTheRangeThatItNeeds) {
  std::mt19937 random(7);
  for (const KvScale scale : {KvScale::kF16, KvScale::kF32}) {
    for (const KvDType dtype :
         {KvDType::kF8E4M3, KvDType::kF8E5M2, KvDType::kInt8}) {
      for (const float magnitude : {1e-3f, 1.0f, 300.0f, 1e5f}) {
        constexpr size_t kHeads = 3;
        constexpr size_t kDim = 20;
        std::vector<float> values = RandomNormal(kHeads * kDim, &random);
        // Heads of quite different sizes; one is all zeros.
        for (size_t i = 0; i < kDim; ++i) {
          values[i] *= magnitude;
          values[kDim + i] = 0;
        }
        const Row row(values, kHeads, {dtype, scale});
        for (size_t h = 0; h < kHeads; ++h) {
          float largest = 0;
          for (size_t i = 0; i < kDim; ++i)
            largest = std::max(largest, std::abs(values[h * kDim + i]));
          for (size_t i = h * kDim; i < (h + 1) * kDim; ++i) {
            const float bound =
                dtype == KvDType::kInt8 ? largest / 252
                : dtype == KvDType::kF8E4M3
                    ? std::abs(values[i]) / 15.9f + largest * 1e-5f
                    : std::abs(values[i]) / 7.9f + largest * 1e-5f;
            EXPECT_NEAR(row[i], values[i], bound);
          }
        }
      }
    }
  }
}

TEST(StoreScaledKvRowTest, WithoutScalesWhatIsTooLargeIsTheLargest) {
  const Row row({1000, -3, 0.1f, 448}, 1, KvDType::kF8E4M3);
  EXPECT_EQ(row[0], 448);
  EXPECT_EQ(row[1], -3);
  EXPECT_NEAR(row[2], 0.1f, 0.1f / 16);
  EXPECT_EQ(row[3], 448);
}

TEST(StoreScaledKvRowTest, NaNAndInfinityShow) {
  for (const KvScale scale : {KvScale::kF16, KvScale::kF32}) {
    for (const KvDType dtype :
         {KvDType::kF8E4M3, KvDType::kF8E5M2, KvDType::kInt8}) {
      for (const float bad : {kNaN, kInfinity, -kInfinity}) {
        const Row row({1, bad, 3, 4, 1, 2, 3, 4}, 2, {dtype, scale});
        EXPECT_TRUE(std::isnan(row[1])) << bad;
        EXPECT_NEAR(row[7], 4, 0.01f);  // another head
      }
    }
  }
}

TEST(HasAttentionTest, IntegersNeedScales) {
  EXPECT_FALSE(HasAttention({2, 8, 8, KvDType::kInt8}));
  EXPECT_TRUE(HasAttention({2, 8, 8, KvDType::kInt8, KvScale::kF32}));
  EXPECT_TRUE(HasAttention({2, 8, 8, KvDType::kF8E4M3}));
}

TEST(HasAttentionTest, ALatentVectorHasOneHead) {
  EXPECT_TRUE(HasAttention(LatentKvLayer(512, 64, KvDType::kBF16)));
  EXPECT_TRUE(HasAttention({2, 8, 4, KvDType::kF16}));
  EXPECT_FALSE(HasAttention({2, 8, 0, KvDType::kF16}));
}

}  // namespace
}  // namespace quire
