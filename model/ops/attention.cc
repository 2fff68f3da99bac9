// Softmax attention over strided KV rows.
//
// The rows of a query are cut into spans of kSpanRows, each span into blocks of
// kBlockRows. A span starts from nothing and runs the online softmax over its
// blocks; spans are merged in ascending order. Who computes a span (one thread
// after the other, or several at once where there are few queries and many
// rows) changes none of the operations on an output element.
//
// All query heads of a kv head are worked on together, so a row of K and of V
// is read once for them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/attention.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "model/ops/simd_float-inl.h"

namespace quire {
#ifndef QUIRE_MODEL_OPS_ATTENTION_ONCE
#define QUIRE_MODEL_OPS_ATTENTION_ONCE

inline constexpr size_t kBlockRows = 64;
inline constexpr size_t kSpanRows = 1024;

// What all queries of a call share.
struct AttentionShape {
  size_t group;  // query heads of a kv head
  size_t head_dim;
  size_t padded_dim;  // a multiple of the widest vector
  float scale;
};

// The state of an online softmax for the heads of a group: for each head the
// largest score, the sum of exp(score - largest), and the rows of V weighted
// likewise.
struct SoftmaxState {
  float* largest;   // [group]
  float* sum;       // [group]
  float* weighted;  // [group, padded_dim]
};

#endif  // QUIRE_MODEL_OPS_ATTENTION_ONCE
}  // namespace quire

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

// exp that keeps NaN: Highway's turns it into 0, which would hide a bad row.
HWY_INLINE VF ExpKeepNaN(VF x) {
  const DF d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// One block of rows, at most kBlockRows, for all heads of a group. `queries`
// are scaled and padded with zeros to padded_dim.
template <typename T>
void AddBlock(const AttentionShape& shape, const float* queries,
              const uint8_t* keys, const uint8_t* values, size_t row_stride,
              size_t rows, float* scores, SoftmaxState state) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = shape.head_dim / lanes * lanes;
  const size_t rest = shape.head_dim - whole;

  // scores[h, r]
  for (size_t r = 0; r < rows; ++r) {
    const T* const key = reinterpret_cast<const T*>(keys + r * row_stride);
    for (size_t h = 0; h < shape.group; ++h) {
      const float* const query = queries + h * shape.padded_dim;
      VF sum = hn::Zero(d);
      for (size_t i = 0; i < whole; i += lanes)
        sum = hn::MulAdd(LoadF32(d, key + i), hn::LoadU(d, query + i), sum);
      if (rest > 0) {
        sum = hn::MulAdd(LoadPartialF32(d, key + whole, rest),
                         hn::LoadU(d, query + whole), sum);
      }
      scores[h * kBlockRows + r] = SumLanes(d, sum);
    }
  }

  for (size_t h = 0; h < shape.group; ++h) {
    float* const head_scores = scores + h * kBlockRows;
    std::fill(head_scores + rows, head_scores + kBlockRows,
              -std::numeric_limits<float>::infinity());
    VF largest = hn::Set(d, state.largest[h]);
    for (size_t r = 0; r < kBlockRows; r += lanes)
      largest = hn::Max(largest, hn::LoadU(d, head_scores + r));
    const VF new_largest = hn::MaxOfLanes(d, largest);
    VF sum = hn::Zero(d);
    for (size_t r = 0; r < kBlockRows; r += lanes) {
      const VF p =
          ExpKeepNaN(hn::Sub(hn::LoadU(d, head_scores + r), new_largest));
      hn::StoreU(p, d, head_scores + r);
      sum = hn::Add(sum, p);
    }
    // The first block has no past: exp(-inf - largest) is 0.
    const float past = hn::GetLane(
        ExpKeepNaN(hn::Sub(hn::Set(d, state.largest[h]), new_largest)));
    state.largest[h] = hn::GetLane(new_largest);
    state.sum[h] = state.sum[h] * past + SumLanes(d, sum);
    float* const weighted = state.weighted + h * shape.padded_dim;
    for (size_t i = 0; i < shape.padded_dim; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, weighted + i), hn::Set(d, past)), d,
                 weighted + i);
    }
  }

  for (size_t i = 0; i < shape.head_dim; i += lanes) {
    const size_t here = std::min(lanes, shape.head_dim - i);
    for (size_t h = 0; h < shape.group; ++h) {
      float* const to = state.weighted + h * shape.padded_dim + i;
      VF sum = hn::LoadU(d, to);
      for (size_t r = 0; r < rows; ++r) {
        const T* const from =
            reinterpret_cast<const T*>(values + r * row_stride) + i;
        const VF v =
            here == lanes ? LoadF32(d, from) : LoadPartialF32(d, from, here);
        sum = hn::MulAdd(hn::Set(d, scores[h * kBlockRows + r]), v, sum);
      }
      hn::StoreU(sum, d, to);
    }
  }
}

