#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model/ops/float_bits.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

constexpr DType kDTypes[] = {
    DType::kF32,  DType::kF16,   DType::kBF16,   DType::kQ8_0,
    DType::kQ4_0, DType::kQ4_1,  DType::kQ5_0,   DType::kQ5_1,
    DType::kQ2_K, DType::kQ3_K,  DType::kQ4_K,   DType::kQ5_K,
    DType::kQ6_K, DType::kMxfp4, DType::kIQ4_NL, DType::kIQ4_XS};

// kvalues_iq4nl of ggml-common.h.
constexpr int kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

// Random bytes of a row, and the weights that they mean by the formulas of
// ggml's dequantize_row_*, one element at a time.
struct Matrix {
  DType dtype = DType::kF32;
  size_t rows = 0;
  size_t columns = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> weights;  // [rows, columns]
};

void PutF16(uint8_t* to, uint16_t half) { std::memcpy(to, &half, 2); }

Matrix MakeMatrix(DType dtype, size_t rows, size_t columns,
                  std::mt19937* random) {
  Matrix matrix;
  matrix.dtype = dtype;
  matrix.rows = rows;
  matrix.columns = columns;
  const size_t row_bytes = BytesOf(dtype, columns)->value();
  matrix.bytes.resize(rows * row_bytes);
  matrix.weights.resize(rows * columns);
  for (uint8_t& byte : matrix.bytes) byte = static_cast<uint8_t>((*random)());

  std::normal_distribution<float> normal(0.0f, 0.05f);
  const size_t block = BlockElements(dtype);
  const size_t block_bytes = BlockBits(dtype) / 8;
  for (size_t b = 0; b < rows * columns / block; ++b) {
    uint8_t* const at = matrix.bytes.data() + b * block_bytes;
    float* const w = matrix.weights.data() + b * block;
    // Scales: finite halves of a usual size.
    const uint16_t half = F16FromF32(normal(*random));
    const float d = F16ToF32(half);
    switch (dtype) {
      case DType::kF32:
        w[0] = normal(*random);
        std::memcpy(at, &w[0], 4);
        break;
      case DType::kF16:
        PutF16(at, half);
        w[0] = d;
        break;
      case DType::kBF16: {
        const uint16_t brain = BF16FromF32(normal(*random));
        PutF16(at, brain);
        w[0] = BF16ToF32(brain);
        break;
      }
      case DType::kQ8_0:
        PutF16(at, half);
        for (size_t i = 0; i < 32; ++i)
          w[i] = d * static_cast<float>(static_cast<int8_t>(at[2 + i]));
        break;
      case DType::kQ4_0:
        PutF16(at, half);
        for (size_t i = 0; i < 16; ++i) {
          w[i] = d * static_cast<float>((at[2 + i] & 15) - 8);
          w[16 + i] = d * static_cast<float>((at[2 + i] >> 4) - 8);
        }
        break;
      case DType::kQ4_1: {
        const uint16_t minimum = F16FromF32(normal(*random));
        PutF16(at, half);
        PutF16(at + 2, minimum);
        // Stored products: the compiler must not fuse them with the sums.
        for (size_t i = 0; i < 16; ++i) {
          volatile float low = d * static_cast<float>(at[4 + i] & 15);
          volatile float high = d * static_cast<float>(at[4 + i] >> 4);
          w[i] = low + F16ToF32(minimum);
          w[16 + i] = high + F16ToF32(minimum);
        }
        break;
      }
      case DType::kMxfp4: {
        constexpr int kTwice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
        at[0] = static_cast<uint8_t>(118 + at[0] % 10);
        const auto value = [&](int code) {
          const int magnitude = kTwice[code & 7];
          return std::ldexp(
              static_cast<float>(code < 8 ? magnitude : -magnitude),
              at[0] - 128);
        };
        for (size_t i = 0; i < 16; ++i) {
          w[i] = value(at[1 + i] & 15);
          w[16 + i] = value(at[1 + i] >> 4);
        }
        break;
      }
      case DType::kQ5_0:
        PutF16(at, half);
        for (size_t i = 0; i < 32; ++i) {
          const int nibble = i < 16 ? at[6 + i] & 15 : at[6 + i - 16] >> 4;
          const int fifth = at[2 + i / 8] >> (i % 8) & 1;
          w[i] = d * static_cast<float>((nibble | fifth << 4) - 16);
        }
        break;
      case DType::kQ5_1: {
        const uint16_t minimum = F16FromF32(normal(*random));
        PutF16(at, half);
        PutF16(at + 2, minimum);
        for (size_t i = 0; i < 32; ++i) {
          const int nibble = i < 16 ? at[8 + i] & 15 : at[8 + i - 16] >> 4;
          const int fifth = at[4 + i / 8] >> (i % 8) & 1;
          volatile float product = d * static_cast<float>(nibble | fifth << 4);
          w[i] = product + F16ToF32(minimum);
        }
        break;
      }
      case DType::kIQ4_NL:
        PutF16(at, half);
        for (size_t i = 0; i < 16; ++i) {
          w[i] = d * static_cast<float>(kIq4Values[at[2 + i] & 15]);
          w[16 + i] = d * static_cast<float>(kIq4Values[at[2 + i] >> 4]);
        }
        break;
      case DType::kQ2_K: {
        const uint16_t minimum = F16FromF32(normal(*random));
        PutF16(at + 80, half);
        PutF16(at + 82, minimum);
        for (size_t i = 0; i < 256; ++i) {
          const uint8_t scale = at[i / 16];
          const int q = at[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2);
          volatile float factor = d * static_cast<float>(scale & 15);
          volatile float product = factor * static_cast<float>(q & 3);
          volatile float less =
              F16ToF32(minimum) * static_cast<float>(scale >> 4);
          w[i] = product - less;
        }
        break;
      }
      case DType::kQ3_K:
        PutF16(at + 108, half);
        for (size_t i = 0; i < 256; ++i) {
          const size_t run = i / 16;
          const uint8_t* const scales = at + 96;
          const int low = scales[run % 8] >> (run / 8 * 4) & 15;
          const int high = scales[8 + run % 4] >> (run / 4 * 2) & 3;
          const int q = at[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2);
          const int third = at[i % 32] >> (i / 32) & 1;
          w[i] = d * static_cast<float>((low | high << 4) - 32) *
                 static_cast<float>((q & 3) - (third != 0 ? 0 : 4));
        }
        break;
      case DType::kQ4_K:
      case DType::kQ5_K: {
        const bool five = dtype == DType::kQ5_K;
        const uint16_t minimum = F16FromF32(normal(*random));
        PutF16(at, half);
        PutF16(at + 2, minimum);
        const uint8_t* const scales = at + 4;
        for (size_t i = 0; i < 256; ++i) {
          const size_t run = i / 32;
          const uint8_t byte = at[(five ? 48 : 16) + i / 64 * 32 + i % 32];
          int q = run % 2 == 0 ? byte & 15 : byte >> 4;
          if (five) q |= (at[16 + i % 32] >> run & 1) << 4;
          // get_scale_min_k4 of ggml-quants.c.
          int scale = scales[run] & 63;
          int offset = scales[run + 4] & 63;
          if (run >= 4) {
            scale = (scales[run + 4] & 15) | (scales[run - 4] >> 6) << 4;
            offset = scales[run + 4] >> 4 | (scales[run] >> 6) << 4;
          }
          volatile float factor = d * static_cast<float>(scale);
          volatile float product = factor * static_cast<float>(q);
          volatile float less = F16ToF32(minimum) * static_cast<float>(offset);
          w[i] = product - less;
        }
        break;
      }
      case DType::kIQ4_XS: {
        PutF16(at, half);
        const int high = at[2] | at[3] << 8;
        for (size_t i = 0; i < 256; ++i) {
          const size_t run = i / 32;
          const uint8_t byte = at[8 + run * 16 + i % 16];
          const int nibble = i % 32 < 16 ? byte & 15 : byte >> 4;
          const int low = at[4 + run / 2] >> (run % 2 * 4) & 15;
          const int scale = low | (high >> (2 * run) & 3) << 4;
          w[i] = d * static_cast<float>(scale - 32) *
                 static_cast<float>(kIq4Values[nibble]);
        }
        break;
      }
      default: {  // Q6_K
        PutF16(at + 208, half);
        for (size_t i = 0; i < 256; ++i) {
          const size_t in_half = i % 128;
          const uint8_t low = at[i / 128 * 64 + in_half % 64];
          const uint8_t high = at[128 + i / 128 * 32 + in_half % 32];
          const int low_bits = in_half < 64 ? low & 15 : low >> 4;
          const int high_bits = high >> (in_half / 32 * 2) & 3;
          const auto scale = static_cast<int8_t>(at[192 + i / 16]);
          w[i] = d * static_cast<float>(scale) *
                 static_cast<float>((low_bits | high_bits << 4) - 32);
        }
        break;
      }
    }
  }
  return matrix;
}

