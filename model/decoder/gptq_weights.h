// From a GPTQ module's tensors, as loaded, to the GptqMatrix that MatMul reads:
// which rows belong to which group, in which order, and what the stored zero
// points mean.

#ifndef QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_
#define QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/loader/gptq.h"

namespace quire {

// 32-bit words that `count` codes of `bits` bits take.
constexpr uint64_t PackedWords(uint64_t count, int bits) {
  return (count * static_cast<uint64_t>(bits) + 31) / 32;
}

// The rows of a module sorted by group, stably.
struct GroupedRows {
  // Row i of the sorted matrix is row order[i] of the stored one; empty where
  // that is the identity.
  std::vector<uint32_t> order;
  // Group g has the sorted rows [begin[g], begin[g + 1]).
  std::vector<uint32_t> begin;
};
// REQUIRES: every element of `group_of_row` is below `groups`.
GroupedRows SortRowsByGroup(const std::vector<uint32_t>& group_of_row,
                            uint64_t groups);

// What must be added to a stored zero point, modulo 2^bits. For a symmetric
// module the data decides: files exist whose label contradicts their zeros, and
// a symmetric zero is 2^(bits-1) by definition. `warning` gets a sentence where
// label and data disagree.
uint32_t ZeroOffset(const GptqModule& module, bool label_says_v2,
                    const uint32_t* qzeros,
                    std::optional<std::string>* warning);

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_
