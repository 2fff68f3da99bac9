// Attention of one query over a run of rows, once per SIMD target.
//
// Online softmax over blocks of kBlockRows: scores of a block, their
// exponentials relative to the largest score so far, and the rows of V weighted
// with them. Query heads of a kv head are taken two at a time, so that a row is
// converted to float32 once for both; which heads go together changes no
// operation.

#if defined(QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_
#undef QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_
#else
#define QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "model/ops/attention_state.h"
#include "model/ops/simd_float-inl.h"
#include "quire/model/ops.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

// exp that keeps NaN: Highway's turns it into 0, which would hide a bad row.
HWY_INLINE VF ExpKeepNaN(VF x) {
  const DF d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// The rows of one block. Those of the next are asked for while this one is
// worked on: rows are short and far apart, nothing that hardware foresees.
struct Block {
  const uint8_t* keys;
  const uint8_t* values;
  size_t row_stride;
  size_t rows;
};

HWY_INLINE void PrefetchRow(const uint8_t* row, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(row + i);
}

// scores[h, r] of kH heads from `queries` on, which are padded with zeros.
template <typename T, int kH>
void ScoreRows(const AttentionShape& shape, const float* queries,
               const Block& block, float* scores) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = shape.head_dim / lanes * lanes;
  const size_t rest = shape.head_dim - whole;
  for (size_t r = 0; r < block.rows; ++r) {
    const uint8_t* const row = block.keys + r * block.row_stride;
    PrefetchRow(row + kBlockRows * block.row_stride,
                shape.head_dim * sizeof(T));
    const T* const key = reinterpret_cast<const T*>(row);
    VF sums[kH];
    for (VF& sum : sums) sum = hn::Zero(d);
    const auto add = [&](VF k, size_t i) HWY_ATTR {
      for (int h = 0; h < kH; ++h) {
        sums[h] = hn::MulAdd(
            k, hn::LoadU(d, queries + h * shape.padded_dim + i), sums[h]);
      }
    };
    for (size_t i = 0; i < whole; i += lanes) add(LoadF32(d, key + i), i);
    if (rest > 0) add(LoadPartialF32(d, key + whole, rest), whole);
    for (int h = 0; h < kH; ++h)
      scores[h * kBlockRows + r] = SumLanes(d, sums[h]);
  }
}

// Turns the scores of a head into exp(score - largest) and brings its state to
// the new largest score.
void Weigh(const AttentionShape& shape, size_t rows, float* scores,
           float* largest_so_far, float* sum_so_far, float* weighted) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  std::fill(scores + rows, scores + kBlockRows,
            -std::numeric_limits<float>::infinity());
  VF largest = hn::Set(d, *largest_so_far);
  for (size_t r = 0; r < kBlockRows; r += lanes)
    largest = hn::Max(largest, hn::LoadU(d, scores + r));
  largest = hn::MaxOfLanes(d, largest);
  VF sum = hn::Zero(d);
  for (size_t r = 0; r < kBlockRows; r += lanes) {
    const VF p = ExpKeepNaN(hn::Sub(hn::LoadU(d, scores + r), largest));
    hn::StoreU(p, d, scores + r);
    sum = hn::Add(sum, p);
  }
  // The first block has no past: exp(-inf - largest) is 0.
  const VF past = ExpKeepNaN(hn::Sub(hn::Set(d, *largest_so_far), largest));
  *largest_so_far = hn::GetLane(largest);
  *sum_so_far = *sum_so_far * hn::GetLane(past) + SumLanes(d, sum);
  for (size_t i = 0; i < shape.padded_dim; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, weighted + i), past), d, weighted + i);
}

