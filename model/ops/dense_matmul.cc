// Dense linear layers: MatMul(DenseMatrix) and DequantizeRow.
//
// Form of an output element, whatever the number of tokens: the weights of its
// row as float32, one vector accumulator, one fused multiply-add per vector of
// consecutive inputs in ascending order, and one sum over the lanes. Blocks of
// rows and tokens only decide which elements are worked on side by side.
//
// With few tokens rows are decoded in registers, several rows at once so that
// memory is read as several streams. With many, see dense_panel-inl.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/ops/padded_input.h"
#include "model/ops/row_streams.h"
#include "quire/loader/dtype.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/dense_matmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/highway.h>

#include "model/ops/dense_blocks-inl.h"
#include "model/ops/dense_panel-inl.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

// Tokens from which decoding to memory pays.
constexpr size_t kManyTokens = 8;
constexpr int kRowsForOneToken = 8;
constexpr int kRowsForTokens = kPanelStepRows;
constexpr int kTokens = kPanelStepTokens;

// output[t * output_stride + r * step] for kT tokens and the kR rows that are
// `step` apart from the first one.
// REQUIRES: input is padded with zeros to a multiple of the block.
template <class Decoder, int kR, int kT>
HWY_NOINLINE void DotRows(const Rows& rows, size_t step, const Input& input,
                          float* output, size_t output_stride) {
  const DF d;
  VF sums[kR][kT];
  for (auto& row : sums)
    for (VF& sum : row) sum = hn::Zero(d);
  const auto add_block = [&](size_t block, int r,
                             const uint8_t* data) HWY_ATTR {
    const float* const x = input.values + block * Decoder::kElements;
    Decoder::Decode(data, [&](size_t i, VF weights) HWY_ATTR {
      for (int t = 0; t < kT; ++t) {
        sums[r][t] = hn::MulAdd(weights, hn::LoadU(d, x + t * input.stride + i),
                                sums[r][t]);
      }
    });
  };

  const size_t stride = step * rows.row_bytes;
  const size_t blocks = rows.columns / Decoder::kElements;
  for (size_t block = 0; block < blocks; ++block) {
    const uint8_t* const data = rows.data + block * Decoder::kBytes;
    for (int r = 0; r < kR; ++r) {
      PrefetchStream(data + r * stride, Decoder::kBytes);
      add_block(block, r, data + r * stride);
    }
  }
  const size_t rest = rows.row_bytes - blocks * Decoder::kBytes;
  if (rest > 0) {
    for (int r = 0; r < kR; ++r) {
      // Beyond the row there may be nothing to read.
      alignas(4) uint8_t padded[Decoder::kBytes] = {};
      std::memcpy(padded, rows.data + r * stride + blocks * Decoder::kBytes,
                  rest);
      add_block(blocks, r, padded);
    }
  }
  for (int r = 0; r < kR; ++r)
    for (int t = 0; t < kT; ++t)
      output[t * output_stride + r * step] = SumLanes(d, sums[r][t]);
}

// kR streams of rows (row_streams.h), then one row at a time.
template <class Decoder, int kR, int kT>
HWY_INLINE void DotAllRows(Rows rows, size_t count, const Input& input,
                           float* output, size_t output_stride) {
  const uint8_t* const first = rows.data;
  const size_t length = count / kR;
  for (size_t r = 0; r < length; ++r) {
    rows.data = first + r * rows.row_bytes;
    DotRows<Decoder, kR, kT>(rows, length, input, output + r, output_stride);
  }
  for (size_t r = length * kR; r < count; ++r) {
    rows.data = first + r * rows.row_bytes;
    DotRows<Decoder, 1, kT>(rows, 1, input, output + r, output_stride);
  }
}

template <class Decoder>
void MatMulRows(const DenseMatrix& weight, Input input, size_t tokens,
                size_t begin, size_t end, float* output) {
  Rows rows;
  rows.columns = weight.in_features;
  rows.row_bytes = BytesOf(weight.dtype, weight.in_features)->value();
  rows.data = static_cast<const uint8_t*>(weight.data) + begin * rows.row_bytes;
  const size_t count = end - begin;
  output += begin;
  if (tokens >= kManyTokens) {
    MatMulPanels(count, rows.columns, input, tokens, output,
                 weight.out_features, [&](size_t row, float* to) HWY_ATTR {
                   DequantizeElements<Decoder>(rows.data + row * rows.row_bytes,
                                               rows.columns, to);
                 });
    return;
  }
  size_t t = 0;
  for (; t + kTokens <= tokens; t += kTokens) {
    DotAllRows<Decoder, kRowsForTokens, kTokens>(rows, count, input, output,
                                                 weight.out_features);
    input.values += kTokens * input.stride;
    output += kTokens * weight.out_features;
  }
  for (; t < tokens; ++t) {
    DotAllRows<Decoder, kRowsForOneToken, 1>(rows, count, input, output,
                                             weight.out_features);
    input.values += input.stride;
    output += weight.out_features;
  }
}

void MatMulDense(const DenseMatrix& weight, Input input, size_t tokens,
                 float* output, ThreadPool* pool) {
  pool->ParallelFor(
      weight.out_features, PanelGrain(weight.out_features, pool->threads()),
      [&](size_t begin, size_t end) HWY_ATTR {
        WithDecoder(weight.dtype, [&]<class Decoder>() HWY_ATTR {
          MatMulRows<Decoder>(weight, input, tokens, begin, end, output);
        });
      });
}

void Dequantize(const uint8_t* row, DType dtype, size_t columns,
                float* output) {
  WithDecoder(dtype, [&]<class Decoder>() HWY_ATTR {
    DequantizeElements<Decoder>(row, columns, output);
  });
}

}  // namespace

void MatMulDenseEntry(const DenseMatrix& weight, const float* input,
                      size_t stride, size_t tokens, float* output,
                      ThreadPool* pool) {
  MatMulDense(weight, {input, stride}, tokens, output, pool);
}

void DequantizeEntry(const uint8_t* row, DType dtype, size_t columns,
                     float* output) {
  Dequantize(row, dtype, columns, output);
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(MatMulDenseEntry);
HWY_EXPORT(DequantizeEntry);

void MatMul(const DenseMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool) {
  const PaddedInput padded(input, tokens, weight.in_features);
  HWY_DYNAMIC_DISPATCH(MatMulDenseEntry)
  (weight, padded.values(), padded.stride(), tokens, output, pool);
}

void DequantizeRow(const DenseMatrix& matrix, size_t row, float* output) {
  const size_t row_bytes = BytesOf(matrix.dtype, matrix.in_features)->value();
  HWY_DYNAMIC_DISPATCH(DequantizeEntry)
  (static_cast<const uint8_t*>(matrix.data) + row * row_bytes, matrix.dtype,
   matrix.in_features, output);
}

}  // namespace quire
#endif  // HWY_ONCE
