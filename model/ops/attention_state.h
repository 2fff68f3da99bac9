// What the parts of attention share: shapes, and the state of a softmax that
// has seen some of its rows.

#ifndef QUIRE_MODEL_OPS_ATTENTION_STATE_H_
#define QUIRE_MODEL_OPS_ATTENTION_STATE_H_

#include <cstddef>

namespace quire {

// Rows whose scores are computed before they are used.
inline constexpr size_t kBlockRows = 64;

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
