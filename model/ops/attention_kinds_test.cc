// Attention over layers that are not like the others: windows and sinks, latent
// vectors, values of another size than keys, or apart from them. Rows that a
// query does not see are NaN, and blocks of such rows are not there.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/ops/kv_row_testing.h"
#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"
#include "quire/paging/kv_layout.h"

namespace quire {
namespace {

struct Case {
  AttentionHeads dims;
  KvElements elements;
  bool latent = false;  // values are the beginnings of keys
  bool apart = false;   // keys in one array, values in another
  size_t length = 1;
  size_t window = 0;
  size_t sinks = 0;
};

std::string Name(const Case& c) {
  return std::string(KvDTypeName(c.elements.dtype)) + ", " +
         std::to_string(c.dims.heads) + " heads on " +
         std::to_string(c.dims.kv_heads) + " of " +
         std::to_string(c.dims.key_dim) + " and " +
         std::to_string(c.dims.value_dim) + (c.latent ? ", latent" : "") +
         (c.apart ? ", apart" : "") + ", " + std::to_string(c.length) +
         " rows, window " + std::to_string(c.window) + ", sinks " +
         std::to_string(c.sinks);
}

// The rows of one layer, and what attention makes of them by its definition.
class Layer {
 public:
  Layer(const Case& c, std::mt19937* random) : case_(c) {
    const AttentionHeads& dims = c.dims;
    const size_t key_bytes = SideBytes(dims.key_dim, &key_scales_);
    const size_t value_bytes =
        c.latent ? 0 : SideBytes(dims.value_dim, &value_scales_);
    // What is beside a row belongs to other layers.
    key_stride_ = c.apart ? key_bytes + 8 : key_bytes + value_bytes + 24;
    value_stride_ = c.apart ? value_bytes + 16 : key_stride_;
    keys_.assign(c.length * key_stride_, 0xff);
    if (c.apart) values_.assign(c.length * value_stride_, 0xff);
    value_offset_ = c.latent || c.apart ? 0 : key_bytes;
    if (c.latent) value_scales_ = key_scales_;
    for (size_t row = 0; row < c.length; ++row) {
      if (!Sees(row)) continue;
      Store(dims.key_dim, key_scales_, KeyRow(row), random);
      if (!c.latent)
        Store(dims.value_dim, value_scales_, ValueRow(row), random);
    }
    query_ = RandomNormal(dims.heads * dims.key_dim, random);
    output_.resize(dims.heads * dims.value_dim);
  }

  bool Sees(size_t row) const {
    return case_.window == 0 || row + case_.window >= case_.length ||
           row < case_.sinks;
  }

  const std::vector<float>& Attend(ThreadPool* pool) {
    const uint8_t* const values =
        (case_.apart ? values_.data() : keys_.data()) + value_offset_;
    return Run({.query = query_.data(),
                .keys = keys_.data(),
                .values = values,
                .row_stride = key_stride_,
                .key_scales = keys_.data() + key_scales_,
                .value_scales = values + value_scales_,
                .value_stride = value_stride_},
               pool);
  }

  // The same rows in blocks; those that are not seen at all have no block.
  const std::vector<float>& AttendInBlocks(uint32_t shift, std::mt19937* random,
                                           ThreadPool* pool) {
    const size_t block_rows = size_t{1} << shift;
    const size_t blocks = (case_.length + block_rows - 1) / block_rows;
    std::vector<uint32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), *random);
    const size_t key_block = block_rows * key_stride_ + 8;
    const size_t value_block =
        case_.apart ? block_rows * value_stride_ + 32 : key_block;
    std::vector<uint8_t> keys(blocks * key_block, 0xff);
    std::vector<uint8_t> values(case_.apart ? blocks * value_block : 0, 0xff);
    std::vector<bool> seen(blocks);
    for (size_t row = 0; row < case_.length; ++row) {
      const size_t block = row / block_rows;
      seen[block] = seen[block] || Sees(row);
      const size_t at = row % block_rows;
      std::memcpy(keys.data() + table[block] * key_block + at * key_stride_,
                  keys_.data() + row * key_stride_, key_stride_);
      if (case_.apart)
        std::memcpy(
            values.data() + table[block] * value_block + at * value_stride_,
            values_.data() + row * value_stride_, value_stride_);
    }
    for (size_t block = 0; block < blocks; ++block) {
      if (!seen[block]) table[block] = UINT32_MAX;
    }
    const uint8_t* const first =
        (case_.apart ? values.data() : keys.data()) + value_offset_;
    return Run({.query = query_.data(),
                .keys = keys.data(),
                .values = first,
                .row_stride = key_stride_,
                .blocks = table.data(),
                .block_shift = shift,
                .block_stride = key_block,
                .key_scales = keys.data() + key_scales_,
                .value_scales = first + value_scales_,
                .value_stride = value_stride_,
                .value_block_stride = value_block},
               pool);
  }

  // softmax(scale * q K^T) V over the rows that are seen, in double precision.
  std::vector<double> Reference() const {
    const AttentionHeads& dims = case_.dims;
    std::vector<double> result(output_.size());
    for (size_t h = 0; h < dims.heads; ++h) {
      const size_t kv = h / (dims.heads / dims.kv_heads);
      std::vector<double> weights(case_.length);
      double largest = -1e300;
      for (size_t row = 0; row < case_.length; ++row) {
        if (!Sees(row)) continue;
        for (size_t i = 0; i < dims.key_dim; ++i)
          weights[row] +=
              static_cast<double>(query_[h * dims.key_dim + i]) *
              At(KeyRow(row), key_scales_, dims.key_dim, kv * dims.key_dim + i);
        weights[row] *= static_cast<double>(kScale);
        largest = std::max(largest, weights[row]);
      }
      double sum = 0;
      for (size_t row = 0; row < case_.length; ++row) {
        weights[row] = Sees(row) ? std::exp(weights[row] - largest) : 0;
        sum += weights[row];
      }
      // A latent vector is one head, whose scale is the key's.
      const size_t dim = case_.latent ? dims.key_dim : dims.value_dim;
      for (size_t row = 0; row < case_.length; ++row) {
        if (!Sees(row)) continue;
        for (size_t i = 0; i < dims.value_dim; ++i)
          result[h * dims.value_dim + i] +=
              weights[row] / sum *
              At(ValueRow(row), value_scales_, dim, kv * dim + i);
      }
    }
    return result;
  }

