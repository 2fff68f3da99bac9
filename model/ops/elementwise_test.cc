#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "model/ops/float_bits.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// `values` as elements of a dtype, and what is left of them in it.
struct Stored {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

Stored Store(const std::vector<float>& values, DType dtype) {
  Stored stored;
  for (const float v : values) {
    uint8_t buffer[4];
    size_t size = 2;
    if (dtype == DType::kF32) {
      std::memcpy(buffer, &v, 4);
      size = 4;
      stored.values.push_back(v);
    } else {
      const bool f16 = dtype == DType::kF16;
      const uint16_t half = f16 ? F16FromF32(v) : BF16FromF32(v);
      std::memcpy(buffer, &half, 2);
      stored.values.push_back(f16 ? F16ToF32(half) : BF16ToF32(half));
    }
    stored.bytes.insert(stored.bytes.end(), buffer, buffer + size);
  }
  return stored;
}

constexpr DType kPlain[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST(ElementwiseTest, AddsTheBiasToEveryToken) {
  std::mt19937 random(1);
  for (const DType dtype : kPlain) {
    for (const size_t features : {1, 15, 16, 100}) {
      const Stored bias = Store(RandomNormal(features, &random), dtype);
      const std::vector<float> before = RandomNormal(3 * features, &random);
      const GuardedBuffer<uint8_t> guarded(bias.bytes);
      ForEachTarget([&] {
        const GuardedBuffer<float> values(before);
        AddBias(guarded.data(), dtype, 3, features, values.data());
        for (size_t i = 0; i < before.size(); ++i) {
          ASSERT_EQ(values.data()[i], before[i] + bias.values[i % features])
              << i;
        }
      });
    }
  }
}

TEST(ElementwiseTest, AddsInPlace) {
  std::mt19937 random(2);
  for (const size_t count : {0, 1, 17, 64}) {
    const std::vector<float> before = RandomNormal(count, &random);
    const GuardedBuffer<float> other(RandomNormal(count, &random));
    ForEachTarget([&] {
      const GuardedBuffer<float> values(before);
      AddInPlace(other.data(), count, values.data());
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(values.data()[i], before[i] + other.data()[i]);
    });
  }
}

TEST(ElementwiseTest, RmsNormMatchesTheDefinition) {
  std::mt19937 random(3);
  ThreadPool pool(2);
  for (const DType dtype : kPlain) {
    for (const size_t features : {1, 3, 16, 33, 576, 1000}) {
      const size_t tokens = features == 1000 ? 40 : 2;
      const Stored weight = Store(RandomNormal(features, &random), dtype);
      const GuardedBuffer<uint8_t> guarded(weight.bytes);
      const std::vector<float> input =
          RandomNormal(tokens * features, &random, 3.0f);
      ForEachTarget([&] {
        const GuardedBuffer<float> in(input);
        const GuardedBuffer<float> out(std::vector<float>(input.size()));
        RmsNorm(in.data(), guarded.data(), dtype, 1e-5f, tokens, features,
                out.data(), &pool);
        for (size_t t = 0; t < tokens; ++t) {
          double squares = 0;
          for (size_t i = 0; i < features; ++i)
            squares += std::pow(input[t * features + i], 2.0);
          const double root =
              std::sqrt(squares / static_cast<double>(features) + 1e-5);
          for (size_t i = 0; i < features; ++i) {
            const double want = input[t * features + i] / root *
                                static_cast<double>(weight.values[i]);
            ASSERT_NEAR(out.data()[t * features + i], want,
                        1e-6 * std::abs(want));
          }
        }
        const std::vector<float> apart(out.data(), out.data() + input.size());
        RmsNorm(in.data(), guarded.data(), dtype, 1e-5f, tokens, features,
                in.data(), &pool);
        EXPECT_EQ(apart,
                  std::vector<float>(in.data(), in.data() + input.size()))
            << "in place";
        // Each token alone.
        for (size_t t = 0; t < tokens; ++t) {
          const GuardedBuffer<float> one(std::vector<float>(
              input.begin() + static_cast<ptrdiff_t>(t * features),
              input.begin() + static_cast<ptrdiff_t>((t + 1) * features)));
          RmsNorm(one.data(), guarded.data(), dtype, 1e-5f, 1, features,
                  one.data(), &pool);
          for (size_t i = 0; i < features; ++i)
            ASSERT_EQ(one.data()[i], apart[t * features + i]);
        }
      });
    }
  }
}

TEST(ElementwiseTest, SiluIsAccurateOverItsWholeRange) {
  std::vector<float> gate = {0.0f,   -0.0f,   1e-30f, -1e-30f, 88.0f, -88.0f,
                             104.0f, -104.0f, 1e4f,   -1e4f,   3e38f, -3e38f};
  for (float x = -100.0f; x < 100.0f; x += 0.0137f) gate.push_back(x);
  const std::vector<float> up(gate.size(), 0.5f);
  ThreadPool pool(2);
  ForEachTarget([&] {
    const GuardedBuffer<float> values(gate);
    const GuardedBuffer<float> guarded_up(up);
    SiluMultiply(guarded_up.data(), gate.size(), values.data(), &pool);
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto x = static_cast<double>(gate[i]);
      const double want = x / (1 + std::exp(-x)) * 0.5;
      // Within a few units in the last place of a normal float.
      ASSERT_NEAR(values.data()[i], want, 5e-7 * std::abs(want) + 1e-37)
          << "at " << gate[i];
    }
  });
}

TEST(ElementwiseTest, SiluKeepsNaN) {
  ForEachTarget([] {
    ThreadPool pool(1);
    float gate[] = {std::numeric_limits<float>::quiet_NaN(), 1.0f};
    const float up[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
    SiluMultiply(up, 2, gate, &pool);
    EXPECT_TRUE(std::isnan(gate[0]));
    EXPECT_TRUE(std::isnan(gate[1]));
  });
}

class RopeTest : public testing::TestWithParam<RopePairing> {};

TEST_P(RopeTest, RotatesPairsByTheirAngles) {
  const bool halves = GetParam() == RopePairing::kHalf;
  std::mt19937 random(4);
  ThreadPool pool(2);
  struct Case {
    size_t rotary_dim, head_dim, heads;
  };
  for (const Case& c : {Case{2, 2, 1}, Case{64, 64, 3}, Case{32, 80, 2},
                        Case{96, 96, 2}, Case{10, 12, 3}, Case{128, 128, 4}}) {
    const size_t half = c.rotary_dim / 2;
    std::vector<float> frequencies(half);
    for (size_t i = 0; i < half; ++i) {
      frequencies[i] =
          std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
    }
    const std::vector<uint64_t> positions = {0, 1, 77, 4095, 100000, 1000000};
    const size_t row = c.heads * c.head_dim;
    const std::vector<float> before =
        RandomNormal(positions.size() * row, &random);
    const float magnitude = 1.25f;
    ForEachTarget([&] {
      const GuardedBuffer<float> values(before);
      Rope(positions.data(), frequencies.data(), c.rotary_dim, GetParam(),
           magnitude, positions.size(), c.heads, c.head_dim, values.data(),
           &pool);
      std::vector<double> want(before.begin(), before.end());
      for (size_t t = 0; t < positions.size(); ++t) {
        for (size_t h = 0; h < c.heads; ++h) {
          const size_t base = t * row + h * c.head_dim;
          for (size_t i = 0; i < half; ++i) {
            // The angle is a float32 product; all else is exact here.
            const double angle =
                static_cast<float>(positions[t]) * frequencies[i];
            const size_t a = base + (halves ? i : 2 * i);
            const size_t b = base + (halves ? i + half : 2 * i + 1);
            const auto x = static_cast<double>(before[a]);
            const auto y = static_cast<double>(before[b]);
            want[a] = magnitude * (x * std::cos(angle) - y * std::sin(angle));
            want[b] = magnitude * (x * std::sin(angle) + y * std::cos(angle));
          }
        }
      }
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(values.data()[i], want[i], 2e-6) << i;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Pairings, RopeTest,
                         testing::Values(RopePairing::kHalf,
                                         RopePairing::kInterleaved));

// The nearest half to a value, ties to the even one, by search in the table of
// all halves.
uint16_t NearestHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  uint16_t low = 0;
  uint16_t high = 0x7C00;  // stands for 65536, one step above the largest
  const auto value_of = [](uint16_t half) {
    return half == 0x7C00 ? 65536.0 : static_cast<double>(F16ToF32(half));
  };
  if (magnitude >= 65536.0) return sign | 0x7C00;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low);
  const double above = value_of(high) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return sign | (up ? high : low);
}

std::vector<float> AwkwardFloats() {
  std::vector<float> values;
  // Every half, the middle between it and the next, and the floats around both.
  for (uint32_t half = 0; half <= 0x7C00; ++half) {
    const float here =
        half == 0x7C00 ? 65536.0f : F16ToF32(static_cast<uint16_t>(half));
    const float next =
        half >= 0x7BFF ? 65536.0f : F16ToF32(static_cast<uint16_t>(half + 1));
    for (const float v : {here, (here + next) / 2}) {
      for (const float w :
           {v, std::nextafter(v, -1.0f), std::nextafter(v, 1e30f)}) {
        values.push_back(w);
        values.push_back(-w);
      }
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 200000; ++i) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(v)) values.push_back(v);
  }
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::infinity());
  return values;
}

TEST(StoreKvRowTest, RoundsToTheNearestHalf) {
  const std::vector<float> values = AwkwardFloats();
  ForEachTarget([&] {
    const GuardedBuffer<uint16_t> row(std::vector<uint16_t>(values.size()));
    StoreKvRow(values.data(), values.size(), KvDType::kF16, row.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(row.data()[i], NearestHalf(values[i])) << values[i];
      ASSERT_EQ(F16FromF32(values[i]), row.data()[i]) << values[i];
    }
  });
}

TEST(StoreKvRowTest, RoundsToTheNearestBrainFloat) {
  std::vector<float> values = AwkwardFloats();
  // Exact middles between two brain floats, even and odd below.
  for (uint32_t top = 0; top < 0x7F80; ++top)
    values.push_back(std::bit_cast<float>(top << 16 | 0x8000));
  const GuardedBuffer<uint16_t> row(std::vector<uint16_t>(values.size()));
  StoreKvRow(values.data(), values.size(), KvDType::kBF16, row.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t low = bits & 0xFFFF;
    uint32_t want = bits >> 16;
    if (low > 0x8000 || (low == 0x8000 && (want & 1) != 0)) ++want;
    ASSERT_EQ(row.data()[i], want) << values[i];
  }
}

TEST(StoreKvRowTest, KeepsNaN) {
  ForEachTarget([] {
    std::vector<float> values;
    for (const uint32_t bits :
         {0x7FC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F801FFFu, 0x7FFFFFFFu})
      values.push_back(std::bit_cast<float>(bits));
    values.resize(40, values.back());
    std::vector<uint16_t> row(values.size());
    StoreKvRow(values.data(), values.size(), KvDType::kF16, row.data());
    for (const uint16_t half : row) EXPECT_TRUE(std::isnan(F16ToF32(half)));
    StoreKvRow(values.data(), values.size(), KvDType::kBF16, row.data());
    for (const uint16_t half : row) EXPECT_TRUE(std::isnan(BF16ToF32(half)));
  });
}

TEST(StoreKvRowTest, CopiesF32) {
  std::mt19937 random(6);
  const std::vector<float> values = RandomNormal(19, &random);
  const GuardedBuffer<float> row(std::vector<float>(19));
  StoreKvRow(values.data(), 19, KvDType::kF32, row.data());
  EXPECT_EQ(values, std::vector<float>(row.data(), row.data() + 19));
}

TEST(SimdTargetTest, NamesTheTargetInUse) {
  ForEachTarget([] {
    EXPECT_STREQ(SimdTargetName(), hwy::TargetName(hwy::SupportedTargets()));
  });
}

}  // namespace
}  // namespace quire
