#include "quire/loader/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "loader/random_access_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for one for ever.
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat(Printable(path), ": cannot open"));
  struct stat opened_as;
  if (fstat(fd, &opened_as) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(
        error, absl::StrCat(Printable(path), ": cannot read its size"));
  }
  if (!S_ISREG(opened_as.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(path), " is not a regular file"));
  }
  return fd;
}

absl::Status CheckRegularFile(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path));
  close(fd);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            Bytes limit) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                         OpenFile(path));
  if (file->size() > limit)
    return absl::InvalidArgumentError(absl::StrCat(
        file->display_name(), ": ", FormatBytes(file->size()),
        " is more than such a file may have, ", FormatBytes(limit)));
  std::string contents(file->size().value(), '\0');
  QUIRE_RETURN_IF_ERROR(file->Read(
      0, std::as_writable_bytes(std::span(contents.data(), contents.size()))));
  return contents;
}

}  // namespace quire
