#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/ops/float_bits.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// A linear layer of random codes, in plain form and packed by a bit writer.
struct Layer {
  int bits = 4;
  size_t k = 0;
  size_t n = 0;
  uint32_t zero_offset = 1;
  DType scales_dtype = DType::kF16;
  std::vector<uint32_t> group_begin;
  std::vector<uint32_t> order;  // empty: identity

  std::vector<uint32_t> codes;  // [k, n]
  std::vector<uint32_t> zeros;  // [groups, n], as used
  std::vector<float> scales;    // [groups, n], as stored
  std::vector<uint32_t> qweight;
  std::vector<uint32_t> qzeros;
  std::vector<uint8_t> scale_bytes;

  size_t groups() const { return group_begin.size() - 1; }
};

std::vector<uint32_t> EqualGroups(size_t k, size_t size) {
  std::vector<uint32_t> begin = {0};
  while (begin.back() < k) {
    begin.push_back(
        static_cast<uint32_t>(std::min<size_t>(k, begin.back() + size)));
  }
  return begin;
}

void Append(std::vector<uint8_t>* bytes, const void* value, size_t size) {
  const auto* from = static_cast<const uint8_t*>(value);
  bytes->insert(bytes->end(), from, from + size);
}

void Fill(Layer* layer, std::mt19937* random) {
  const int bits = layer->bits;
  const size_t n = layer->n;
  const uint32_t mask = (1u << bits) - 1;
  layer->codes.resize(layer->k * n);
  layer->qweight.assign((layer->k * bits + 31) / 32 * n, 0);
  for (size_t row = 0; row < layer->k; ++row) {
    for (size_t column = 0; column < n; ++column) {
      const uint32_t code = (*random)() & mask;
      layer->codes[row * n + column] = code;
      WriteBits(&layer->qweight, n, column, row * bits, bits, code);
    }
  }
  const size_t zero_words = (n * bits + 31) / 32;
  std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
  for (size_t group = 0; group < layer->groups(); ++group) {
    std::vector<uint32_t> words(zero_words, 0);
    for (size_t column = 0; column < n; ++column) {
      const uint32_t stored = (*random)() & mask;
      WriteBits(&words, 1, 0, column * bits, bits, stored);
      layer->zeros.push_back((stored + layer->zero_offset) & mask);
      const float s = scale(*random);
      if (layer->scales_dtype == DType::kF32) {
        layer->scales.push_back(s);
        Append(&layer->scale_bytes, &s, sizeof(s));
      } else {
        const bool f16 = layer->scales_dtype == DType::kF16;
        const uint16_t stored_scale = f16 ? F16FromF32(s) : BF16FromF32(s);
        layer->scales.push_back(f16 ? F16ToF32(stored_scale)
                                    : BF16ToF32(stored_scale));
        Append(&layer->scale_bytes, &stored_scale, sizeof(stored_scale));
      }
    }
    layer->qzeros.insert(layer->qzeros.end(), words.begin(), words.end());
  }
}

// The layer's arrays, each up against a page that faults.
struct Packed {
  explicit Packed(const Layer& layer)
      : qweight(layer.qweight),
        qzeros(layer.qzeros),
        scales(layer.scale_bytes),
        group_begin(layer.group_begin),
        order(layer.order) {
    matrix.bits = layer.bits;
    matrix.in_features = layer.k;
    matrix.out_features = layer.n;
    matrix.groups = layer.groups();
    matrix.qweight = qweight.data();
    matrix.qzeros = qzeros.data();
    matrix.scales = scales.data();
    matrix.scales_dtype = layer.scales_dtype;
    matrix.zero_offset = layer.zero_offset;
    matrix.group_begin = group_begin.data();
    matrix.input_order = layer.order.empty() ? nullptr : order.data();
  }

  GuardedBuffer<uint32_t> qweight;
  GuardedBuffer<uint32_t> qzeros;
  GuardedBuffer<uint8_t> scales;
  GuardedBuffer<uint32_t> group_begin;
  GuardedBuffer<uint32_t> order;
  GptqMatrix matrix;
};

