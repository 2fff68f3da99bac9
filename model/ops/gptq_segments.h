// Cuts the rows of a GPTQ linear into segments: runs of rows that share a scale
// and a zero point per column, few enough for exact integer sums.
//
// Codes are read in units of 32 rows, which are `bits` words of a column. A
// segment that begins or ends inside a unit reads the whole unit and has zero
// activations for the rows that are not its own, so no group boundary needs
// code of its own.

#ifndef QUIRE_MODEL_OPS_GPTQ_SEGMENTS_H_
#define QUIRE_MODEL_OPS_GPTQ_SEGMENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/model/ops.h"

namespace quire {

inline constexpr size_t kUnitRows = 32;
// 128 is the common group size. Larger groups are cut: activations are rounded
// relative to the largest of their segment, and sums must fit in 32 bits.
inline constexpr size_t kSegmentRows = 128;

struct GptqSegment {
  size_t group;
  size_t begin, end;  // rows
  size_t first_unit;  // of qweight
  size_t units;
  size_t input_unit;  // units of all segments before this one
};

// In the order of the rows; segments end at multiples of kSegmentRows and at
// the ends of groups. Groups without rows have none.
inline std::vector<GptqSegment> CutIntoSegments(const GptqMatrix& weight) {
  std::vector<GptqSegment> segments;
  segments.reserve(weight.groups + weight.in_features / kSegmentRows + 1);
  size_t input_unit = 0;
  for (size_t g = 0; g < weight.groups; ++g) {
    const size_t group_end = weight.group_begin[g + 1];
    for (size_t begin = weight.group_begin[g]; begin < group_end;) {
      const size_t cut = (begin / kSegmentRows + 1) * kSegmentRows;
      const size_t end = cut < group_end ? cut : group_end;
      const size_t first_unit = begin / kUnitRows;
      const size_t units = (end - 1) / kUnitRows + 1 - first_unit;
      segments.push_back({g, begin, end, first_unit, units, input_unit});
      input_unit += units;
      begin = end;
    }
  }
  return segments;
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_GPTQ_SEGMENTS_H_