std::vector<float> Multiply(const Matrix& matrix, const uint8_t* bytes,
                            const std::vector<float>& input, size_t tokens,
                            ThreadPool* pool) {
  const GuardedBuffer<float> guarded(input);
  GuardedBuffer<float> output(std::vector<float>(
      tokens * matrix.rows, std::numeric_limits<float>::quiet_NaN()));
  MatMul({bytes, matrix.dtype, matrix.rows, matrix.columns}, guarded.data(),
         tokens, output.data(), pool);
  return {output.data(), output.data() + tokens * matrix.rows};
}

std::string Describe(const Matrix& matrix) {
  return std::string(DTypeName(matrix.dtype)) + " " +
         std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns);
}

std::vector<size_t> ColumnsFor(DType dtype) {
  switch (BlockElements(dtype)) {
    case 1:
      return {1, 5, 31, 32, 33, 576, 1000};
    case 32:
      return {32, 96, 576};
    default:
      return {256, 1024};
  }
}

TEST(DenseMatMulTest, MatchesTheDefinition) {
  std::mt19937 random(1);
  ThreadPool pool(2);
  for (const DType dtype : kDTypes) {
    for (const size_t columns : ColumnsFor(dtype)) {
      for (const size_t rows : {1, 7, 8, 50}) {
        const Matrix matrix = MakeMatrix(dtype, rows, columns, &random);
        SCOPED_TRACE(Describe(matrix));
        const GuardedBuffer<uint8_t> bytes(matrix.bytes);
        for (const size_t tokens : {1, 6, 21}) {
          const std::vector<float> input =
              RandomNormal(tokens * columns, &random);
          ForEachTarget([&] {
            const std::vector<float> output =
                Multiply(matrix, bytes.data(), input, tokens, &pool);
            for (size_t t = 0; t < tokens; ++t) {
              for (size_t r = 0; r < rows; ++r) {
                double want = 0;
                double size = 0;
                for (size_t i = 0; i < columns; ++i) {
                  const double term =
                      static_cast<double>(matrix.weights[r * columns + i]) *
                      static_cast<double>(input[t * columns + i]);
                  want += term;
                  size += std::abs(term);
                }
                ASSERT_NEAR(output[t * rows + r], want, 2e-6 * size)
                    << "token " << t << " row " << r;
              }
            }
          });
        }
      }
    }
  }
}

