// Tables for people.

#ifndef QUIRE_BENCH_TEXT_TABLE_H_
#define QUIRE_BENCH_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace quire {

// Columns as wide as what is in them, the first one on the left, a line per
// row. REQUIRES: rows of one length.
std::string AlignColumns(const std::vector<std::vector<std::string>>& rows);

}  // namespace quire

#endif  // QUIRE_BENCH_TEXT_TABLE_H_
