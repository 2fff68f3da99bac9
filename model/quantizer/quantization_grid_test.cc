#include "model/quantizer/quantization_grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace quire {
namespace {

// The value of half-precision bits, from the definition in IEEE 754.
float HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const float magnitude =
      exponent == 0
          ? std::ldexp(static_cast<float>(fraction), -24)
          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(RoundToHalfTest, EveryHalfIsItselfAndKeepsItsBits) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (((bits >> 10) & 31) == 31) continue;  // infinities and NaN
    const float value = HalfValue(static_cast<uint16_t>(bits));
    ASSERT_EQ(RoundToHalf(value), value) << bits;
    ASSERT_EQ(HalfBits(value), bits);
  }
}

TEST(RoundToHalfTest, ValuesBetweenTwoGoToTheNearerAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = HalfValue(static_cast<uint16_t>(bits));
    const float high = HalfValue(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact in float32
    ASSERT_EQ(RoundToHalf(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(RoundToHalf(std::nextafter(middle, 1e9f)), high) << bits;
    ASSERT_EQ(RoundToHalf(middle), bits % 2 == 0 ? low : high) << bits;
  }
  EXPECT_EQ(RoundToHalf(1e30f), 65504.0f);
  EXPECT_EQ(RoundToHalf(-1e30f), -65504.0f);
}

double SquaredError(const std::vector<float>& weights,
                    const QuantizationGrid& grid, int bits) {
  double sum = 0;
  for (const float weight : weights) {
    // The nearest of all values, tried one by one.
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t code = 0; code < (1u << bits); ++code)
      best = std::min(
          best, std::fabs(grid.scale * (static_cast<double>(code) - grid.zero) -
                          weight));
    sum += best * best;
  }
  return sum;
}

class FitGridTest : public testing::TestWithParam<int> {};

TEST_P(FitGridTest, CodesAreTheNearestOfAllAndGridsHoldTheRange) {
  const int bits = GetParam();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> weights(64);
    for (float& weight : weights) weight = 0.05f * normal(random) + 0.02f;
    for (const bool sym : {true, false}) {
      const QuantizationGrid grid =
          FitGrid(weights, {.bits = bits, .sym = sym, .mse = false});
      if (sym) {
        EXPECT_EQ(grid.zero, 1u << (bits - 1));
      }
      ASSERT_LT(grid.zero, 1u << bits);
      double sum = 0;
      for (const float weight : weights) {
        const uint32_t code = grid.Code(weight, (1u << bits) - 1);
        ASSERT_LT(code, 1u << bits);
        const double error = double{grid.Value(code)} - weight;
        // No weight is further from the grid than half a step, but for the
        // outermost of a symmetric grid, which has no code 2^bits, and the
        // rounding of scale and zero.
        EXPECT_LE(std::fabs(error), grid.scale * 1.01);
        sum += error * error;
      }
      EXPECT_NEAR(sum, SquaredError(weights, grid, bits), 1e-6 * sum + 1e-12);
    }
  }
}

TEST_P(FitGridTest, TheErrorFitIsNeverWorseAndHelpsWithOutliers) {
  const int bits = GetParam();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> weights(128);
  for (float& weight : weights) weight = 0.02f * normal(random);
  weights[17] = 0.2f;
  const double full = SquaredError(
      weights, FitGrid(weights, {.bits = bits, .mse = false}), bits);
  const double fitted = SquaredError(
      weights, FitGrid(weights, {.bits = bits, .mse = true}), bits);
  EXPECT_LE(fitted, full * (1 + 1e-6));
  if (bits <= 3) {
    EXPECT_LT(fitted, 0.95 * full);
  }
}

TEST_P(FitGridTest, ZerosStayZero) {
  for (const bool sym : {true, false}) {
    const QuantizationGrid grid =
        FitGrid(std::vector<float>(16, 0.0f), {.bits = GetParam(), .sym = sym});
    EXPECT_EQ(grid.Value(grid.Code(0, (1u << GetParam()) - 1)), 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, FitGridTest, testing::Values(2, 3, 4, 8));

TEST(QuantizationGridTest, WhatIsOutsideGetsTheOutermostCode) {
  const QuantizationGrid grid = {.scale = 0.5f, .zero = 8};
  EXPECT_EQ(grid.Code(1e30f, 15), 15u);
  EXPECT_EQ(grid.Code(-1e30f, 15), 0u);
  EXPECT_EQ(grid.Code(std::nanf(""), 15), 0u);
  EXPECT_EQ(grid.Code(1.0f, 15), 10u);
}

}  // namespace
}  // namespace quire
