// Lines of a trace file, and the fields on them, with errors that say where.

#ifndef QUIRE_BENCH_SERVING_TRACE_LINES_H_
#define QUIRE_BENCH_SERVING_TRACE_LINES_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

class TraceLines {
 public:
  static absl::StatusOr<TraceLines> Open(const std::string& path);

  // The next line, without its end; false at the end of the file.
  bool Next();
  const std::string& text() const { return text_; }
  // kInvalidArgument for this line: "FILE:LINE: what".
  absl::Status Error(const std::string& what) const;

  // The fields between commas. Error: another number of them.
  absl::StatusOr<std::vector<std::string>> Fields(size_t count) const;
  // Errors: no number, or one that is negative or not finite.
  absl::StatusOr<double> Number(const std::string& field) const;
  // From 1 to 2^32: tokens.
  absl::StatusOr<uint64_t> Length(const std::string& field) const;
  // "2023-11-16 18:15:46.6805900", in seconds since 1970.
  absl::StatusOr<double> Timestamp(const std::string& field) const;

 private:
  explicit TraceLines(const std::string& path)
      : path_(path), file_(path, std::ios::binary) {}

  std::string path_;
  std::ifstream file_;
  std::string text_;
  uint64_t line_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_TRACE_LINES_H_