// Checks every output against a sum in double precision. The bound: activations
// are rounded to 2^-22 of the largest of their segment, sums to float32.
void ExpectNear(const Layer& layer, const std::vector<float>& input,
                size_t tokens, const std::vector<float>& output) {
  for (size_t t = 0; t < tokens; ++t) {
    float largest = 0;
    for (size_t row = 0; row < layer.k; ++row)
      largest = std::max(largest, std::abs(input[t * layer.k + row]));
    for (size_t column = 0; column < layer.n; ++column) {
      double want = 0;
      double weights = 0;
      for (size_t g = 0; g < layer.groups(); ++g) {
        for (size_t row = layer.group_begin[g]; row < layer.group_begin[g + 1];
             ++row) {
          const double w =
              static_cast<double>(layer.scales[g * layer.n + column]) *
              (static_cast<double>(layer.codes[row * layer.n + column]) -
               static_cast<double>(layer.zeros[g * layer.n + column]));
          const size_t from = layer.order.empty() ? row : layer.order[row];
          want += w * static_cast<double>(input[t * layer.k + from]);
          weights += std::abs(w);
        }
      }
      ASSERT_NEAR(output[t * layer.n + column], want,
                  1e-6 * weights * static_cast<double>(largest) + 1e-30)
          << "token " << t << " column " << column;
    }
  }
}

std::vector<float> Multiply(const GptqMatrix& matrix,
                            const std::vector<float>& input, size_t tokens,
                            ThreadPool* pool) {
  const GuardedBuffer<float> guarded(input);
  // Stale output must not show.
  GuardedBuffer<float> output(std::vector<float>(
      tokens * matrix.out_features, std::numeric_limits<float>::quiet_NaN()));
  MatMul(matrix, guarded.data(), tokens, output.data(), pool);
  return {output.data(), output.data() + tokens * matrix.out_features};
}

std::string Describe(const Layer& layer) {
  return std::to_string(layer.bits) + " bits, K " + std::to_string(layer.k) +
         ", N " + std::to_string(layer.n) + ", " +
         std::to_string(layer.groups()) + " groups" +
         (layer.order.empty() ? "" : ", reordered");
}

TEST(GptqMatMulTest, MatchesTheDefinitionOnEveryTargetWithTheSameBits) {
  std::mt19937 random(1);
  ThreadPool pool(2);
  struct Case {
    size_t k, n, group;
  };
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const Case& c :
         {Case{128, 64, 128}, Case{96, 80, 32}, Case{40, 7, 40},
          Case{256, 1, 64}, Case{33, 130, 8}, Case{300, 37, 100},
          Case{1, 16, 128}, Case{576, 192, 576}, Case{200, 600, 64}}) {
      for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
        Layer layer;
        layer.bits = bits;
        layer.k = c.k;
        layer.n = c.n;
        layer.zero_offset = dtype == DType::kF16 ? 1 : 0;
        layer.scales_dtype = dtype;
        layer.group_begin = EqualGroups(c.k, c.group);
        if (dtype == DType::kBF16) {
          layer.order.resize(c.k);
          std::iota(layer.order.begin(), layer.order.end(), 0);
          std::shuffle(layer.order.begin(), layer.order.end(), random);
        }
        Fill(&layer, &random);
        SCOPED_TRACE(Describe(layer));
        const Packed packed(layer);
        constexpr size_t kTokens = 3;
        const std::vector<float> input =
            RandomNormal(kTokens * layer.k, &random);
        std::vector<float> first;
        ForEachTarget([&] {
          const std::vector<float> output =
              Multiply(packed.matrix, input, kTokens, &pool);
          ExpectNear(layer, input, kTokens, output);
          if (first.empty()) first = output;
          EXPECT_EQ(output, first);
        });
      }
    }
  }
}

