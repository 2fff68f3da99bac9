// Attention of one query over a run of rows, once per SIMD target.
//
// Online softmax over tiles of kTileRows: scores of a tile, their exponentials
// relative to the largest score so far, and the rows of V weighted with them.
// Query heads of a kv head are taken two at a time, so that a row is converted
// to float32 once for both. Which heads go together changes no operation, and
// neither does in how many runs the rows of a tile lie.

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
#include <cstring>
#include <limits>
#include <span>

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

// The rows of one tile, of one kv head. Those of the next are asked for while
// this one is worked on: rows are short and far apart, nothing that hardware
// foresees.
struct Tile {
  const uint8_t* keys;
  const uint8_t* values;
  size_t row_stride;  // of keys
  size_t value_stride;
  std::span<const RowRun> runs;
  size_t rows;  // of all runs
  // Of each row, and 1 up to kTileRows; null: none.
  const float* key_scales;
  const float* value_scales;
};

HWY_INLINE void PrefetchRow(const uint8_t* row, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(row + i);
}

// scores[h, r] of kH heads from `queries` on, which are padded with zeros, and
// the rows of one run.
template <typename T, int kH>
void ScoreRows(const AttentionShape& shape, const float* queries,
               const Tile& tile, const RowRun& run, float* scores) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = shape.key_dim / lanes * lanes;
  const size_t rest = shape.key_dim - whole;
  const uint8_t* row = tile.keys + run.keys.offset;
  const uint8_t* ahead = tile.keys + run.keys.ahead;
  for (size_t r = 0; r < run.rows; ++r) {
    PrefetchRow(ahead, shape.key_dim * sizeof(T));
    const T* const key = reinterpret_cast<const T*>(row);
    row += tile.row_stride;
    ahead += tile.row_stride;
    VF sums[kH];
    for (VF& sum : sums) sum = hn::Zero(d);
    const auto add = [&](VF k, size_t i) HWY_ATTR {
      for (int h = 0; h < kH; ++h) {
        sums[h] = hn::MulAdd(
            k, hn::LoadU(d, queries + h * shape.padded_key + i), sums[h]);
      }
    };
    for (size_t i = 0; i < whole; i += lanes) add(LoadF32(d, key + i), i);
    if (rest > 0) add(LoadPartialF32(d, key + whole, rest), whole);
    for (int h = 0; h < kH; ++h)
      scores[h * kTileRows + r] = SumLanes(d, sums[h]);
  }
}

// Turns the scores of a head into exp(score - largest) and brings its state to
// the new largest score.
void Weigh(const AttentionShape& shape, size_t rows, float* scores,
           float* largest_so_far, float* sum_so_far, float* weighted) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  std::fill(scores + rows, scores + kTileRows,
            -std::numeric_limits<float>::infinity());
  VF largest = hn::Set(d, *largest_so_far);
  for (size_t r = 0; r < kTileRows; r += lanes)
    largest = hn::Max(largest, hn::LoadU(d, scores + r));
  largest = hn::MaxOfLanes(d, largest);
  VF sum = hn::Zero(d);
  for (size_t r = 0; r < kTileRows; r += lanes) {
    const VF p = ExpKeepNaN(hn::Sub(hn::LoadU(d, scores + r), largest));
    hn::StoreU(p, d, scores + r);
    sum = hn::Add(sum, p);
  }
  // The first block has no past: exp(-inf - largest) is 0.
  const VF past = ExpKeepNaN(hn::Sub(hn::Set(d, *largest_so_far), largest));
  *largest_so_far = hn::GetLane(largest);
  *sum_so_far = *sum_so_far * hn::GetLane(past) + SumLanes(d, sum);
  for (size_t i = 0; i < shape.padded_value; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, weighted + i), past), d, weighted + i);
}

// weighted[h, i] += scores[h, r] * V[r, i] for kH heads, the rows of one run
// and kV vectors from element `first` on; the last vector has `last` elements.
template <typename T, int kH, int kV>
void AddValues(const AttentionShape& shape, const Tile& tile, const RowRun& run,
               size_t first, size_t last, const float* scores,
               float* weighted) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sums[kH][kV];
  for (int h = 0; h < kH; ++h)
    for (int v = 0; v < kV; ++v)
      sums[h][v] =
          hn::LoadU(d, weighted + h * shape.padded_value + first + v * lanes);
  const uint8_t* const values = tile.values + first * sizeof(T);
  const uint8_t* row = values + run.values.offset;
  const uint8_t* ahead = values + run.values.ahead;
  for (size_t r = 0; r < run.rows; ++r) {
    PrefetchRow(ahead, kV * lanes * sizeof(T));
    const T* const value = reinterpret_cast<const T*>(row);
    row += tile.value_stride;
    ahead += tile.value_stride;
    for (int v = 0; v < kV; ++v) {
      const T* const from = value + v * lanes;
      const VF x = v + 1 < kV || last == lanes ? LoadF32(d, from)
                                               : LoadPartialF32(d, from, last);
      for (int h = 0; h < kH; ++h) {
        sums[h][v] =
            hn::MulAdd(hn::Set(d, scores[h * kTileRows + r]), x, sums[h][v]);
      }
    }
  }
  for (int h = 0; h < kH; ++h)
    for (int v = 0; v < kV; ++v)
      hn::StoreU(sums[h][v], d,
                 weighted + h * shape.padded_value + first + v * lanes);
}