 private:
  static constexpr float kScale = 0.125f;

  size_t SideBytes(size_t dim, size_t* scales) const {
    const size_t elements =
        case_.dims.kv_heads * dim * KvElementSize(case_.elements.dtype).value();
    *scales = (elements + 3) / 4 * 4;
    return *scales + case_.dims.kv_heads * 4;
  }
  void Store(size_t dim, size_t scales, uint8_t* row, std::mt19937* random) {
    const std::vector<float> exact =
        RandomNormal(case_.dims.kv_heads * dim, random);
    if (KvElementSize(case_.elements.dtype) == Bytes(1)) {
      StoreScaledKvRow(exact.data(), case_.dims.kv_heads, dim, case_.elements,
                       row, row + scales);
    } else {
      StoreKvRow(exact.data(), exact.size(), case_.elements.dtype, row);
    }
  }
  double At(const uint8_t* row, size_t scales, size_t dim, size_t i) const {
    return static_cast<double>(
        KvElementAt(case_.elements, row, row + scales, dim, i));
  }
  uint8_t* KeyRow(size_t row) { return keys_.data() + row * key_stride_; }
  const uint8_t* KeyRow(size_t row) const {
    return keys_.data() + row * key_stride_;
  }
  uint8_t* ValueRow(size_t row) {
    return (case_.apart ? values_.data() : keys_.data()) + value_offset_ +
           row * value_stride_;
  }
  const uint8_t* ValueRow(size_t row) const {
    return (case_.apart ? values_.data() : keys_.data()) + value_offset_ +
           row * value_stride_;
  }
  const std::vector<float>& Run(AttentionQuery query, ThreadPool* pool) {
    std::fill(output_.begin(), output_.end(), 1e9f);
    query.length = case_.length;
    query.output = output_.data();
    query.window = case_.window;
    query.sinks = case_.sinks;
    Attention({&query, 1}, case_.elements, case_.dims, kScale, pool);
    return output_;
  }

  const Case case_;
  size_t key_scales_ = 0;  // from the row of the side
  size_t value_scales_ = 0;
  size_t key_stride_ = 0;
  size_t value_stride_ = 0;
  size_t value_offset_ = 0;
  std::vector<uint8_t> keys_, values_;
  std::vector<float> query_, output_;
};

// As one run of rows, and in blocks of several sizes: the definition, and the
// same bits.
void Check(const Case& c, std::mt19937* random) {
  SCOPED_TRACE(Name(c));
  Layer layer(c, random);
  const std::vector<double> want = layer.Reference();
  ForEachTarget([&] {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const std::vector<float> got = layer.Attend(&pool);
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 3e-6) << i;
      for (const uint32_t shift : {0, 4, 7})
        ASSERT_EQ(layer.AttendInBlocks(shift, random, &pool), got) << shift;
    }
  });
}

TEST(AttentionKindsTest, AWindowAndItsSinksAreAllThatIsRead) {
  std::mt19937 random(1);
  for (const KvElements elements :
       {KvElements(KvDType::kF32), KvElements(KvDType::kF16),
        KvElements(KvDType::kInt8, KvScale::kF32)}) {
    for (const size_t length : {1, 63, 64, 130, 700, 2600}) {
      for (const size_t window : {1, 16, 64, 129, 1500}) {
        for (const size_t sinks : {0, 1, 4, 70}) {
          if (length > 700 && (window == 16 || sinks == 1)) continue;
          // Which rows are seen does not depend on their elements.
          if (elements.dtype != KvDType::kF32 && (window != 64 || sinks == 70))
            continue;
          Check({.dims = {4, 2, 20, 20},
                 .elements = elements,
                 .length = length,
                 .window = window,
                 .sinks = sinks},
                &random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionKindsTest, ALatentVectorIsKeyAndItsBeginningValue) {
  std::mt19937 random(2);
  for (const KvElements elements :
       {KvElements(KvDType::kF32), KvElements(KvDType::kBF16),
        KvElements(KvDType::kF8E4M3, KvScale::kF32)}) {
    for (const size_t length : {1, 65, 1100}) {
      for (const size_t window : {0, 100}) {
        Check({.dims = {5, 1, 72, 64},
               .elements = elements,
               .latent = true,
               .length = length,
               .window = window,
               .sinks = 2},
              &random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttentionKindsTest, ValuesMayBeOfAnotherSizeAndElsewhere) {
  std::mt19937 random(3);
  for (const KvElements elements :
       {KvElements(KvDType::kF16), KvElements(KvDType::kInt8, KvScale::kF32)}) {
    for (const AttentionHeads& dims :
         {AttentionHeads{4, 2, 24, 40}, AttentionHeads{3, 3, 33, 8},
          AttentionHeads{8, 2, 16, 16}}) {
      for (const bool apart : {false, true}) {
        for (const size_t length : {1, 200, 1300}) {
          Check({.dims = dims,
                 .elements = elements,
                 .apart = apart,
                 .length = length,
                 .window = length == 1300 ? size_t{90} : size_t{0},
                 .sinks = 3},
                &random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