TEST(GptqMatMulTest, GroupsMayBeOfAnySizeAndBeginAnywhere) {
  std::mt19937 random(2);
  ThreadPool pool(1);
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    Layer layer;
    layer.bits = bits;
    layer.k = 500;
    layer.n = 70;
    // An empty group, one of a single row, one over several segments.
    layer.group_begin = {0, 13, 13, 14, 45, 64, 320, 499, 500};
    Fill(&layer, &random);
    SCOPED_TRACE(Describe(layer));
    const Packed packed(layer);
    const std::vector<float> input = RandomNormal(5 * layer.k, &random);
    ForEachTarget([&] {
      ExpectNear(layer, input, 5, Multiply(packed.matrix, input, 5, &pool));
    });
  }
}

TEST(GptqMatMulTest, TheBatchAndTheThreadsChangeNoBit) {
  std::mt19937 random(3);
  constexpr size_t kMost = 70;  // more than a block of tokens
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    Layer layer;
    layer.bits = bits;
    layer.k = 200;
    layer.n = 300;
    layer.group_begin = EqualGroups(layer.k, 64);
    Fill(&layer, &random);
    SCOPED_TRACE(Describe(layer));
    const Packed packed(layer);
    const std::vector<float> input = RandomNormal(kMost * layer.k, &random);
    ForEachTarget([&] {
      ThreadPool single(1);
      std::vector<float> alone;
      for (size_t t = 0; t < kMost; ++t) {
        const auto begin = input.begin() + static_cast<ptrdiff_t>(t * layer.k);
        const std::vector<float> token(begin,
                                       begin + static_cast<ptrdiff_t>(layer.k));
        const std::vector<float> output =
            Multiply(packed.matrix, token, 1, &single);
        alone.insert(alone.end(), output.begin(), output.end());
      }
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const size_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 70}) {
          std::vector<float> output =
              Multiply(packed.matrix, input, tokens, &pool);
          output.insert(output.end(),
                        alone.begin() + static_cast<ptrdiff_t>(output.size()),
                        alone.end());
          ASSERT_EQ(output, alone)
              << tokens << " tokens, " << threads << " threads";
        }
      }
    });
  }
}

TEST(GptqMatMulTest, LargeActivationsDoNotDrownTheRest) {
  // A few channels of real models are some thousand times larger than the rest.
  std::mt19937 random(4);
  ThreadPool pool(1);
  Layer layer;
  layer.k = 512;
  layer.n = 64;
  layer.group_begin = EqualGroups(layer.k, 128);
  Fill(&layer, &random);
  const Packed packed(layer);
  std::vector<float> input = RandomNormal(layer.k, &random, 0.01f);
  input[300] = 1000.0f;
  ForEachTarget([&] {
    ExpectNear(layer, input, 1, Multiply(packed.matrix, input, 1, &pool));
  });
}

TEST(GptqMatMulTest, SumsDoNotOverflow) {
  ThreadPool pool(1);
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    Layer layer;
    layer.bits = bits;
    layer.k = 256;
    layer.n = 16;
    layer.scales_dtype = DType::kF32;
    layer.zero_offset = 0;
    layer.group_begin = EqualGroups(layer.k, 256);
    const uint32_t largest = (1u << bits) - 1;
    layer.codes.assign(layer.k * layer.n, largest);
    layer.zeros.assign(layer.n, 0);
    layer.scales.assign(layer.n, 1.0f);
    layer.qweight.assign(layer.k * bits / 32 * layer.n, ~0u);
    layer.qzeros.assign(layer.n * bits / 32 + 1, 0);
    layer.scale_bytes.resize(layer.n * sizeof(float));
    std::memcpy(layer.scale_bytes.data(), layer.scales.data(),
                layer.scale_bytes.size());
    const Packed packed(layer);
    // Around every power of two: all digits at their ends, either sign.
    for (const float x :
         {1.0f, -1.0f, 1.9921871f, -1.9921875f, 1.9999999f, 0.50390625f,
          -0.9921875f, 1.5f, 0x1.ffffp0f, 0x1.fe7ffep0f, 0x1.fe8p0f}) {
      const std::vector<float> input(layer.k, x);
      ForEachTarget([&] {
        ExpectNear(layer, input, 1, Multiply(packed.matrix, input, 1, &pool));
      });
    }
  }
}

