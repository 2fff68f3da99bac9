// Each kind of code is checked against the words of its standard, spelled out
// here: sign, exponent and mantissa of the float formats bit by bit, and the
// levels of NF4 as QLoRA's appendix E prints them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model/ops/float_bits.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

constexpr CodeKind kKinds[] = {CodeKind::kF8E4M3, CodeKind::kInt8,
                               CodeKind::kUint8,  CodeKind::kUint4,
                               CodeKind::kNf4,    CodeKind::kF4E2M1};

// A small float: `exponent_bits` and `mantissa_bits` under a sign.
double SmallFloat(int code, int exponent_bits, int mantissa_bits, int bias) {
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int sign = code >> (exponent_bits + mantissa_bits) & 1;
  const double fraction = mantissa / std::pow(2.0, mantissa_bits);
  const double magnitude =
      exponent == 0 ? fraction * std::pow(2.0, 1 - bias)
                    : (1 + fraction) * std::pow(2.0, exponent - bias);
  return sign == 0 ? magnitude : -magnitude;
}

// Dettmers et al. 2023, appendix E.
constexpr double kNormalFloat[16] = {
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
};

double ValueOf(CodeKind kind, int code) {
  switch (kind) {
    case CodeKind::kF8E4M3:
      return SmallFloat(code, 4, 3, 7);
    case CodeKind::kInt8:
      return code < 128 ? code : code - 256;
    case CodeKind::kUint8:
      return code - 128;
    case CodeKind::kUint4:
      return code - 8;
    case CodeKind::kNf4:
      return kNormalFloat[code];
    case CodeKind::kF4E2M1:
      return SmallFloat(code, 2, 1, 1);
  }
  return 0;
}

struct Grid {
  size_t block_rows;
  size_t block_columns;
};

// A matrix of random codes, scales and zeros, and what it means.
struct Example {
  Example(CodeKind kind, size_t rows, size_t columns, Grid grid,
          DType scales_dtype, bool packed_zeros, bool int8_zeros,
          bool shuffled_columns, std::mt19937* random) {
    matrix.kind = kind;
    matrix.out_features = rows;
    matrix.in_features = columns;
    matrix.block_rows = grid.block_rows;
    matrix.block_columns = grid.block_columns;
    matrix.scales_dtype = scales_dtype;
    const int bits = CodeBits(kind);
    matrix.row_bytes = (columns * static_cast<size_t>(bits) + 7) / 8;
    const size_t grid_rows = (rows - 1) / grid.block_rows + 1;
    const size_t grid_columns = (columns - 1) / grid.block_columns + 1;

    std::vector<float> scale(grid_rows * grid_columns);
    for (float& s : scale) s = AddScale(scales_dtype, random);
    std::vector<double> zero(scale.size(), 0);
    if (int8_zeros) {
      zeros.resize(scale.size());
      for (size_t i = 0; i < zero.size(); ++i) {
        const int value = static_cast<int>((*random)() % 16) - 8;
        zeros[i] = static_cast<uint8_t>(value);
        zero[i] = value;
      }
      matrix.zeros_dtype = DType::kI8;
    }
    if (packed_zeros) {
      std::vector<uint32_t> words(
          (grid_rows * static_cast<size_t>(bits) + 31) / 32 * grid_columns, 0);
      for (size_t r = 0; r < grid_rows; ++r) {
        for (size_t c = 0; c < grid_columns; ++c) {
          const uint32_t code = (*random)() % (1u << bits);
          WriteBits(&words, grid_columns, c, r * static_cast<size_t>(bits),
                    bits, code);
          zero[r * grid_columns + c] =
              static_cast<double>(code) - (1 << (bits - 1));
        }
      }
      zeros.resize(words.size() * 4);
      std::memcpy(zeros.data(), words.data(), zeros.size());
      matrix.zeros_dtype = DType::kI32;
    }
    if (shuffled_columns)
      for (size_t k = 0; k < columns; ++k)
        scale_column.push_back((*random)() % grid_columns);

    codes.assign(rows * matrix.row_bytes, 0);
    weights.resize(rows * columns);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t k = 0; k < columns; ++k) {
        int code = static_cast<int>((*random)() % (1u << bits));
        if (kind == CodeKind::kF8E4M3 && (code & 0x7F) == 0x7F) code -= 1;
        uint8_t& byte =
            codes[r * matrix.row_bytes + k * static_cast<size_t>(bits) / 8];
        byte = static_cast<uint8_t>(
            bits == 8 ? code : byte | code << (k % 2 == 0 ? 0 : 4));
        const size_t column =
            shuffled_columns ? scale_column[k] : k / grid.block_columns;
        const size_t cell = r / grid.block_rows * grid_columns + column;
        weights[r * columns + k] =
            (ValueOf(kind, code) - zero[cell]) * scale[cell];
      }
    }
    matrix.codes = codes.data();
    matrix.scales = scales.data();
    if (!zeros.empty()) matrix.zeros = zeros.data();
    if (shuffled_columns) matrix.scale_column = scale_column.data();
  }

  float AddScale(DType dtype, std::mt19937* random) {
    const float value =
        std::ldexp(1.0f + static_cast<float>((*random)() % 1000) / 1000.0f, -6);
    const size_t at = scales.size();
    switch (dtype) {
      case DType::kF16: {
        const uint16_t half = F16FromF32(value);
        scales.resize(at + 2);
        std::memcpy(scales.data() + at, &half, 2);
        return F16ToF32(half);
      }
      case DType::kBF16: {
        const uint16_t brain = BF16FromF32(value);
        scales.resize(at + 2);
        std::memcpy(scales.data() + at, &brain, 2);
        return BF16ToF32(brain);
      }
      case DType::kF8E8M0: {
        const auto code = static_cast<uint8_t>(117 + (*random)() % 12);
        scales.push_back(code);
        return std::ldexp(1.0f, code - 127);
      }
      default:
        scales.resize(at + 4);
        std::memcpy(scales.data() + at, &value, 4);
        return value;
    }
  }

  ScaledMatrix matrix;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> zeros;
  std::vector<uint32_t> scale_column;
  std::vector<double> weights;  // [rows, columns]
};

