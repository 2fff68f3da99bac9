// Softmax attention over strided KV rows: how the work is divided.
//
// The rows that a query sees are cut into spans of kSpanRows. A span starts
// from nothing (see attention_kernel-inl.h) and spans are merged in ascending
// order. Who computes a span, one thread after the other or several at once,
// changes none of the operations on an output element.
//
// With many queries one task is a query. With few, as in the decoding of long
// contexts, one task is a span of a query, and with too few of those a span for
// some of the kv heads.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/ops/attention_state.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/attention.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/highway.h>

#include "model/ops/attention_kernel-inl.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

void AttendRowsEntry(const AttentionShape& shape, KvElements elements,
                     const float* queries, const AttentionQuery& query,
                     KvHeads heads, size_t begin, size_t end, float* scores,
                     float* states) {
  const auto attend = [&]<typename T>() {
    AttendRows<T>(shape, elements.scale, queries, query, heads, begin, end,
                  scores, states);
  };
  switch (elements.dtype) {
    case KvDType::kF32:
      return attend.template operator()<float>();
    case KvDType::kF16:
      return attend.template operator()<F16>();
    case KvDType::kBF16:
      return attend.template operator()<BF16>();
    case KvDType::kF8E4M3:
      return attend.template operator()<F8E4M3>();
    case KvDType::kF8E5M2:
      return attend.template operator()<F8E5M2>();
    case KvDType::kInt8:
      return attend.template operator()<I8>();
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(AttendRowsEntry);

constexpr size_t kWidestVector = 16;
constexpr size_t kSpanRows = 1024;
// Tasks per thread that even out what threads get done.
constexpr size_t kTasksPerThread = 4;

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
    float* const to = state.weighted + h * shape.padded_value;
    const float* const from = next.weighted + h * shape.padded_value;
    for (size_t i = 0; i < shape.value_dim; ++i)
      to[i] = to[i] * past + from[i] * present;
  }
}

void WriteOutput(const AttentionShape& shape, const SoftmaxState& state,
                 float* output) {
  for (size_t h = 0; h < shape.group; ++h) {
    const float factor = 1.0f / state.sum[h];
    for (size_t i = 0; i < shape.value_dim; ++i) {
      output[h * shape.value_dim + i] =
          state.weighted[h * shape.padded_value + i] * factor;
    }
  }
}

// The queries of a kv head, scaled and padded with zeros.
void LoadQueries(const AttentionShape& shape, const float* from, float* to) {
  for (size_t h = 0; h < shape.group; ++h) {
    for (size_t i = 0; i < shape.key_dim; ++i)
      to[i] = from[h * shape.key_dim + i] * shape.scale;
    std::fill(to + shape.key_dim, to + shape.padded_key, 0.0f);
    to += shape.padded_key;
  }
}

size_t SpansOf(const AttentionQuery& query) {
  return std::max<size_t>(1, (RowsOf(query).count + kSpanRows - 1) / kSpanRows);
}

// A thread's own memory, and the work that it does with it.
class Worker {
 public:
  Worker(const AttentionShape& shape, KvElements elements)
      : shape_(shape),
        elements_(elements),
        queries_(shape.kv_heads * shape.query_size()),
        scores_(shape.group * kTileRows) {}

  void LoadHeads(const AttentionQuery& query, KvHeads heads) {
    for (size_t h = heads.begin; h < heads.end; ++h) {
      LoadQueries(shape_, query.query + h * shape_.group * shape_.key_dim,
                  queries_.data() + (h - heads.begin) * shape_.query_size());
    }
  }

  // One span for the heads that were loaded.
  void Attend(const AttentionQuery& query, KvHeads heads, size_t span,
              float* states) {
    const size_t first = span * kSpanRows;
    HWY_DYNAMIC_DISPATCH(AttendRowsEntry)
    (shape_, elements_, queries_.data(), query, heads, first,
     std::min(RowsOf(query).count, first + kSpanRows), scores_.data(), states);
  }

 private:
  const AttentionShape& shape_;
  const KvElements elements_;
  std::vector<float> queries_;
  std::vector<float> scores_;
};

void MergeHeads(const AttentionShape& shape, KvHeads heads, float* next,
                float* states) {
  for (size_t h = 0; h < heads.end - heads.begin; ++h) {
    Merge(shape, SoftmaxState(shape, next + h * shape.state_size()),
          SoftmaxState(shape, states + h * shape.state_size()));
  }
}

