#include "bench/text_table.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace quire {

std::string AlignColumns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      if (i == 0) {
        absl::StrAppendFormat(&text, "%-*s", width, row[i]);
      } else {
        absl::StrAppendFormat(&text, "  %*s", width, row[i]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace quire