// Rows [begin, end) of a query, from an empty state.
template <typename T>
void AttendSpan(const AttentionShape& shape, const float* queries,
                const AttentionQuery& query, size_t head_offset, size_t begin,
                size_t end, float* scores, SoftmaxState state) {
  std::fill_n(state.largest, shape.group,
              -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, shape.group, 0.0f);
  std::fill_n(state.weighted, shape.group * shape.padded_dim, 0.0f);
  const size_t offset = head_offset * sizeof(T);
  const auto* const keys = static_cast<const uint8_t*>(query.keys) + offset;
  const auto* const values = static_cast<const uint8_t*>(query.values) + offset;
  for (size_t row = begin; row < end; row += kBlockRows) {
    AddBlock<T>(shape, queries, keys + row * query.row_stride,
                values + row * query.row_stride, query.row_stride,
                std::min(kBlockRows, end - row), scores, state);
  }
}

}  // namespace

void AttendSpanEntry(const AttentionShape& shape, KvDType dtype,
                     const float* queries, const AttentionQuery& query,
                     size_t head_offset, size_t begin, size_t end,
                     float* scores, SoftmaxState state) {
  switch (dtype) {
    case KvDType::kF32:
      return AttendSpan<float>(shape, queries, query, head_offset, begin, end,
                               scores, state);
    case KvDType::kF16:
      return AttendSpan<F16>(shape, queries, query, head_offset, begin, end,
                             scores, state);
    case KvDType::kBF16:
      return AttendSpan<BF16>(shape, queries, query, head_offset, begin, end,
                              scores, state);
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(AttendSpanEntry);

constexpr size_t kWidestVector = 16;

// The memory of one state: largest, sum and weighted one after the other.
size_t StateSize(const AttentionShape& shape) {
  return shape.group * (2 + shape.padded_dim);
}

SoftmaxState StateAt(const AttentionShape& shape, float* memory) {
  return {memory, memory + shape.group, memory + 2 * shape.group};
}

// state = state merged with the rows of `next`, which come after its own.
void Merge(const AttentionShape& shape, const SoftmaxState& next,
           SoftmaxState state) {
  for (size_t h = 0; h < shape.group; ++h) {
    // Written so that NaN stays.
    const float largest =
        next.largest[h] > state.largest[h] ? next.largest[h] : state.largest[h];
    const float past = std::exp(state.largest[h] - largest);
    const float present = std::exp(next.largest[h] - largest);
    state.largest[h] = largest;
    state.sum[h] = state.sum[h] * past + next.sum[h] * present;
    float* const to = state.weighted + h * shape.padded_dim;
    const float* const from = next.weighted + h * shape.padded_dim;
    for (size_t i = 0; i < shape.head_dim; ++i)
      to[i] = to[i] * past + from[i] * present;
  }
}

void WriteOutput(const AttentionShape& shape, const SoftmaxState& state,
                 float* output) {
  for (size_t h = 0; h < shape.group; ++h) {
    const float factor = 1.0f / state.sum[h];
    for (size_t i = 0; i < shape.head_dim; ++i) {
      output[h * shape.head_dim + i] =
          state.weighted[h * shape.padded_dim + i] * factor;
    }
  }
}

// The queries of a group's heads, scaled and padded with zeros.
void LoadQueries(const AttentionShape& shape, const float* from, float* to) {
  for (size_t h = 0; h < shape.group; ++h) {
    for (size_t i = 0; i < shape.head_dim; ++i)
      to[i] = from[h * shape.head_dim + i] * shape.scale;
    std::fill(to + shape.head_dim, to + shape.padded_dim, 0.0f);
    to += shape.padded_dim;
  }
}

size_t SpansOf(size_t length) { return (length + kSpanRows - 1) / kSpanRows; }

// A thread's own memory for one (query, kv head).
struct Scratch {
  explicit Scratch(const AttentionShape& shape)
      : queries(shape.group * shape.padded_dim),
        scores(shape.group * kBlockRows),
        total(StateSize(shape)),
        span(StateSize(shape)) {}

  std::vector<float> queries;
  std::vector<float> scores;
  std::vector<float> total;
  std::vector<float> span;
};

// One task is a (query, kv head); a task's spans one after the other.
void AttendTasks(std::span<const AttentionQuery> queries, KvDType dtype,
                 size_t kv_heads, const AttentionShape& shape, size_t begin,
                 size_t end) {
  Scratch scratch(shape);
  const SoftmaxState total = StateAt(shape, scratch.total.data());
  const SoftmaxState span = StateAt(shape, scratch.span.data());
  for (size_t task = begin; task < end; ++task) {
    const AttentionQuery& query = queries[task / kv_heads];
    const size_t kv_head = task % kv_heads;
    const size_t heads_offset = kv_head * shape.group * shape.head_dim;
    LoadQueries(shape, query.query + heads_offset, scratch.queries.data());
    for (size_t s = 0; s < SpansOf(query.length); ++s) {
      const size_t first = s * kSpanRows;
      HWY_DYNAMIC_DISPATCH(AttendSpanEntry)
      (shape, dtype, scratch.queries.data(), query, kv_head * shape.head_dim,
       first, std::min(query.length, first + kSpanRows), scratch.scores.data(),
       s == 0 ? total : span);
      if (s > 0) Merge(shape, span, total);
    }
    WriteOutput(shape, total, query.output + heads_offset);
  }
}

// The spans of all tasks as work of their own, then a merge per task: for few
// queries with many rows.
void AttendSpans(std::span<const AttentionQuery> queries, KvDType dtype,
                 size_t kv_heads, const AttentionShape& shape,
                 ThreadPool* pool) {
  struct Span {
    size_t task;
    size_t index;
  };
  std::vector<Span> spans;
  std::vector<size_t> first_span;
  for (size_t task = 0; task < queries.size() * kv_heads; ++task) {
    first_span.push_back(spans.size());
    for (size_t s = 0; s < SpansOf(queries[task / kv_heads].length); ++s)
      spans.push_back({task, s});
  }
  const size_t state_size = StateSize(shape);
  std::vector<float> states(spans.size() * state_size);
  pool->ParallelFor(spans.size(), 1, [&](size_t begin, size_t end) {
    Scratch scratch(shape);
    for (size_t i = begin; i < end; ++i) {
      const AttentionQuery& query = queries[spans[i].task / kv_heads];
      const size_t kv_head = spans[i].task % kv_heads;
      LoadQueries(shape, query.query + kv_head * shape.group * shape.head_dim,
                  scratch.queries.data());
      const size_t first = spans[i].index * kSpanRows;
      HWY_DYNAMIC_DISPATCH(AttendSpanEntry)
      (shape, dtype, scratch.queries.data(), query, kv_head * shape.head_dim,
       first, std::min(query.length, first + kSpanRows), scratch.scores.data(),
       StateAt(shape, states.data() + i * state_size));
    }
  });
  for (size_t task = 0; task < first_span.size(); ++task) {
    const AttentionQuery& query = queries[task / kv_heads];
    const size_t kv_head = task % kv_heads;
    float* const memory = states.data() + first_span[task] * state_size;
    const SoftmaxState total = StateAt(shape, memory);
    for (size_t s = 1; s < SpansOf(query.length); ++s)
      Merge(shape, StateAt(shape, memory + s * state_size), total);
    WriteOutput(shape, total,
                query.output + kv_head * shape.group * shape.head_dim);
  }
}

}  // namespace

void Attention(std::span<const AttentionQuery> queries, KvDType dtype,
               size_t heads, size_t kv_heads, size_t head_dim, float scale,
               ThreadPool* pool) {
  AttentionShape shape;
  shape.group = heads / kv_heads;
  shape.head_dim = head_dim;
  shape.padded_dim =
      (head_dim + kWidestVector - 1) / kWidestVector * kWidestVector;
  shape.scale = scale;

  const size_t tasks = queries.size() * kv_heads;
  // With fewer tasks some threads would have nothing to do at the end, and the
  // states of all spans are few enough to keep.
  const size_t enough_tasks = 8 * static_cast<size_t>(pool->threads());
  if (pool->threads() > 1 && tasks < enough_tasks) {
    AttendSpans(queries, dtype, kv_heads, shape, pool);
    return;
  }
  pool->ParallelFor(tasks, 1, [&](size_t begin, size_t end) {
    AttendTasks(queries, dtype, kv_heads, shape, begin, end);
  });
}

}  // namespace quire
#endif  // HWY_ONCE
