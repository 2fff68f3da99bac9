#include "bench/serving/trace_lines.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/regular_file.h"

namespace quire {

absl::StatusOr<TraceLines> TraceLines::Open(const std::string& path) {
  QUIRE_RETURN_IF_ERROR(CheckRegularFile(path));
  TraceLines lines(path);
  if (!lines.file_)
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return lines;
}

bool TraceLines::Next() {
  if (!std::getline(file_, text_)) return false;
  ++line_;
  // What some editors begin UTF-8 with.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (line_ == 1 && text_.starts_with(kByteOrderMark)) {
    text_.erase(0, kByteOrderMark.size());
  }
  if (!text_.empty() && text_.back() == '\r') text_.pop_back();
  return true;
}

absl::Status TraceLines::Error(const std::string& what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ":", line_, ": ", what));
}

absl::StatusOr<std::vector<std::string>> TraceLines::Fields(
    size_t count) const {
  std::vector<std::string> fields = absl::StrSplit(text_, ',');
  if (fields.size() != count)
    return Error(absl::StrCat(fields.size(), " fields instead of ", count));
  return fields;
}

absl::StatusOr<double> TraceLines::Number(const std::string& field) const {
  double number = 0;
  if (!absl::SimpleAtod(field, &number) || !std::isfinite(number) || number < 0)
    return Error(absl::StrCat("'", field, "' is no number from 0 on"));
  return number;
}

absl::StatusOr<uint64_t> TraceLines::Length(const std::string& field) const {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(field, &number) || number == 0 ||
      number > uint64_t{1} << 32)
    return Error(absl::StrCat("'", field, "' is no number of tokens"));
  return number;
}

absl::StatusOr<double> TraceLines::Timestamp(const std::string& field) const {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  unsigned hour = 0;
  unsigned minute = 0;
  double second = 0;
  const int read = std::sscanf(field.c_str(), "%4d-%2u-%2u %2u:%2u:%lf", &year,
                               &month, &day, &hour, &minute, &second);
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(month),
                                         std::chrono::day(day)};
  if (read != 6 || !date.ok() || hour > 23 || minute > 59 ||
      !(second >= 0 && second < 61))
    return Error(absl::StrCat("'", field, "' is no time"));
  const auto days = std::chrono::sys_days(date).time_since_epoch();
  return static_cast<double>(days.count()) * 86400 + hour * 3600.0 +
         minute * 60.0 + second;
}

}  // namespace quire
