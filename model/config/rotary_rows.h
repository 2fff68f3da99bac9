// Where the rows of query and key matrices stand: GGUF llama models have the
// two halves of each head interleaved.

#ifndef QUIRE_MODEL_CONFIG_ROTARY_ROWS_H_
#define QUIRE_MODEL_CONFIG_ROTARY_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "quire/model/model_config.h"

namespace quire {

// Row `row` of a query or key matrix in Hugging Face's order stands in this row
// of a model whose rotary pairs are those of `rope`.
inline size_t SourceRow(const RopeConfig& rope, uint32_t head_dim, size_t row) {
  if (rope.pairing == RopePairing::kHalf) return row;
  const size_t head = row / head_dim;
  const size_t half = row % head_dim / (head_dim / 2);
  const size_t pair = row % (head_dim / 2);
  return head * head_dim + 2 * pair + half;
}

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_ROTARY_ROWS_H_