TEST(DenseMatMulTest, TheBatchAndTheThreadsChangeNoBit) {
  std::mt19937 random(2);
  constexpr size_t kMost = 70;
  for (const DType dtype : kDTypes) {
    const size_t columns = BlockElements(dtype) == 1 ? 75 : 512;
    const Matrix matrix = MakeMatrix(dtype, 37, columns, &random);
    SCOPED_TRACE(Describe(matrix));
    const GuardedBuffer<uint8_t> bytes(matrix.bytes);
    const std::vector<float> input = RandomNormal(kMost * columns, &random);
    ForEachTarget([&] {
      ThreadPool single(1);
      std::vector<float> alone;
      for (size_t t = 0; t < kMost; ++t) {
        const auto begin = input.begin() + static_cast<ptrdiff_t>(t * columns);
        const std::vector<float> token(begin,
                                       begin + static_cast<ptrdiff_t>(columns));
        const std::vector<float> output =
            Multiply(matrix, bytes.data(), token, 1, &single);
        alone.insert(alone.end(), output.begin(), output.end());
      }
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const size_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 70}) {
          std::vector<float> output =
              Multiply(matrix, bytes.data(), input, tokens, &pool);
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

TEST(DequantizeRowTest, GivesExactlyTheWeights) {
  std::mt19937 random(3);
  for (const DType dtype : kDTypes) {
    for (const size_t columns : ColumnsFor(dtype)) {
      const Matrix matrix = MakeMatrix(dtype, 3, columns, &random);
      SCOPED_TRACE(Describe(matrix));
      const GuardedBuffer<uint8_t> bytes(matrix.bytes);
      const DenseMatrix dense = {bytes.data(), dtype, 3, columns};
      ForEachTarget([&] {
        for (size_t row = 0; row < 3; ++row) {
          const GuardedBuffer<float> output(std::vector<float>(columns, 1e9f));
          DequantizeRow(dense, row, output.data());
          for (size_t i = 0; i < columns; ++i)
            ASSERT_EQ(output.data()[i], matrix.weights[row * columns + i]);
        }
      });
    }
  }
}

// Values of all 65,536 halves, from the definition of the format.
TEST(DequantizeRowTest, ReadsEveryF16AndBF16) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> output(all.size());
  ForEachTarget([&] {
    DequantizeRow({all.data(), DType::kF16, 1, all.size()}, 0, output.data());
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const uint32_t exponent = bits >> 10 & 31;
      const auto mantissa = static_cast<double>(bits & 1023);
      const double sign = bits >> 15 != 0 ? -1 : 1;
      if (exponent == 31 && mantissa != 0) {
        ASSERT_TRUE(std::isnan(output[bits])) << bits;
        continue;
      }
      const double magnitude =
          exponent == 31 ? std::numeric_limits<double>::infinity()
          : exponent == 0
              ? std::ldexp(mantissa, -24)
              : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
      ASSERT_EQ(static_cast<double>(output[bits]), sign * magnitude) << bits;
      ASSERT_EQ(std::signbit(output[bits]), sign < 0) << bits;
      ASSERT_EQ(F16ToF32(static_cast<uint16_t>(bits)), output[bits]);
    }
    DequantizeRow({all.data(), DType::kBF16, 1, all.size()}, 0, output.data());
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      uint32_t got;
      std::memcpy(&got, &output[bits], sizeof(got));
      ASSERT_EQ(got, bits << 16);
    }
  });
}

}  // namespace
}  // namespace quire
