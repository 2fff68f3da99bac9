// Linear layers of codes with scales: MatMul(ScaledMatrix).
//
// The form of an output element is that of dense_matmul.cc, whatever the number
// of tokens. With one token codes become weights in registers, several rows at
// once; with more, and where scales are of no whole blocks of inputs, rows are
// decoded to float32 a panel at a time and multiplied as dense rows are.

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/padded_input.h"
#include "model/ops/row_streams.h"
#include "model/ops/scaled_grid.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/scaled_matmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/highway.h>

#include "model/ops/dense_blocks-inl.h"
#include "model/ops/dense_panel-inl.h"
#include "model/ops/scaled_codes-inl.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

namespace {

static_assert(kCodeBlock == kInputBlock);

constexpr size_t kRowsAtOnce = 8;

// Scales and zero points of a few rows, as float32.
class RowScales {
 public:
  RowScales(const ScaledMatrix& weight, bool zeros)
      : weight_(weight),
        columns_(ScaleColumns(weight)),
        scales_(hwy::AllocateAligned<float>(kRowsAtOnce * columns_)),
        zeros_(zeros ? hwy::AllocateAligned<float>(kRowsAtOnce * columns_)
                     : nullptr) {}

  size_t columns() const { return columns_; }
  const float* scales(size_t row) const {
    return scales_.get() + row * columns_;
  }
  const float* zeros(size_t row) const { return zeros_.get() + row * columns_; }

  // Of `count` rows that are `step` apart. REQUIRES: count <= kRowsAtOnce.
  void Decode(size_t first, size_t count, size_t step) {
    for (size_t row = 0; row < count; ++row) {
      const size_t grid_row = (first + row * step) / weight_.block_rows;
      DecodeScales(grid_row, scales_.get() + row * columns_);
      if (zeros_ == nullptr) continue;
      for (size_t column = 0; column < columns_; ++column)
        zeros_[row * columns_ + column] =
            ZeroAt(weight_, grid_row, column, columns_);
    }
  }

 private:
  void DecodeScales(size_t grid_row, float* scales) const {
    const auto* const bytes = static_cast<const uint8_t*>(weight_.scales);
    if (weight_.scales_dtype == DType::kF8E8M0) {
      for (size_t column = 0; column < columns_; ++column)
        scales[column] = F8E8M0ToF32(bytes[grid_row * columns_ + column]);
      return;
    }
    WithDecoder(weight_.scales_dtype, [&]<class Decoder>() HWY_ATTR {
      constexpr size_t kSize = Decoder::kBytes / Decoder::kElements;
      DequantizeElements<Decoder>(bytes + grid_row * columns_ * kSize, columns_,
                                  scales);
    });
  }

