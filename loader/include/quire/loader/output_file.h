// Writes whole files, with errors that name them.

#ifndef QUIRE_LOADER_OUTPUT_FILE_H_
#define QUIRE_LOADER_OUTPUT_FILE_H_

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// A file that appears under its name when it is whole: written beside it and
// renamed by Commit. What is no regular file (a pipe, /dev/null) is written
// directly; a pipe that nobody reads is an error, and not waited for.
class OutputFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(
      const std::string& path);
  // Removes what was written where Commit was not reached.
  ~OutputFile();

  absl::Status Write(const void* data, size_t size);
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string written_path, FILE* file);
  absl::Status Error(const char* what) const;

  const std::string path_;
  const std::string written_path_;  // path_ where it is written directly
  FILE* file_;
};

absl::Status WriteFile(const std::string& path, std::string_view contents);

}  // namespace quire

#endif  // QUIRE_LOADER_OUTPUT_FILE_H_