TEST(GptqMatMulTest, TinyAndHugeActivations) {
  std::mt19937 random(5);
  ThreadPool pool(1);
  Layer layer;
  layer.k = 128;
  layer.n = 33;
  layer.group_begin = EqualGroups(layer.k, 64);
  Fill(&layer, &random);
  const Packed packed(layer);
  for (const float size : {0.0f, 1e-30f, 1e-20f, 1e20f, 1e30f}) {
    std::vector<float> input = RandomNormal(layer.k, &random);
    for (float& x : input) x *= size;
    ForEachTarget([&] {
      ExpectNear(layer, input, 1, Multiply(packed.matrix, input, 1, &pool));
    });
  }
  // The smallest activations may be lost, but do no harm.
  const std::vector<float> subnormal(layer.k, 1e-42f);
  ForEachTarget([&] {
    for (const float y : Multiply(packed.matrix, subnormal, 1, &pool))
      EXPECT_LT(std::abs(y), 1e-36f);
  });
}

TEST(GptqMatMulTest, WhatIsNotFiniteMakesNaNForItsTokenAlone) {
  std::mt19937 random(6);
  ThreadPool pool(2);
  Layer layer;
  layer.k = 130;
  layer.n = 20;
  layer.group_begin = EqualGroups(layer.k, 32);
  Fill(&layer, &random);
  const Packed packed(layer);
  std::vector<float> input = RandomNormal(3 * layer.k, &random);
  input[40] = std::numeric_limits<float>::infinity();
  input[2 * layer.k + 129] = std::numeric_limits<float>::quiet_NaN();
  ForEachTarget([&] {
    const std::vector<float> output = Multiply(packed.matrix, input, 3, &pool);
    for (size_t i = 0; i < layer.n; ++i) {
      EXPECT_TRUE(std::isnan(output[i]));
      EXPECT_TRUE(std::isfinite(output[layer.n + i]));
      EXPECT_TRUE(std::isnan(output[2 * layer.n + i]));
    }
  });
}

TEST(PackedRowsTest, UnpackCodeReadsWhatABitWriterWrote) {
  std::mt19937 random(7);
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    Layer layer;
    layer.bits = bits;
    layer.k = 71;
    layer.n = 5;
    layer.group_begin = EqualGroups(layer.k, 71);
    Fill(&layer, &random);
    const Packed packed(layer);
    for (size_t row = 0; row < layer.k; ++row) {
      for (size_t column = 0; column < layer.n; ++column) {
        ASSERT_EQ(UnpackCode(packed.qweight.data(), bits, layer.n, row, column),
                  layer.codes[row * layer.n + column]);
      }
    }
  }
}

TEST(PackedRowsTest, PermutedRowsAreTheRowsInTheirNewOrder) {
  std::mt19937 random(8);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
      for (const size_t k : {1, 31, 32, 75, 160}) {
        for (const size_t n : {1, 16, 150}) {
          Layer layer;
          layer.bits = bits;
          layer.k = k;
          layer.n = n;
          layer.group_begin = EqualGroups(k, k);
          Fill(&layer, &random);
          SCOPED_TRACE(Describe(layer));
          std::vector<uint32_t> order(k);
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), random);

          std::vector<uint32_t> want(layer.qweight.size(), 0);
          for (size_t row = 0; row < k; ++row) {
            for (size_t column = 0; column < n; ++column) {
              WriteBits(&want, n, column, row * bits, bits,
                        layer.codes[order[row] * n + column]);
            }
          }
          const GuardedBuffer<uint32_t> words(layer.qweight);
          PermutePackedRows(words.data(), bits, k, n, order.data(), &pool);
          const std::vector<uint32_t> got(words.data(),
                                          words.data() + want.size());
          EXPECT_EQ(got, want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
