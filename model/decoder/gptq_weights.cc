#include "model/decoder/gptq_weights.h"

namespace quire {

GroupedRows SortRowsByGroup(const std::vector<uint32_t>& group_of_row,
                            uint64_t groups) {
  GroupedRows rows;
  rows.begin.assign(groups + 1, 0);
  bool sorted = true;
  for (size_t row = 0; row < group_of_row.size(); ++row) {
    ++rows.begin[group_of_row[row] + 1];
    if (row > 0 && group_of_row[row] < group_of_row[row - 1]) sorted = false;
  }
  for (uint64_t g = 0; g < groups; ++g) rows.begin[g + 1] += rows.begin[g];
  if (sorted) return rows;

  std::vector<uint32_t> next(rows.begin.begin(), rows.begin.end() - 1);
  rows.order.resize(group_of_row.size());
  for (size_t row = 0; row < group_of_row.size(); ++row)
    rows.order[next[group_of_row[row]]++] = static_cast<uint32_t>(row);
  return rows;
}

ZeroReading ReadZeros(const GptqModule& module, bool label_says_v2,
                      ZeroConvention found) {
  const uint32_t by_label = label_says_v2 ? 0 : 1;
  // AWQ has one convention.
  if (!module.settings.sym || module.packing == GptqPacking::kAwq)
    return {by_label, ZeroLabel::kRight};
  switch (found) {
    case ZeroConvention::kV1:
      return {1, label_says_v2 ? ZeroLabel::kV1AsV2 : ZeroLabel::kRight};
    case ZeroConvention::kV2:
      return {0, label_says_v2 ? ZeroLabel::kRight : ZeroLabel::kV2AsV1};
    case ZeroConvention::kNeither:
      break;
  }
  return {by_label, ZeroLabel::kNotSymmetric};
}

}  // namespace quire
