// Which convention of zero points a symmetric module was written with.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "loader/packed_words.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

// Words of a row of qzeros with `code` in every one of `columns` fields, and
// zeros behind them: one little-endian bit string.
std::vector<uint32_t> UniformRow(uint32_t code, uint64_t columns, int bits) {
  std::vector<uint32_t> row(CeilDivide(columns * bits, kWordBits), 0);
  for (uint64_t column = 0; column < columns; ++column) {
    const uint64_t first_bit = column * static_cast<uint64_t>(bits);
    const uint64_t shifted = uint64_t{code} << (first_bit % kWordBits);
    const uint64_t word = first_bit / kWordBits;
    row[word] |= static_cast<uint32_t>(shifted);
    if (const auto high = static_cast<uint32_t>(shifted >> kWordBits);
        high != 0)
      row[word + 1] |= high;
  }
  return row;
}

}  // namespace

ZeroConvention DetectZeroConvention(const uint32_t* words, uint64_t groups,
                                    uint64_t out_features, int bits) {
  if (groups == 0 || out_features == 0) return ZeroConvention::kNeither;
  const uint32_t middle = uint32_t{1} << (bits - 1);
  // What stands behind the last column is not looked at.
  const std::vector<uint32_t> mask =
      UniformRow((uint32_t{1} << bits) - 1, out_features, bits);
  const auto all_rows_are = [&](const std::vector<uint32_t>& row) {
    for (uint64_t group = 0; group < groups; ++group) {
      const uint32_t* const stored = words + group * row.size();
      for (size_t i = 0; i < row.size(); ++i)
        if ((stored[i] & mask[i]) != row[i]) return false;
    }
    return true;
  };
  if (all_rows_are(UniformRow(middle - 1, out_features, bits)))
    return ZeroConvention::kV1;
  if (all_rows_are(UniformRow(middle, out_features, bits)))
    return ZeroConvention::kV2;
  return ZeroConvention::kNeither;
}

uint64_t CountWrappedZeros(const uint32_t* words, uint64_t groups,
                           uint64_t out_features, int bits) {
  const auto width = static_cast<uint64_t>(bits);
  const uint64_t row_words = CeilDivide(out_features * width, kWordBits);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t count = 0;
  for (uint64_t group = 0; group < groups; ++group) {
    const uint32_t* const row = words + group * row_words;
    for (uint64_t column = 0; column < out_features; ++column) {
      const uint64_t word = column * width / kWordBits;
      uint64_t field = row[word];
      if (word + 1 < row_words) field |= uint64_t{row[word + 1]} << kWordBits;
      if ((field >> (column * width % kWordBits) & mask) == mask) ++count;
    }
  }
  return count;
}

}  // namespace quire
