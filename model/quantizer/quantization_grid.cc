#include "model/quantizer/quantization_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace quire {
namespace {

// Narrower grids are tried in steps of 1/40 down to half of the full width; the
// best is rarely below 0.6.
constexpr int kSteps = 40;
constexpr int kNarrowest = 20;

// Half precision has 11 significant bits, and a smallest normal of 2^-14.
constexpr float kHalfMax = 65504.0f;
constexpr float kHalfMinNormal = 0x1p-14f;
constexpr float kHalfSubnormalStep = 0x1p-24f;

QuantizationGrid GridFor(float low, float high, const GridOptions& options) {
  const auto max_code = static_cast<float>((1u << options.bits) - 1);
  QuantizationGrid grid;
  // A scale that rounds to zero would make every value zero.
  grid.scale =
      std::max(RoundToHalf((high - low) / max_code), kHalfSubnormalStep);
  grid.zero = options.sym
                  ? 1u << (options.bits - 1)
                  : static_cast<uint32_t>(std::clamp(
                        std::nearbyint(-low / grid.scale), 0.0f, max_code));
  return grid;
}

float SquaredError(std::span<const float> weights, const QuantizationGrid& grid,
                   int bits) {
  const float inverse = 1 / grid.scale;
  const auto zero = static_cast<float>(grid.zero);
  const auto max_code = static_cast<float>((1u << bits) - 1);
  float sum = 0;
  for (const float weight : weights) {
    // Rounds by truncating a number that is not negative: unlike nearbyint,
    // this vectorises on every x86-64.
    const float shifted =
        std::min(std::max(weight * inverse + zero, 0.0f), max_code);
    const auto code = static_cast<float>(static_cast<int32_t>(shifted + 0.5f));
    const float error = grid.scale * (code - zero) - weight;
    sum += error * error;
  }
  return sum;
}

}  // namespace

uint32_t QuantizationGrid::Code(float weight, uint32_t max_code) const {
  const float shifted = weight / scale + static_cast<float>(zero);
  if (!(shifted > 0)) return 0;  // NaN as well
  return static_cast<uint32_t>(std::min(shifted, static_cast<float>(max_code)) +
                               0.5f);
}

QuantizationGrid FitGrid(std::span<const float> weights,
                         const GridOptions& options) {
  float low = 0;
  float high = 0;
  for (const float weight : weights) {
    low = std::min(low, weight);
    high = std::max(high, weight);
  }
  if (options.sym) {
    high = std::max(-low, high);
    if (low < 0) low = -high;
  }
  if (low == 0 && high == 0) {
    low = -1;
    high = 1;
  }
  QuantizationGrid best = GridFor(low, high, options);
  if (!options.mse) return best;
  float best_error = SquaredError(weights, best, options.bits);
  for (int step = kSteps - 1; step >= kNarrowest; --step) {
    const float part = static_cast<float>(step) / kSteps;
    const QuantizationGrid grid = GridFor(low * part, high * part, options);
    const float error = SquaredError(weights, grid, options.bits);
    if (error < best_error) {
      best_error = error;
      best = grid;
    }
  }
  return best;
}

float RoundToHalf(float value) {
  const float magnitude = std::fabs(value);
  if (magnitude >= kHalfMax) return std::copysign(kHalfMax, value);
  // The distance of half-precision numbers around the value.
  const float step = magnitude < kHalfMinNormal
                         ? kHalfSubnormalStep
                         : std::ldexp(1.0f, std::ilogb(magnitude) - 10);
  return std::nearbyint(value / step) * step;
}

uint16_t HalfBits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude < kHalfMinNormal)
    return static_cast<uint16_t>(
        sign | static_cast<uint16_t>(magnitude / kHalfSubnormalStep));
  // Exponent bias 127 becomes 15; of 23 fraction bits the upper 10 stay.
  const uint32_t exponent_and_fraction =
      ((bits & 0x7fffffff) >> 13) - ((127 - 15) << 10);
  return static_cast<uint16_t>(sign | exponent_and_fraction);
}

}  // namespace quire