// All values of one run for kH heads.
template <typename T, int kH>
void AddRunValues(const AttentionShape& shape, const Tile& tile,
                  const RowRun& run, const float* scores, float* weighted) {
  constexpr int kVectors = 4;
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + kVectors * lanes <= shape.value_dim; i += kVectors * lanes) {
    AddValues<T, kH, kVectors>(shape, tile, run, i, lanes, scores, weighted);
  }
  for (; i < shape.value_dim; i += lanes) {
    AddValues<T, kH, 1>(shape, tile, run, i,
                        std::min(lanes, shape.value_dim - i), scores, weighted);
  }
}

// scores[h, r] *= scales[r] of `heads` heads.
inline void ScaleRows(const float* scales, size_t heads, float* scores) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  if (scales == nullptr) return;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t r = 0; r < kTileRows; r += lanes) {
      float* const at = scores + h * kTileRows + r;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::LoadU(d, scales + r)), d, at);
    }
  }
}

// One tile for kH heads; `scores` and what else is of heads begins with theirs.
template <typename T, int kH>
void AddTileHeads(const AttentionShape& shape, const float* queries,
                  const Tile& tile, float* scores, SoftmaxState state) {
  float* run_scores = scores;
  for (const RowRun& run : tile.runs) {
    ScoreRows<T, kH>(shape, queries, tile, run, run_scores);
    run_scores += run.rows;
  }
  ScaleRows(tile.key_scales, kH, scores);
  for (int h = 0; h < kH; ++h) {
    Weigh(shape, tile.rows, scores + h * kTileRows, state.largest + h,
          state.sum + h, state.weighted + h * shape.padded_value);
  }
  ScaleRows(tile.value_scales, kH, scores);
  run_scores = scores;
  for (const RowRun& run : tile.runs) {
    AddRunValues<T, kH>(shape, tile, run, run_scores, state.weighted);
    run_scores += run.rows;
  }
}

// One tile for all heads of a group, two at a time.
template <typename T>
void AddTile(const AttentionShape& shape, const float* queries,
             const Tile& tile, float* scores, SoftmaxState state) {
  size_t h = 0;
  const auto add = [&]<int kH>() HWY_ATTR {
    AddTileHeads<T, kH>(shape, queries + h * shape.padded_key, tile,
                        scores + h * kTileRows,
                        {state.largest + h, state.sum + h,
                         state.weighted + h * shape.padded_value});
    h += kH;
  };
  while (h + 2 <= shape.group) add.template operator()<2>();
  if (h < shape.group) add.template operator()<1>();
}

// The scales of a head in the rows of a tile, and 1 behind them.
inline void LoadScales(KvScale type, const void* scales, size_t row_stride,
                       std::span<const RowRun> runs, RowRun::Side RowRun::*side,
                       size_t head, float* to) {
  float* at = to;
  for (const RowRun& run : runs) {
    const uint8_t* from = static_cast<const uint8_t*>(scales) +
                          (run.*side).offset +
                          head * (type == KvScale::kF16 ? 2 : 4);
    for (size_t r = 0; r < run.rows; ++r, from += row_stride) {
      if (type == KvScale::kF16) {
        *at++ = LoadF16(from);
      } else {
        std::memcpy(at++, from, sizeof(float));
      }
    }
  }
  std::fill(at, to + kTileRows, 1.0f);
}

// Rows [begin, end) of those that a query sees, for `heads`, from empty states.
// Of `queries` and `states` there is one for each of `heads`.
template <typename T>
void AttendRows(const AttentionShape& shape, KvScale scale,
                const float* queries, const AttentionQuery& query,
                KvHeads heads, size_t begin, size_t end, float* scores,
                float* states) {
  for (size_t h = 0; h < heads.end - heads.begin; ++h) {
    float* const memory = states + h * shape.state_size();
    std::fill_n(memory, shape.state_size(), 0.0f);
    std::fill_n(SoftmaxState(shape, memory).largest, shape.group,
                -std::numeric_limits<float>::infinity());
  }
  RowRun runs[kTileRows];
  float key_scales[kTileRows];
  float value_scales[kTileRows];
  const bool scaled = scale != KvScale::kNone;
  const size_t value_stride =
      query.value_stride == 0 ? query.row_stride : query.value_stride;
  // Head by head within a tile: what is read of a row lies side by side.
  for (size_t row = begin; row < end; row += kTileRows) {
    const size_t rows = std::min(kTileRows, end - row);
    const std::span<const RowRun> tile_runs(
        runs, FindRuns(query, row, row + rows, runs));
    for (size_t h = heads.begin; h < heads.end; ++h) {
      const size_t place = h - heads.begin;
      if (scaled) {
        LoadScales(scale, query.key_scales, query.row_stride, tile_runs,
                   &RowRun::keys, h, key_scales);
        LoadScales(scale, query.value_scales, value_stride, tile_runs,
                   &RowRun::values, h, value_scales);
      }
      AddTile<T>(
          shape, queries + place * shape.query_size(),
          {static_cast<const uint8_t*>(query.keys) +
               h * shape.key_dim * sizeof(T),
           static_cast<const uint8_t*>(query.values) +
               h * shape.value_dim * sizeof(T),
           query.row_stride, value_stride, tile_runs, rows,
           scaled ? key_scales : nullptr, scaled ? value_scales : nullptr},
          scores, SoftmaxState(shape, states + place * shape.state_size()));
    }
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QUIRE_MODEL_OPS_ATTENTION_KERNEL_INL_H_
