#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/ops/float_bits.h"
#include "model/ops/kv_row_testing.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

struct Shape {
  size_t heads, kv_heads, head_dim;
};

// One sequence: rows of [K | V] with a gap after each, as another layer's
// part of the row would be.
struct Sequence {
  Sequence(const Shape& s, KvElements e, size_t rows, std::mt19937* random)
      : shape(s), elements(e), length(rows) {
    const size_t width = shape.kv_heads * shape.head_dim;
    scale_offset = width * KvElementSize(elements.dtype).value();
    const size_t scale_size = KvScaleSize(elements.scale).value();
    if (scale_size > 0)
      scale_offset = (scale_offset + scale_size - 1) / scale_size * scale_size;
    const size_t half = scale_offset + shape.kv_heads * scale_size;
    stride = 3 * half;
    // The last row ends with its V.
    std::vector<uint8_t> bytes(rows * stride - half);
    for (size_t r = 0; r < rows; ++r) {
      for (std::vector<float>* part : {&keys, &values}) {
        const std::vector<float> exact = RandomNormal(width, random);
        uint8_t* const at =
            bytes.data() + r * stride + (part == &values ? half : 0);
        if (KvElementSize(elements.dtype) == Bytes(1)) {
          StoreScaledKvRow(exact.data(), shape.kv_heads, shape.head_dim,
                           elements, at, at + scale_offset);
        } else {
          StoreKvRow(exact.data(), width, elements.dtype, at);
        }
        for (size_t i = 0; i < width; ++i)
          part->push_back(
              KvElementAt(elements, at, at + scale_offset, shape.head_dim, i));
      }
    }
    memory = std::make_unique<GuardedBuffer<uint8_t>>(bytes);
    query = RandomNormal(shape.heads * shape.head_dim, random);
    output.resize(query.size());
    value_offset = half;
  }

  AttentionQuery Query() {
    std::fill(output.begin(), output.end(), 1e9f);
    return {.query = query.data(),
            .keys = memory->data(),
            .values = memory->data() + value_offset,
            .row_stride = stride,
            .length = length,
            .output = output.data(),
            .key_scales = memory->data() + scale_offset,
            .value_scales = memory->data() + value_offset + scale_offset};
  }

  // The same rows in blocks of 2^shift rows, in any order, among blocks and
  // rows of NaN that are nobody's.
  AttentionQuery PagedQuery(uint32_t shift, std::mt19937* random) {
    const size_t block_rows = size_t{1} << shift;
    const size_t used = (length + block_rows - 1) / block_rows;
    std::vector<uint32_t> ids(used + 3);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), *random);
    const size_t half = stride / 3;
    const size_t block_stride = block_rows * stride + 64;
    std::vector<uint8_t> bytes(ids.size() * block_stride, 0xff);
    for (size_t r = 0; r < length; ++r) {
      std::memcpy(bytes.data() + ids[r / block_rows] * block_stride +
                      r % block_rows * stride,
                  memory->data() + r * stride, 2 * half);
    }
    ids.resize(used);
    pool = std::make_unique<GuardedBuffer<uint8_t>>(bytes);
    // A table that is read beyond its end faults as well.
    table = std::make_unique<GuardedBuffer<uint32_t>>(ids);
    AttentionQuery paged = Query();
    paged.keys = pool->data();
    paged.values = pool->data() + value_offset;
    paged.key_scales = pool->data() + scale_offset;
    paged.value_scales = pool->data() + value_offset + scale_offset;
    paged.blocks = table->data();
    paged.block_shift = shift;
    paged.block_stride = block_stride;
    return paged;
  }

  // softmax(scale * q K^T) V in double precision.
  std::vector<double> Reference(double scale) const {
    const size_t d = shape.head_dim;
    const size_t width = shape.kv_heads * d;
    std::vector<double> result(shape.heads * d, 0.0);
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t kv = h / (shape.heads / shape.kv_heads);
      std::vector<double> score(length, 0.0);
      for (size_t r = 0; r < length; ++r) {
        for (size_t i = 0; i < d; ++i) {
          score[r] += static_cast<double>(query[h * d + i]) *
                      static_cast<double>(keys[r * width + kv * d + i]);
        }
        score[r] *= scale;
      }
      const double largest = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - largest);
      for (size_t r = 0; r < length; ++r) {
        for (size_t i = 0; i < d; ++i) {
          result[h * d + i] +=
              score[r] / sum *
              static_cast<double>(values[r * width + kv * d + i]);
        }
      }
    }
    return result;
  }

  Shape shape;
  KvElements elements;
  size_t length;
  size_t stride = 0;
  size_t value_offset = 0;
  size_t scale_offset = 0;  // from the elements that they scale
  std::vector<float> keys, values, query, output;
  std::unique_ptr<GuardedBuffer<uint8_t>> memory, pool;
  std::unique_ptr<GuardedBuffer<uint32_t>> table;
};

