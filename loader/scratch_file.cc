#include "loader/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

namespace quire {

absl::StatusOr<std::unique_ptr<ScratchFile>> ScratchFile::Create(
    const std::string& folder) {
  int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  // Not every file system makes files without a name.
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string path = absl::StrCat(folder, "/quire-offload-XXXXXX");
    fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) unlink(path.c_str());
  }
  if (fd < 0)
    return absl::ErrnoToStatus(
        errno,
        absl::StrCat(Printable(folder), ": cannot make a file for weights"));
  return std::unique_ptr<ScratchFile>(new ScratchFile(folder, fd));
}

ScratchFile::ScratchFile(const std::string& folder, int fd)
    : RandomAccessFile(absl::StrCat(folder, " (a file without a name)"),
                       Bytes(0)),
      fd_(fd) {}

ScratchFile::~ScratchFile() { close(fd_); }

absl::Status ScratchFile::Append(std::span<const std::byte> bytes) {
  const uint64_t begin = end_;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd_, bytes.data() + done, bytes.size() - done,
                             static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::ErrnoToStatus(
          errno,
          absl::StrCat(display_name(), ": cannot write ", bytes.size() - done,
                       " bytes at offset ", begin + done));
    done += static_cast<size_t>(n);
  }
  // Pages that wait to be written cannot leave the cache.
  if (fdatasync(fd_) != 0)
    return absl::ErrnoToStatus(
        errno, absl::StrCat(display_name(), ": cannot write to the disk"));
  DropCache(begin, bytes.size());
  end_ = begin + bytes.size();
  return absl::OkStatus();
}

absl::Status ScratchFile::Read(uint64_t offset,
                               std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd_, out.data() + done, out.size() - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::ErrnoToStatus(
          errno,
          absl::StrCat(display_name(), ": cannot read ", out.size() - done,
                       " bytes at offset ", offset + done));
    if (n == 0)
      return absl::DataLossError(absl::StrCat(
          display_name(), ": the file ends at byte ", offset + done));
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

void ScratchFile::DropCache(uint64_t offset, uint64_t size) const {
  posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(size),
                POSIX_FADV_DONTNEED);
}

}  // namespace quire
