#include "loader/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quote.h"

namespace quire {
namespace {

constexpr std::string_view kGitLfsPrefix = "version https://git-lfs";

class PosixFile : public RandomAccessFile {
 public:
  PosixFile(std::string path, Bytes size, int fd)
      : RandomAccessFile(std::move(path), size), fd_(fd) {}
  ~PosixFile() override { close(fd_); }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      if (offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()))
        return absl::OutOfRangeError(
            absl::StrCat(display_name(), ": no file has a byte ", offset));
      const ssize_t n =
          pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        return absl::ErrnoToStatus(
            errno, absl::StrCat(display_name(), ": cannot read ", out.size(),
                                " bytes at offset ", offset));
      if (n == 0)
        return absl::DataLossError(absl::StrCat(
            display_name(), ": the file ends at byte ", offset, ", ",
            out.size(),
            " bytes early: it became shorter while it was being read"));
      out = out.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
};

}  // namespace

RandomAccessFile::RandomAccessFile(std::string path, Bytes size)
    : path_(std::move(path)), display_name_(Printable(path_)), size_(size) {}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenFile(
    const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for one for ever.
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat(Printable(path), ": cannot open"));
  struct stat status;
  if (fstat(fd, &status) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(
        error, absl::StrCat(Printable(path), ": cannot read its size"));
  }
  if (!S_ISREG(status.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(path), " is not a regular file"));
  }
  return std::make_unique<PosixFile>(
      path, Bytes(static_cast<uint64_t>(status.st_size)), fd);
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
