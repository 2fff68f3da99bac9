#include "alloc/csv.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// What is shown of a field in an error: files may hold anything.
std::string Shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string shown(text.substr(0, kMost));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 ||
        static_cast<unsigned char>(c) >= 0x7f) {
      c = '?';
    }
  }
  return absl::StrCat("\"", shown, text.size() > kMost ? "...\"" : "\"");
}

std::optional<uint64_t> ParseDigits(std::string_view digits, int base) {
  uint64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, number, base);
  if (digits.empty() || error != std::errc() || at != end) return std::nullopt;
  return number;
}

}  // namespace

absl::StatusOr<CsvReader> CsvReader::Create(std::string_view contents) {
  CsvReader reader(contents);
  const std::optional<std::string_view> header = reader.NextLine();
  if (!header) return absl::InvalidArgumentError("there is no header line");
  QUIRE_RETURN_IF_ERROR(reader.Split(*header, &reader.columns_));
  for (size_t i = 0; i < reader.columns_.size(); ++i) {
    if (*reader.Find(reader.columns_[i]) != i) {
      return reader.LineError(absl::StrCat(
          "the column ", Shown(reader.columns_[i]), " occurs twice"));
    }
  }
  return reader;
}

std::optional<size_t> CsvReader::Find(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) return std::nullopt;
  return static_cast<size_t>(found - columns_.begin());
}

std::optional<std::string_view> CsvReader::NextLine() {
  while (!rest_.empty()) {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) return line;
  }
  return std::nullopt;
}

absl::Status CsvReader::Split(std::string_view line,
                              std::vector<std::string>* fields) {
  fields->clear();
  for (;;) {
    std::string field;
    size_t at = 0;
    if (!line.empty() && line[0] == '"') {
      for (at = 1;; ++at) {
        if (at >= line.size()) return LineError("a quote does not close");
        if (line[at] != '"') {
          field += line[at];
        } else if (at + 1 < line.size() && line[at + 1] == '"') {
          field += '"';
          ++at;
        } else {
          break;
        }
      }
      ++at;
      if (at < line.size() && line[at] != ',') {
        return LineError("there is text behind a quoted field");
      }
    } else {
      at = std::min(line.find(','), line.size());
      field = std::string(line.substr(0, at));
    }
    fields->push_back(std::move(field));
    if (at == line.size()) return absl::OkStatus();
    line.remove_prefix(at + 1);
  }
}

absl::StatusOr<bool> CsvReader::Next() {
  const std::optional<std::string_view> line = NextLine();
  if (!line) return false;
  QUIRE_RETURN_IF_ERROR(Split(*line, &fields_));
  if (fields_.size() != columns_.size()) {
    return LineError(absl::StrCat("has ", fields_.size(),
                                  " fields, and the header has ",
                                  columns_.size()));
  }
  return true;
}

absl::StatusOr<uint64_t> CsvReader::Number(size_t column) const {
  if (const auto number = ParseDigits(Text(column), 10)) return *number;
  return FieldError(column, "is not a number below 2^64");
}

absl::Status CsvReader::FieldError(size_t column, std::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line_, ", column ", Shown(columns_[column]), ": ",
                   Shown(Text(column)), " ", std::string(what)));
}

absl::Status CsvReader::LineError(std::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line_, ": ", std::string(what)));
}

std::optional<uint64_t> ParseUnsigned(std::string_view text) {
  if (text.substr(0, 2) == "0x") return ParseDigits(text.substr(2), 16);
  return ParseDigits(text, 10);
}

std::string CsvField(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) {
    if (c == '"') field += '"';
    field += c == '\n' || c == '\r' ? ' ' : c;
  }
  return field + "\"";
}

}  // namespace quire