void ExpectProductIsThatOf(const Example& example, size_t tokens,
                           ThreadPool* pool, std::mt19937* random) {
  const size_t columns = example.matrix.in_features;
  const size_t rows = example.matrix.out_features;
  const GuardedBuffer<float> input(RandomNormal(tokens * columns, random));
  GuardedBuffer<float> output(std::vector<float>(
      tokens * rows, std::numeric_limits<float>::quiet_NaN()));
  MatMul(example.matrix, input.data(), tokens, output.data(), pool);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (size_t k = 0; k < columns; ++k) {
        const double term = example.weights[r * columns + k] *
                            static_cast<double>(input.data()[t * columns + k]);
        sum += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(output.data()[t * rows + r], sum, 1e-6 * magnitude + 1e-20)
          << "token " << t << ", row " << r;
    }
  }
}

std::string NameOf(const ScaledMatrix& m) {
  return std::string(CodeKindName(m.kind)) + " " +
         std::to_string(m.out_features) + " x " +
         std::to_string(m.in_features) + ", blocks " +
         std::to_string(m.block_rows) + " x " + std::to_string(m.block_columns);
}

TEST(ScaledMatMulTest, EveryKindAndBlockMatchesTheDefinition) {
  ForEachTarget([] {
    std::mt19937 random(5);
    ThreadPool pool(2);
    for (const CodeKind kind : kKinds) {
      for (const size_t columns : {1, 33, 200}) {
        for (const Grid grid : {Grid{1, 32}, Grid{1, columns}, Grid{16, 128},
                                Grid{40, columns}}) {
          const Example example(kind, 40, columns, grid, DType::kF32, false,
                                false, false, &random);
          SCOPED_TRACE(NameOf(example.matrix));
          for (const size_t tokens : {1, 5})
            ExpectProductIsThatOf(example, tokens, &pool, &random);
        }
      }
    }
  });
}

