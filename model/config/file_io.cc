#include "model/config/file_io.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

struct FileCloser {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, FileCloser>;

absl::Status FileError(const std::string& path, const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return FileError(path, "cannot open");
  std::string contents;
  std::vector<char> buffer(1 << 16);
  while (const size_t n =
             std::fread(buffer.data(), 1, buffer.size(), file.get()))
    contents.append(buffer.data(), n);
  if (std::ferror(file.get()) != 0) return FileError(path, "cannot read");
  return contents;
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  File file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return FileError(path, "cannot open for writing");
  if (std::fwrite(contents.data(), 1, contents.size(), file.get()) !=
      contents.size())
    return FileError(path, "cannot write");
  if (std::fclose(file.release()) != 0) return FileError(path, "cannot write");
  return absl::OkStatus();
}

}  // namespace quire
