// Comma-separated values: lines with a header, read field by field with errors
// that name line and column.
//
// Fields may be quoted as in RFC 4180, but not span lines. Lines end with LF or
// CR LF; empty ones are passed over.

#ifndef QUIRE_ALLOC_CSV_H_
#define QUIRE_ALLOC_CSV_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

class CsvReader {
 public:
  // Reads the header. `contents` must outlive the reader. Errors: no header, a
  // column that occurs twice.
  static absl::StatusOr<CsvReader> Create(std::string_view contents);

  const std::vector<std::string>& columns() const { return columns_; }
  // The position of a column, where there is one.
  std::optional<size_t> Find(std::string_view column) const;

  // The next line; false at the end. Errors: a number of fields other than that
  // of columns, a quote that does not close.
  absl::StatusOr<bool> Next();

  // ---- Of the line that Next read ----
  // REQUIRES: column < columns().size().
  const std::string& Text(size_t column) const { return fields_[column]; }
  // Decimal digits and nothing else.
  absl::StatusOr<uint64_t> Number(size_t column) const;
  // "line 7, column "bytes": "12x" <what>".
  absl::Status FieldError(size_t column, std::string_view what) const;
  // "line 7: <what>".
  absl::Status LineError(std::string_view what) const;

 private:
  explicit CsvReader(std::string_view contents) : rest_(contents) {}
  std::optional<std::string_view> NextLine();
  absl::Status Split(std::string_view line, std::vector<std::string>* fields);

  std::string_view rest_;
  uint64_t line_ = 0;
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;
};

// Decimal or, behind 0x, hexadecimal digits and nothing else; nullopt where it
// is not or does not fit.
std::optional<uint64_t> ParseUnsigned(std::string_view text);

// `text` as one field: quoted where it must be. Line ends become spaces.
std::string CsvField(std::string_view text);

}  // namespace quire

#endif  // QUIRE_ALLOC_CSV_H_