// What is read of 8 bits is exact as well, so that all have one tolerance.
const KvElements kAllElements[] = {KvDType::kF32,
                                   KvDType::kF16,
                                   KvDType::kBF16,
                                   KvDType::kF8E4M3,
                                   KvDType::kF8E5M2,
                                   {KvDType::kF8E4M3, KvScale::kF16},
                                   {KvDType::kF8E5M2, KvScale::kF32},
                                   {KvDType::kInt8, KvScale::kF16},
                                   {KvDType::kInt8, KvScale::kF32}};

std::string Name(KvElements elements) {
  return std::string(KvDTypeName(elements.dtype)) + " scales of " +
         std::to_string(KvScaleSize(elements.scale).value());
}

TEST(AttentionTest, MatchesTheDefinition) {
  std::mt19937 random(1);
  for (const KvElements dtype : kAllElements) {
    for (const Shape& shape :
         {Shape{1, 1, 1}, Shape{3, 1, 64}, Shape{4, 4, 16}, Shape{9, 3, 64},
          Shape{4, 2, 20}, Shape{2, 1, 80}, Shape{8, 2, 128}}) {
      for (const size_t length : {1, 2, 63, 64, 65, 200, 1024, 1025, 2500}) {
        if (length > 200 && shape.head_dim > 64) continue;
        // How rows are divided does not depend on their elements.
        if (dtype.dtype != KvDType::kF32 && length != 65 && length != 1025)
          continue;
        Sequence sequence(shape, dtype, length, &random);
        SCOPED_TRACE(Name(dtype) + " heads " + std::to_string(shape.heads) +
                     " head_dim " + std::to_string(shape.head_dim) + " rows " +
                     std::to_string(length));
        const float scale =
            1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        const std::vector<double> want =
            sequence.Reference(static_cast<double>(scale));
        ForEachTarget([&] {
          for (const int threads : {1, 2}) {
            ThreadPool pool(threads);
            const AttentionQuery query = sequence.Query();
            Attention({&query, 1}, dtype, shape.heads, shape.kv_heads,
                      shape.head_dim, scale, &pool);
            for (size_t i = 0; i < want.size(); ++i)
              ASSERT_NEAR(sequence.output[i], want[i], 3e-6) << i;
          }
        });
      }
    }
  }
}

TEST(AttentionTest, TheBatchAndTheThreadsChangeNoBit) {
  std::mt19937 random(2);
  const Shape shape = {6, 2, 40};
  std::vector<Sequence> sequences;
  sequences.reserve(32);
  for (size_t i = 0; i < 32; ++i) {
    const size_t length = i == 3 ? 3000 : 1 + 67 * i;
    sequences.emplace_back(shape, KvDType::kF16, length, &random);
  }
  ForEachTarget([&] {
    ThreadPool single(1);
    std::vector<std::vector<float>> alone;
    for (Sequence& sequence : sequences) {
      const AttentionQuery query = sequence.Query();
      Attention({&query, 1}, KvDType::kF16, shape.heads, shape.kv_heads,
                shape.head_dim, 0.2f, &single);
      alone.push_back(sequence.output);
    }
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32}) {
        std::vector<AttentionQuery> queries;
        for (size_t i = 0; i < count; ++i)
          queries.push_back(sequences[i].Query());
        Attention(queries, KvDType::kF16, shape.heads, shape.kv_heads,
                  shape.head_dim, 0.2f, &pool);
        for (size_t i = 0; i < count; ++i)
          ASSERT_EQ(sequences[i].output, alone[i]) << i << " of " << count;
      }
    }
  });
}