// A row for each code, in one place of it; that place alone is asked for.
TEST(ScaledMatMulTest, EveryCodeInEveryPlaceIsItsExactValue) {
  ForEachTarget([] {
    ThreadPool pool(1);
    constexpr size_t kColumns = 71;
    for (const CodeKind kind : kKinds) {
      SCOPED_TRACE(CodeKindName(kind));
      const size_t bits = static_cast<size_t>(CodeBits(kind));
      const size_t rows = size_t{1} << bits;
      const float scale = 1;
      ScaledMatrix matrix;
      matrix.kind = kind;
      matrix.out_features = matrix.block_rows = rows;
      matrix.in_features = matrix.block_columns = kColumns;
      matrix.row_bytes = (kColumns * bits + 7) / 8;
      matrix.scales = &scale;
      for (size_t place = 0; place < kColumns; ++place) {
        std::vector<uint8_t> codes(rows * matrix.row_bytes, 0);
        for (size_t code = 0; code < rows; ++code)
          codes[code * matrix.row_bytes + place * bits / 8] =
              static_cast<uint8_t>(code << place * bits % 8);
        matrix.codes = codes.data();
        std::vector<float> input(2 * kColumns, 0.0f);
        input[place] = 1;
        input[kColumns + place] = -3;
        for (const size_t tokens : {1, 2}) {
          std::vector<float> output(tokens * rows);
          MatMul(matrix, input.data(), tokens, output.data(), &pool);
          for (size_t i = 0; i < output.size(); ++i) {
            const size_t code = i % rows;
            const float factor = i < rows ? 1 : -3;
            if (kind == CodeKind::kF8E4M3 && (code & 0x7F) == 0x7F) {
              ASSERT_TRUE(std::isnan(output[i])) << code << " at " << place;
            } else {
              const double value = ValueOf(kind, static_cast<int>(code));
              ASSERT_EQ(output[i], static_cast<float>(value) * factor)
                  << code << " at " << place;
            }
          }
        }
      }
    }
  });
}

TEST(ScaledMatMulTest, ScalesOfEveryTypeAreRead) {
  std::mt19937 random(6);
  ThreadPool pool(1);
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E8M0}) {
    SCOPED_TRACE(DTypeName(dtype));
    const Example example(CodeKind::kF4E2M1, 9, 96, {1, 32}, dtype, false,
                          false, false, &random);
    for (const size_t tokens : {1, 3})
      ExpectProductIsThatOf(example, tokens, &pool, &random);
  }
}

TEST(ScaledMatMulTest, ZeroPointsAndShuffledColumnsMatchTheDefinition) {
  std::mt19937 random(7);
  ThreadPool pool(1);
  for (const CodeKind kind :
       {CodeKind::kInt8, CodeKind::kUint8, CodeKind::kUint4}) {
    for (const bool packed : {false, true}) {
      for (const bool shuffled : {false, true}) {
        const Example example(kind, 21, 80, {1, 32}, DType::kBF16, packed,
                              !packed, shuffled, &random);
        SCOPED_TRACE(NameOf(example.matrix));
        for (const size_t tokens : {1, 2})
          ExpectProductIsThatOf(example, tokens, &pool, &random);
      }
    }
  }
}

// One token goes another way than several, and another one where scales are of
// no whole blocks of inputs.
TEST(ScaledMatMulTest, ATokenDoesNotDependOnTheBatchOrTheThreads) {
  ForEachTarget([] {
    std::mt19937 random(8);
    ThreadPool one(1);
    ThreadPool four(4);
    constexpr size_t kTokens = 9;
    constexpr size_t kRows = 43;
    constexpr size_t kColumns = 300;
    const std::vector<float> input = RandomNormal(kTokens * kColumns, &random);
    for (const CodeKind kind : kKinds) {
      const bool integers = kind == CodeKind::kInt8 ||
                            kind == CodeKind::kUint8 ||
                            kind == CodeKind::kUint4;
      for (const Grid grid : {Grid{1, 32}, Grid{16, 128}, Grid{1, 24}}) {
        for (const bool zeros : {false, true}) {
          if (zeros && !integers) continue;
          const Example example(kind, kRows, kColumns, grid, DType::kF16, zeros,
                                false, false, &random);
          SCOPED_TRACE(NameOf(example.matrix));
          std::vector<float> batch(kTokens * kRows);
          MatMul(example.matrix, input.data(), kTokens, batch.data(), &four);
          for (size_t t = 0; t < kTokens; ++t) {
            std::vector<float> alone(kRows);
            MatMul(example.matrix, input.data() + t * kColumns, 1, alone.data(),
                   &one);
            ASSERT_EQ(std::memcmp(alone.data(), batch.data() + t * kRows,
                                  alone.size() * sizeof(float)),
                      0)
                << "token " << t;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace quire