  const ScaledMatrix& weight_;
  const size_t columns_;
  const hwy::AlignedFreeUniquePtr<float[]> scales_;
  const hwy::AlignedFreeUniquePtr<float[]> zeros_;  // null: none
};

// Whether each block of codes has one scale.
bool HasWholeBlocks(const ScaledMatrix& weight) {
  return weight.scale_column == nullptr &&
         (weight.block_columns % kCodeBlock == 0 ||
          weight.block_columns >= weight.in_features);
}

// Calls use(i, weights) for the vectors of a block of codes.
template <bool kZeros, class Codes, class Use>
HWY_INLINE void DecodeBlock(const Codes& codes, const uint8_t* data,
                            const RowScales& grid, size_t row, size_t column,
                            const Use& use) {
  const DF d;
  const VF scale = hn::Set(d, grid.scales(row)[column]);
  if constexpr (kZeros) {
    const VF zero = hn::Set(d, grid.zeros(row)[column]);
    codes.Decode(
        data,
        [&](VF values)
            HWY_ATTR { return hn::Mul(hn::Sub(values, zero), scale); },
        use);
  } else {
    codes.Decode(
        data, [&](VF values) HWY_ATTR { return hn::Mul(values, scale); }, use);
  }
}

// The last block of a row, which is not whole, with zeros behind it. Beyond the
// row there may be nothing to read, and what the padding of codes means is not
// 0.
template <bool kZeros, class Codes>
HWY_INLINE void DecodeLastBlock(const Codes& codes, const ScaledMatrix& weight,
                                const uint8_t* row_codes, const RowScales& grid,
                                size_t row, float* decoded) {
  const DF d;
  const size_t begin = weight.in_features / kCodeBlock * Codes::kBytes;
  const size_t rest = weight.in_features % kCodeBlock;
  uint8_t padded[Codes::kBytes] = {};
  std::memcpy(padded, row_codes + begin,
              std::min(weight.row_bytes - begin, Codes::kBytes));
  DecodeBlock<kZeros>(codes, padded, grid, row, grid.columns() - 1,
                      [&](size_t i, VF weights)
                          HWY_ATTR { hn::StoreU(weights, d, decoded + i); });
  std::fill(decoded + rest, decoded + kCodeBlock, 0.0f);
}

// Calls visit(block, column) for the whole blocks of a row, in order, with the
// column of their scale.
template <class Visit>
HWY_INLINE void ForEachBlock(const ScaledMatrix& weight, size_t columns,
                             const Visit& visit) {
  const size_t blocks = weight.in_features / kCodeBlock;
  size_t block = 0;
  for (size_t column = 0; column < columns; ++column) {
    const size_t end = column + 1 == columns
                           ? blocks
                           : (column + 1) * weight.block_columns / kCodeBlock;
    for (; block < end; ++block) visit(block, column);
  }
}

// output[r * step] for one token and the kR rows that are `step` apart from the
// one whose codes begin at `rows`. `grid` has the scales of the kR rows.
// REQUIRES: HasWholeBlocks; `input` is padded with zeros to whole blocks.
template <bool kZeros, size_t kR, class Codes>
HWY_NOINLINE void DotScaledRows(const Codes& codes, const ScaledMatrix& weight,
                                const uint8_t* rows, size_t step,
                                const RowScales& grid, const float* input,
                                float* output) {
  const DF d;
  VF sums[kR];
  for (VF& sum : sums) sum = hn::Zero(d);
  const size_t stride = step * weight.row_bytes;
  ForEachBlock(
      weight, grid.columns(), [&](size_t block, size_t column) HWY_ATTR {
        const uint8_t* const data = rows + block * Codes::kBytes;
        const float* const x = input + block * kCodeBlock;
        if (block % (kCacheLine / Codes::kBytes) == 0) {
          for (size_t r = 0; r < kR; ++r)
            PrefetchStream(data + r * stride, kCacheLine);
        }
        for (size_t r = 0; r < kR; ++r) {
          DecodeBlock<kZeros>(codes, data + r * stride, grid, r, column,
                              [&](size_t i, VF weights) HWY_ATTR {
                                sums[r] = hn::MulAdd(
                                    weights, hn::LoadU(d, x + i), sums[r]);
                              });
        }
      });
  if (weight.in_features % kCodeBlock != 0) {
    const float* const x = input + weight.in_features / kCodeBlock * kCodeBlock;
    for (size_t r = 0; r < kR; ++r) {
      HWY_ALIGN float decoded[kCodeBlock];
      DecodeLastBlock<kZeros>(codes, weight, rows + r * stride, grid, r,
                              decoded);
      for (size_t i = 0; i < kCodeBlock; i += hn::Lanes(d))
        sums[r] =
            hn::MulAdd(hn::Load(d, decoded + i), hn::LoadU(d, x + i), sums[r]);
    }
  }
  for (size_t r = 0; r < kR; ++r) output[r * step] = SumLanes(d, sums[r]);
}

// The rows from `begin` to `end` as streams (row_streams.h), one token.
template <bool kZeros, class Codes>
void DotAllScaledRows(const Codes& codes, const ScaledMatrix& weight,
                      size_t begin, size_t end, const float* input,
                      float* output) {
  RowScales grid(weight, kZeros);
  const uint8_t* const rows = weight.codes;
  const size_t length = (end - begin) / kRowsAtOnce;
  for (size_t row = begin; row < begin + length; ++row) {
    grid.Decode(row, kRowsAtOnce, length);
    DotScaledRows<kZeros, kRowsAtOnce>(codes, weight,
                                       rows + row * weight.row_bytes, length,
                                       grid, input, output + row);
  }
  for (size_t row = begin + length * kRowsAtOnce; row < end; ++row) {
    grid.Decode(row, 1, 1);
    DotScaledRows<kZeros, 1>(codes, weight, rows + row * weight.row_bytes, 1,
                             grid, input, output + row);
  }
}

// The same, any number of tokens. A panel's row has the stride of the input.
template <bool kZeros, class Codes>
void MatMulScaledPanels(const Codes& codes, const ScaledMatrix& weight,
                        size_t begin, size_t end, Input input, size_t tokens,
                        float* output) {
  const DF d;
  RowScales grid(weight, kZeros);
  MatMulPanels(
      end - begin, weight.in_features, input, tokens, output + begin,
      weight.out_features, [&](size_t row, float* out) HWY_ATTR {
        grid.Decode(begin + row, 1, 1);
        const uint8_t* const data =
            weight.codes + (begin + row) * weight.row_bytes;
        ForEachBlock(
            weight, grid.columns(), [&](size_t block, size_t column) HWY_ATTR {
              float* const to = out + block * kCodeBlock;
              DecodeBlock<kZeros>(codes, data + block * Codes::kBytes, grid, 0,
                                  column, [&](size_t i, VF weights) HWY_ATTR {
                                    hn::StoreU(weights, d, to + i);
                                  });
            });
        if (weight.in_features % kCodeBlock != 0)
          DecodeLastBlock<kZeros>(
              codes, weight, data, grid, 0,
              out + weight.in_features / kCodeBlock * kCodeBlock);
      });
}

template <bool kZeros, class Codes>
void MatMulRows(const Codes& codes, const ScaledMatrix& weight, size_t begin,
                size_t end, Input input, size_t tokens, float* output) {
  if (tokens == 1) {
    DotAllScaledRows<kZeros>(codes, weight, begin, end, input.values, output);
  } else {
    MatMulScaledPanels<kZeros>(codes, weight, begin, end, input, tokens,
                               output);
  }
}

void MatMulWholeBlocks(const ScaledMatrix& weight, size_t begin, size_t end,
                       Input input, size_t tokens, float* output) {
  WithCodes(weight.kind, [&]<class Codes>(const Codes& codes) HWY_ATTR {
    if constexpr (Codes::kHasZeros) {
      if (weight.zeros != nullptr)
        return MatMulRows<true>(codes, weight, begin, end, input, tokens,
                                output);
    }
    MatMulRows<false>(codes, weight, begin, end, input, tokens, output);
  });
}

}  // namespace

void MatMulScaledEntry(const ScaledMatrix& weight, const float* input,
                       size_t stride, size_t tokens, float* output,
                       ThreadPool* pool) {
  pool->ParallelFor(
      weight.out_features, PanelGrain(weight.out_features, pool->threads()),
      [&](size_t begin, size_t end) HWY_ATTR {
        if (HasWholeBlocks(weight))
          return MatMulWholeBlocks(weight, begin, end, {input, stride}, tokens,
                                   output);
        MatMulPanels(end - begin, weight.in_features, {input, stride}, tokens,
                     output + begin, weight.out_features,
                     [&](size_t row, float* out) {
                       DequantizeRow(weight, begin + row, out);
                     });
      });
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(MatMulScaledEntry);

void MatMul(const ScaledMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool) {
  const PaddedInput padded(input, tokens, weight.in_features);
  HWY_DYNAMIC_DISPATCH(MatMulScaledEntry)
  (weight, padded.values(), padded.stride(), tokens, output, pool);
}

}  // namespace quire
#endif  // HWY_ONCE
