// What the parts of attention share: shapes, where rows are, and the state of a
// softmax that has seen some of its rows.

#ifndef QUIRE_MODEL_OPS_ATTENTION_STATE_H_
#define QUIRE_MODEL_OPS_ATTENTION_STATE_H_

#include <algorithm>
#include <cstddef>

#include "quire/model/ops.h"

namespace quire {

// Rows whose scores are computed before they are used: a tile.
inline constexpr size_t kTileRows = 64;

// What all queries of a call share.
struct AttentionShape {
  size_t kv_heads;
  size_t group;  // query heads of a kv head
  size_t key_dim;
  size_t value_dim;
  // Multiples of the widest vector.
  size_t padded_key;
  size_t padded_value;
  float scale;

  // Floats in memory for one kv head's queries, and for its state.
  size_t query_size() const { return group * padded_key; }
  size_t state_size() const { return group * (2 + padded_value); }
};

// Rows of a tile that are as far apart as each other; offsets are from the
// keys, or the values, of the query.
struct RowRun {
  struct Side {
    size_t offset;  // of the first
    size_t ahead;   // of the row that is kTileRows further on, to be asked for
  };
  Side keys;
  Side values;
  size_t rows;
};

// Rows that a query sees: [0, sinks) and [first, length). They are counted from
// 0 on without what lies between the two.
struct SeenRows {
  size_t sinks;
  size_t first;
  size_t count;
};
inline SeenRows RowsOf(const AttentionQuery& query) {
  if (query.window == 0 || query.length <= query.window)
    return {0, 0, query.length};
  const size_t first = query.length - query.window;
  const size_t sinks = std::min(query.sinks, first);
  return {sinks, first, sinks + query.window};
}

// Cuts rows [begin, end) of those that a query sees, a tile at most, into runs;
// how many. A tile of rows in blocks of one row has kTileRows.
inline size_t FindRuns(const AttentionQuery& query, size_t begin, size_t end,
                       RowRun* runs) {
  const SeenRows seen = RowsOf(query);
  const size_t value_stride =
      query.value_stride == 0 ? query.row_stride : query.value_stride;
  const size_t value_block_stride = query.value_block_stride == 0
                                        ? query.block_stride
                                        : query.value_block_stride;
  const size_t block_rows = size_t{1} << query.block_shift;
  size_t count = 0;
  for (size_t at = begin; at < end;) {
    const bool sink = at < seen.sinks;
    const size_t row = sink ? at : at - seen.sinks + seen.first;
    RowRun& run = runs[count++];
    run.rows = std::min(end, sink ? seen.sinks : seen.count) - at;
    // What is asked for only makes it faster to get: mostly it is the rows of
    // the next tile.
    const size_t ahead = row + kTileRows;
    if (query.blocks == nullptr) {
      run.keys = {row * query.row_stride, ahead * query.row_stride};
      run.values = {row * value_stride, ahead * value_stride};
    } else {
      run.rows = std::min(run.rows, block_rows - (row & (block_rows - 1)));
      const auto offset = [&](size_t r, size_t stride, size_t block_stride) {
        return query.blocks[r >> query.block_shift] * block_stride +
               (r & (block_rows - 1)) * stride;
      };
      const size_t asked = !sink && ahead < query.length ? ahead : row;
      run.keys = {offset(row, query.row_stride, query.block_stride),
                  offset(asked, query.row_stride, query.block_stride)};
      run.values = {offset(row, value_stride, value_block_stride),
                    offset(asked, value_stride, value_block_stride)};
    }
    at += run.rows;
  }
  return count;
}

// A run of kv heads.
struct KvHeads {
  size_t begin;
  size_t end;
};

// The state of an online softmax for the query heads of a kv head: for each the
// largest score, the sum of exp(score - largest), and the rows of V weighted
// likewise.
struct SoftmaxState {
  float* largest;   // [group]
  float* sum;       // [group]
  float* weighted;  // [group, padded_value]

  // In `memory` of shape.state_size() floats.
  SoftmaxState(const AttentionShape& shape, float* memory)
      : largest(memory),
        sum(memory + shape.group),
        weighted(memory + 2 * shape.group) {}
  SoftmaxState(float* l, float* s, float* w)
      : largest(l), sum(s), weighted(w) {}
};

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_ATTENTION_STATE_H_
