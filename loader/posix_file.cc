#include "loader/posix_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/loader/quote.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

// Small enough that a stop is seen within a fraction of a second on a slow
// disk, large enough that the calls cost nothing.
constexpr size_t kReadStep = size_t{4} << 20;

// No system's pages are smaller, and the kernel keeps what it cannot drop
// whole.
constexpr uint64_t kCachePage = 4096;

constexpr auto kMaxOffset =
    static_cast<uint64_t>(std::numeric_limits<off_t>::max());

bool SameTime(const struct timespec& a, const struct timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PosixFile>> PosixFile::Open(
    const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path));
  struct stat opened_as;
  if (fstat(fd, &opened_as) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(
        error, absl::StrCat(Printable(path), ": cannot read its size"));
  }
  return std::unique_ptr<PosixFile>(new PosixFile(path, fd, opened_as));
}

PosixFile::PosixFile(const std::string& path, int fd,
                     const struct stat& opened_as)
    : RandomAccessFile(path, Bytes(static_cast<uint64_t>(opened_as.st_size))),
      fd_(fd),
      opened_as_(opened_as) {}

PosixFile::~PosixFile() { close(fd_); }

absl::Status PosixFile::Read(uint64_t offset, std::span<std::byte> out) const {
  QUIRE_ASSIGN_OR_RETURN(const size_t got, ReadUpTo(offset, out, nullptr));
  if (got == out.size()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(display_name(), ": the file ends at byte ", offset + got,
                   ", ", out.size() - got,
                   " bytes early: it became shorter while it was being read"));
}

absl::StatusOr<size_t> PosixFile::ReadUpTo(
    uint64_t offset, std::span<std::byte> out,
    const std::atomic<bool>* stop) const {
  if (offset > kMaxOffset || out.size() > kMaxOffset - offset)
    return absl::OutOfRangeError(absl::StrCat(
        display_name(), ": no file has a byte ", kMaxOffset, " or beyond"));
  size_t done = 0;
  while (done < out.size()) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed))
      return absl::CancelledError(
          absl::StrCat(display_name(), ": the reading was stopped"));
    const size_t step = std::min(kReadStep, out.size() - done);
    const ssize_t n =
        pread(fd_, out.data() + done, step, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::ErrnoToStatus(
          errno, absl::StrCat(display_name(), ": cannot read ", step,
                              " bytes at offset ", offset + done));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void PosixFile::ReadNothingAhead() const {
  // To the kernel, an order that cannot be guessed.
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
}

void PosixFile::DropCache(uint64_t offset, uint64_t size) const {
  // The page in which a range begins was left by the range before it, so it
  // goes with this one.
  const uint64_t begin = offset - offset % kCachePage;
  posix_fadvise(fd_, static_cast<off_t>(begin),
                static_cast<off_t>(offset + size - begin), POSIX_FADV_DONTNEED);
}

absl::Status PosixFile::CheckUnchanged() const {
  struct stat now;
  if (fstat(fd_, &now) != 0)
    return absl::ErrnoToStatus(
        errno, absl::StrCat(display_name(), ": cannot read its size"));
  if (now.st_size != opened_as_.st_size)
    return absl::DataLossError(
        absl::StrCat(display_name(),
                     ": the file was changed while it was being read: it had ",
                     opened_as_.st_size, " bytes and has ", now.st_size));
  if (!SameTime(now.st_mtim, opened_as_.st_mtim))
    return absl::DataLossError(absl::StrCat(
        display_name(), ": the file was written to while it was being read"));
  if (stat(path().c_str(), &now) != 0 || now.st_ino != opened_as_.st_ino ||
      now.st_dev != opened_as_.st_dev)
    return absl::DataLossError(
        absl::StrCat(display_name(),
                     ": the file was replaced or removed while it was being "
                     "read"));
  return absl::OkStatus();
}

}  // namespace quire
