// From a GPTQ module's tensors, as loaded, to the GptqMatrix that MatMul reads:
// which rows belong to which group, in which order, and what the stored zero
// points mean.

#ifndef QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_
#define QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_

#include <cstdint>
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

// Whether the stored zero points are what the configuration calls them.
enum class ZeroLabel : uint8_t {
  kRight,
  kV1AsV2,        // labelled gptq_v2, but those of a symmetric v1 module
  kV2AsV1,        // the other way round
  kNotSymmetric,  // labelled symmetric, but of neither
};

struct ZeroReading {
  uint32_t offset;  // must be added to a stored zero point, modulo 2^bits
  ZeroLabel label;
};
// How the zero points of a module are to be read, where DetectZeroConvention
// says of them `found`. For a symmetric module the data decides: files exist
// whose label contradicts their zeros, and a symmetric zero is 2^(bits-1) by
// definition.
ZeroReading ReadZeros(const GptqModule& module, bool label_says_v2,
                      ZeroConvention found);

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_GPTQ_WEIGHTS_H_
