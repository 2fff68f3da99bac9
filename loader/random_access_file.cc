#include "loader/random_access_file.h"

#include <sys/stat.h>

#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "loader/posix_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr std::string_view kGitLfsPrefix = "version https://git-lfs";

}  // namespace

RandomAccessFile::RandomAccessFile(std::string path, Bytes size)
    : path_(std::move(path)), display_name_(Printable(path_)), size_(size) {}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenFile(
    const std::string& path) {
  return PosixFile::Open(path);
}

bool IsRegularFile(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

absl::StatusOr<bool> IsGitLfsPointer(const RandomAccessFile& file) {
  std::array<char, kGitLfsPrefix.size()> start;
  if (file.size() < Bytes(start.size())) return false;
  QUIRE_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(start))));
  return std::string_view(start.data(), start.size()) == kGitLfsPrefix;
}

absl::Status GitLfsPointerError(const RandomAccessFile& file) {
  return absl::InvalidArgumentError(absl::StrCat(
      file.display_name(),
      " is a Git LFS pointer, not the file itself: run \"git lfs pull\" in its "
      "folder, or download the file again"));
}

}  // namespace quire