TEST(AttentionTest, RowsInBlocksGiveTheDefinitionAndTheBitsOfOneRun) {
  std::mt19937 random(5);
  ThreadPool threads(2);
  for (const KvElements dtype : kAllElements) {
    for (const Shape& shape :
         {Shape{1, 1, 1}, Shape{4, 2, 20}, Shape{9, 3, 64}, Shape{8, 2, 128}}) {
      for (const size_t length : {1, 16, 17, 64, 129, 1025}) {
        if (dtype.dtype != KvDType::kF32 && length != 129) continue;
        Sequence sequence(shape, dtype, length, &random);
        const float scale =
            1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        const std::vector<double> want =
            sequence.Reference(static_cast<double>(scale));
        const auto attend = [&](const AttentionQuery& query) {
          Attention({&query, 1}, dtype, shape.heads, shape.kv_heads,
                    shape.head_dim, scale, &threads);
          return sequence.output;
        };
        // From a row to more than a span; 6 is a tile.
        for (const uint32_t shift : {0, 1, 4, 5, 6, 7, 11}) {
          SCOPED_TRACE(Name(dtype) + " heads " + std::to_string(shape.heads) +
                       " head_dim " + std::to_string(shape.head_dim) +
                       " rows " + std::to_string(length) + " block rows " +
                       std::to_string(1 << shift));
          const AttentionQuery query = sequence.PagedQuery(shift, &random);
          ForEachTarget([&] {
            const std::vector<float> paged = attend(query);
            for (size_t i = 0; i < want.size(); ++i)
              ASSERT_NEAR(paged[i], want[i], 3e-6) << i;
            ASSERT_EQ(paged, attend(sequence.Query()));
          });
        }
      }
    }
  }
}

TEST(AttentionTest, OneBatchMayMixRunsAndBlocks) {
  std::mt19937 random(6);
  const Shape shape = {6, 2, 40};
  std::vector<Sequence> sequences;
  sequences.reserve(12);
  for (size_t i = 0; i < 12; ++i)
    sequences.emplace_back(shape, KvDType::kF16, 1 + 131 * i, &random);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<AttentionQuery> queries;
    for (size_t i = 0; i < sequences.size(); ++i)
      queries.push_back(i % 3 == 0 ? sequences[i].Query()
                                   : sequences[i].PagedQuery(i % 7, &random));
    Attention(queries, KvDType::kF16, shape.heads, shape.kv_heads,
              shape.head_dim, 0.2f, &pool);
    for (Sequence& sequence : sequences) {
      const std::vector<double> want = sequence.Reference(double{0.2f});
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(sequence.output[i], want[i], 3e-6) << i;
    }
  }
}

TEST(AttentionTest, LargeScoresNeitherOverflowNorVanish) {
  std::mt19937 random(3);
  const Shape shape = {2, 1, 32};
  Sequence sequence(shape, KvDType::kF32, 1500, &random);
  ForEachTarget([&] {
    for (const float scale : {50.0f, 1000.0f, 0.0f}) {
      const std::vector<double> want =
          sequence.Reference(static_cast<double>(scale));
      ThreadPool pool(2);
      const AttentionQuery query = sequence.Query();
      Attention({&query, 1}, KvDType::kF32, 2, 1, 32, scale, &pool);
      // A score of some thousands has an error of 1e-3 as float32.
      const double bound = scale > 100 ? 2e-2 : 2e-3;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(sequence.output[i], want[i], bound) << i;
    }
  });
}

TEST(AttentionTest, NaNInARowShows) {
  std::mt19937 random(4);
  const Shape shape = {2, 1, 32};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const size_t row : {0, 5, 70, 1100}) {
    for (const bool in_key : {false, true}) {
      Sequence sequence(shape, KvDType::kF32, 1200, &random);
      std::memcpy(sequence.memory->data() + row * sequence.stride +
                      (in_key ? 0 : sequence.value_offset),
                  &nan, sizeof(nan));
      ForEachTarget([&] {
        for (const int threads : {1, 2}) {
          ThreadPool pool(threads);
          const AttentionQuery query = sequence.Query();
          Attention({&query, 1}, KvDType::kF32, 2, 1, 32, 0.2f, &pool);
          EXPECT_TRUE(std::isnan(sequence.output[0])) << row << in_key;
        }
      });
    }
  }
}

}  // namespace
}  // namespace quire