// weighted[h, i] += scores[h, r] * V[r, i] for kH heads and kV vectors from
// element `first` on; the last vector has `last` elements.
template <typename T, int kH, int kV>
void AddValues(const AttentionShape& shape, const Block& block, size_t first,
               size_t last, const float* scores, float* weighted) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sums[kH][kV];
  for (int h = 0; h < kH; ++h)
    for (int v = 0; v < kV; ++v)
      sums[h][v] =
          hn::LoadU(d, weighted + h * shape.padded_dim + first + v * lanes);
  for (size_t r = 0; r < block.rows; ++r) {
    const uint8_t* const row = block.values + r * block.row_stride;
    const T* const value = reinterpret_cast<const T*>(row) + first;
    PrefetchRow(
        reinterpret_cast<const uint8_t*>(value) + kBlockRows * block.row_stride,
        kV * lanes * sizeof(T));
    for (int v = 0; v < kV; ++v) {
      const T* const from = value + v * lanes;
      const VF x = v + 1 < kV || last == lanes ? LoadF32(d, from)
                                               : LoadPartialF32(d, from, last);
      for (int h = 0; h < kH; ++h) {
        sums[h][v] =
            hn::MulAdd(hn::Set(d, scores[h * kBlockRows + r]), x, sums[h][v]);
      }
    }
  }
  for (int h = 0; h < kH; ++h)
    for (int v = 0; v < kV; ++v)
      hn::StoreU(sums[h][v], d,
                 weighted + h * shape.padded_dim + first + v * lanes);
}

// One block for kH heads; `scores` and what else is of heads begins with
// theirs.
template <typename T, int kH>
void AddBlockHeads(const AttentionShape& shape, const float* queries,
                   const Block& block, float* scores, SoftmaxState state) {
  ScoreRows<T, kH>(shape, queries, block, scores);
  for (int h = 0; h < kH; ++h) {
    Weigh(shape, block.rows, scores + h * kBlockRows, state.largest + h,
          state.sum + h, state.weighted + h * shape.padded_dim);
  }
  constexpr int kVectors = 4;
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + kVectors * lanes <= shape.head_dim; i += kVectors * lanes) {
    AddValues<T, kH, kVectors>(shape, block, i, lanes, scores, state.weighted);
  }
  for (; i < shape.head_dim; i += lanes) {
    AddValues<T, kH, 1>(shape, block, i, std::min(lanes, shape.head_dim - i),
                        scores, state.weighted);
  }
}

// One block for all heads of a group, two at a time.
template <typename T>
void AddBlock(const AttentionShape& shape, const float* queries,
              const Block& block, float* scores, SoftmaxState state) {
  size_t h = 0;
  const auto add = [&]<int kH>() HWY_ATTR {
    AddBlockHeads<T, kH>(shape, queries + h * shape.padded_dim, block,
                         scores + h * kBlockRows,
                         {state.largest + h, state.sum + h,
                          state.weighted + h * shape.padded_dim});
    h += kH;
  };
  while (h + 2 <= shape.group) add.template operator()<2>();
  if (h < shape.group) add.template operator()<1>();
}

// Rows [begin, end) of a query for `heads`, from empty states. Of `queries` and
// `states` there is one for each of `heads`.
template <typename T>
void AttendRows(const AttentionShape& shape, const float* queries,
                const AttentionQuery& query, KvHeads heads, size_t begin,
                size_t end, float* scores, float* states) {
  for (size_t h = 0; h < heads.end - heads.begin; ++h) {
    float* const memory = states + h * shape.state_size();
    std::fill_n(memory, shape.state_size(), 0.0f);
    std::fill_n(SoftmaxState(shape, memory).largest, shape.group,
                -std::numeric_limits<float>::infinity());
  }
  // Head by head within a block: what is read of a row lies side by side.
  for (size_t row = begin; row < end; row += kBlockRows) {
    for (size_t h = heads.begin; h < heads.end; ++h) {
      const size_t offset =
          row * query.row_stride + h * shape.head_dim * sizeof(T);
      const size_t place = h - heads.begin;
      AddBlock<T>(shape, queries + place * shape.query_size(),
                  {static_cast<const uint8_t*>(query.keys) + offset,
                   static_cast<const uint8_t*>(query.values) + offset,
                   query.row_stride, std::min(kBlockRows, end - row)},
                  scores,
                  SoftmaxState(shape, states + place * shape.state_size()));
    }
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_
