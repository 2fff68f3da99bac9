#include "model/decoder/gptq_weights.h"

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

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

uint32_t ZeroOffset(const GptqModule& module, bool label_says_v2,
                    const uint32_t* qzeros,
                    std::optional<std::string>* warning) {
  const uint32_t by_label = label_says_v2 ? 0 : 1;
  // AWQ has one convention.
  if (!module.settings.sym || module.packing == GptqPacking::kAwq)
    return by_label;
  switch (DetectZeroConvention(qzeros, module.groups, module.out_features,
                               module.settings.bits)) {
    case ZeroConvention::kV1:
      if (label_says_v2)
        *warning =
            absl::StrCat(Printable(module.name),
                         ": labelled gptq_v2, but its zero points are those of "
                         "a symmetric v1 module; read as v1");
      return 1;
    case ZeroConvention::kV2:
      if (!label_says_v2)
        *warning =
            absl::StrCat(Printable(module.name),
                         ": labelled gptq (v1), but its zero points are those "
                         "of a symmetric v2 module; read as v2");
      return 0;
    case ZeroConvention::kNeither:
      *warning = absl::StrCat(
          module.name,
          ": labelled symmetric, but its zero points are not; read as stored");
      return by_label;
  }
  return by_label;
}

}  // namespace quire