void WriteHeads(const AttentionShape& shape, KvHeads heads, float* states,
                const AttentionQuery& query) {
  for (size_t h = heads.begin; h < heads.end; ++h) {
    WriteOutput(
        shape,
        SoftmaxState(shape, states + (h - heads.begin) * shape.state_size()),
        query.output + h * shape.group * shape.value_dim);
  }
}

// A query is a task: its spans one after the other.
void AttendQueries(std::span<const AttentionQuery> queries, KvElements elements,
                   const AttentionShape& shape) {
  const KvHeads heads = {0, shape.kv_heads};
  Worker worker(shape, elements);
  std::vector<float> states(shape.kv_heads * shape.state_size());
  std::vector<float> next(states.size());
  for (const AttentionQuery& query : queries) {
    worker.LoadHeads(query, heads);
    worker.Attend(query, heads, 0, states.data());
    for (size_t s = 1; s < SpansOf(query); ++s) {
      worker.Attend(query, heads, s, next.data());
      MergeHeads(shape, heads, next.data(), states.data());
    }
    WriteHeads(shape, heads, states.data(), query);
  }
}

// A span of a query is a task for each of `parts` runs of heads; the spans are
// merged at the end.
void AttendSpans(std::span<const AttentionQuery> queries, KvElements elements,
                 const AttentionShape& shape, size_t parts, ThreadPool* pool) {
  struct Task {
    const AttentionQuery* query;
    size_t span;
    KvHeads heads;
    size_t state;  // index of the first float
  };
  std::vector<Task> tasks;
  size_t state_floats = 0;
  // The spans of a query and part follow each other.
  for (const AttentionQuery& query : queries) {
    for (size_t part = 0; part < parts; ++part) {
      const KvHeads heads = {part * shape.kv_heads / parts,
                             (part + 1) * shape.kv_heads / parts};
      for (size_t s = 0; s < SpansOf(query); ++s) {
        tasks.push_back({&query, s, heads, state_floats});
        state_floats += (heads.end - heads.begin) * shape.state_size();
      }
    }
  }
  std::vector<float> states(state_floats);
  pool->ParallelFor(tasks.size(), 1, [&](size_t begin, size_t end) {
    Worker worker(shape, elements);
    for (size_t i = begin; i < end; ++i) {
      worker.LoadHeads(*tasks[i].query, tasks[i].heads);
      worker.Attend(*tasks[i].query, tasks[i].heads, tasks[i].span,
                    states.data() + tasks[i].state);
    }
  });
  for (size_t i = 0; i < tasks.size();) {
    const Task& first = tasks[i];
    float* const total = states.data() + first.state;
    for (++i; i < tasks.size() && tasks[i].span > 0; ++i)
      MergeHeads(shape, first.heads, states.data() + tasks[i].state, total);
    WriteHeads(shape, first.heads, total, *first.query);
  }
}

}  // namespace

void Attention(std::span<const AttentionQuery> queries, KvElements elements,
               const AttentionHeads& heads, float scale, ThreadPool* pool) {
  const auto padded = [](size_t dim) {
    return (dim + kWidestVector - 1) / kWidestVector * kWidestVector;
  };
  AttentionShape shape;
  shape.kv_heads = heads.kv_heads;
  shape.group = heads.heads / heads.kv_heads;
  shape.key_dim = heads.key_dim;
  shape.value_dim = heads.value_dim;
  shape.padded_key = padded(heads.key_dim);
  shape.padded_value = padded(heads.value_dim);
  shape.scale = scale;

  const auto threads = static_cast<size_t>(pool->threads());
  const size_t enough = threads == 1 ? 1 : kTasksPerThread * threads;
  if (queries.size() >= enough) {
    pool->ParallelFor(queries.size(), 1, [&](size_t begin, size_t end) {
      AttendQueries(queries.subspan(begin, end - begin), elements, shape);
    });
    return;
  }
  size_t spans = 0;
  for (const AttentionQuery& query : queries) spans += SpansOf(query);
  if (spans == 0) return;
  const size_t parts =
      std::clamp<size_t>((enough + spans - 1) / spans, 1, shape.kv_heads);
  AttendSpans(queries, elements, shape, parts, pool);
}

}  // namespace quire
#endif  // HWY_ONCE
