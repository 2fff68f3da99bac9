// Dense products with many tokens, once per SIMD target.
//
// A panel of rows is decoded to float32 once and multiplied with all tokens.
// K is cut so that what one step touches stays in L1; the accumulators
// (vectors, see dense_matmul.cc) wait in memory between the cuts, which changes
// no rounding.

#if defined(QUIRE_MODEL_OPS_DENSE_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_DENSE_PANEL_INL_H_
#undef QUIRE_MODEL_OPS_DENSE_PANEL_INL_H_
#else
#define QUIRE_MODEL_OPS_DENSE_PANEL_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/ops/dense_blocks-inl.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

struct Input {
  const float* values;
  size_t stride;  // elements from token to token
};

// Rows of a weight; `columns` need not be a multiple of the block for the plain
// dtypes.
struct Rows {
  const uint8_t* data;
  size_t row_bytes;
  size_t columns;
};

// Rows and tokens of one step: their accumulators fit in the registers beside
// what they are made from.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr int kPanelStepRows = 4;
#else
inline constexpr int kPanelStepRows = 2;
#endif
inline constexpr int kPanelStepTokens = 4;

inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kPanelTokens = 64;
// A multiple of every block and vector; 16 rows of it are 32 KiB.
inline constexpr size_t kPanelColumns = 512;

// sums[t, r] += over `columns` columns, a multiple of the vector. A sum is a
// vector; those of a token are kPanelRows apart from the next token's.
template <int kR, int kT>
HWY_NOINLINE void PanelStep(const float* weights, size_t weight_stride,
                            const Input& input, size_t columns, float* sums) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF totals[kR][kT];
  for (int r = 0; r < kR; ++r)
    for (int t = 0; t < kT; ++t)
      totals[r][t] = hn::Load(d, sums + (t * kPanelRows + r) * kMaxLanes);
  for (size_t i = 0; i < columns; i += lanes) {
    VF x[kT];
    for (int t = 0; t < kT; ++t)
      x[t] = hn::LoadU(d, input.values + t * input.stride + i);
    for (int r = 0; r < kR; ++r) {
      const VF w = hn::LoadU(d, weights + r * weight_stride + i);
      for (int t = 0; t < kT; ++t)
        totals[r][t] = hn::MulAdd(w, x[t], totals[r][t]);
    }
  }
  for (int r = 0; r < kR; ++r)
    for (int t = 0; t < kT; ++t)
      hn::Store(totals[r][t], d, sums + (t * kPanelRows + r) * kMaxLanes);
}

// All rows of a panel with kT tokens.
template <int kT>
HWY_INLINE void PanelRows(const float* weights, size_t weight_stride,
                          size_t rows, const Input& input, size_t columns,
                          float* sums) {
  size_t r = 0;
  for (; r + kPanelStepRows <= rows; r += kPanelStepRows) {
    PanelStep<kPanelStepRows, kT>(weights + r * weight_stride, weight_stride,
                                  input, columns, sums + r * kMaxLanes);
  }
  for (; r < rows; ++r) {
    PanelStep<1, kT>(weights + r * weight_stride, weight_stride, input, columns,
                     sums + r * kMaxLanes);
  }
}

// output[t * output_stride + r] for up to kPanelTokens tokens. `weights` and
// `input` are padded with zeros to `columns`.
inline void MatMulPanel(const float* weights, size_t columns, size_t rows,
                        const Input& input, size_t tokens, float* sums,
                        float* output, size_t output_stride) {
  const DF d;
  std::fill_n(sums, tokens * kPanelRows * kMaxLanes, 0.0f);
  for (size_t k = 0; k < columns; k += kPanelColumns) {
    const size_t count = std::min(kPanelColumns, columns - k);
    const float* const part = weights + k;
    Input token = {input.values + k, input.stride};
    size_t t = 0;
    for (; t + kPanelStepTokens <= tokens; t += kPanelStepTokens) {
      PanelRows<kPanelStepTokens>(part, columns, rows, token, count,
                                  sums + t * kPanelRows * kMaxLanes);
      token.values += kPanelStepTokens * token.stride;
    }
    for (; t < tokens; ++t) {
      PanelRows<1>(part, columns, rows, token, count,
                   sums + t * kPanelRows * kMaxLanes);
      token.values += token.stride;
    }
  }
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t r = 0; r < rows; ++r) {
      output[t * output_stride + r] =
          SumLanes(d, hn::Load(d, sums + (t * kPanelRows + r) * kMaxLanes));
    }
  }
}

// Rows of one task: enough tasks to even out the threads' speeds, of whole
// panels.
inline size_t PanelGrain(size_t rows, int threads) {
  const size_t per_thread = rows / (8 * static_cast<size_t>(threads)) + 1;
  return std::clamp(per_thread / kPanelRows * kPanelRows, kPanelRows,
                    4 * kPanelRows);
}

// output[t * output_stride + r] for `count` rows of `row_columns` weights and
// all tokens. decode(r, to) writes the weights of row r.
// REQUIRES: input is padded with zeros to a stride of whole blocks.
template <class DecodeRow>
void MatMulPanels(size_t count, size_t row_columns, Input input, size_t tokens,
                  float* output, size_t output_stride,
                  const DecodeRow& decode) {
  const size_t columns = input.stride;
  const auto weights = hwy::AllocateAligned<float>(kPanelRows * columns);
  const auto sums =
      hwy::AllocateAligned<float>(kPanelTokens * kPanelRows * kMaxLanes);
  for (size_t r = 0; r < count; r += kPanelRows) {
    const size_t panel = std::min(kPanelRows, count - r);
    for (size_t i = 0; i < panel; ++i) {
      float* const row = weights.get() + i * columns;
      decode(r + i, row);
      std::fill(row + row_columns, row + columns, 0.0f);
    }
    for (size_t t = 0; t < tokens; t += kPanelTokens) {
      MatMulPanel(weights.get(), columns, panel,
                  {input.values + t * input.stride, input.stride},
                  std::min(kPanelTokens, tokens - t), sums.get(),
                  output + t * output_stride + r, output_stride);
    }
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_DENSE_PANEL_INL_H_
