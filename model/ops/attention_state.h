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
  size_t head_dim;
  size_t padded_dim;  // a multiple of the widest vector
  float scale;

  // Floats in memory for one kv head's queries, and for its state.
  size_t query_size() const { return group * padded_dim; }
  size_t state_size() const { return group * (2 + padded_dim); }
};

// Rows of a tile that are row_stride apart; offsets are from the keys, or the
// values, of the query.
struct RowRun {
  size_t offset;  // of the first
  size_t ahead;   // of the row that is kTileRows further on, to be asked for
  size_t rows;
};

// Cuts rows [begin, end) of a query, a tile at most, into runs; how many. A
// tile of rows in blocks of one row has kTileRows.
inline size_t FindRuns(const AttentionQuery& query, size_t begin, size_t end,
                       RowRun* runs) {
  if (query.blocks == nullptr) {
    *runs = {begin * query.row_stride, (begin + kTileRows) * query.row_stride,
             end - begin};
    return 1;
  }
  const size_t block_rows = size_t{1} << query.block_shift;
  const auto offset = [&](size_t row) {
    return query.blocks[row >> query.block_shift] * query.block_stride +
           (row & (block_rows - 1)) * query.row_stride;
  };
  size_t count = 0;
  for (size_t row = begin; row < end;) {
    RowRun& run = runs[count++];
    run.rows = std::min(block_rows - (row & (block_rows - 1)), end - row);
    run.offset = offset(row);
    // Both sizes are powers of two: a tile further on, a run begins as well.
    const size_t ahead = row + kTileRows;
    run.ahead = ahead < query.length ? offset(ahead) : run.offset;
    row += run.rows;
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
  float* weighted;  // [group, padded_dim]

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
