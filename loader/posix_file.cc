#include "loader/posix_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

// Small enough that a stop is seen within a fraction of a second on a slow
// disk, large enough that the calls cost nothing.
constexpr size_t kReadStep = size_t{4} << 20;

// No system's pages are smaller, and the kernel keeps what it cannot drop
// whole.
constexpr uint64_t kCachePage = 4096;

// Before attempt 2, 3, ...: four times the one before, until none is left.
constexpr auto kFirstPause = std::chrono::milliseconds(10);
constexpr int kMaxAttempts = 4;

// Whether the same read may succeed later. A disk that has lost a sector says
// EIO for good, a file system over a network for a while: both are tried.
bool MayPass(int error) {
  switch (error) {
    case EAGAIN:
    case EBUSY:
    case ECONNRESET:
    case EIO:
    case ENOBUFS:
    case ENOMEM:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

constexpr auto kMaxOffset =
    static_cast<uint64_t>(std::numeric_limits<off_t>::max());

FileStamp StampOf(const struct stat& status) {
  constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = Bytes(static_cast<uint64_t>(status.st_size)),
          .modified_nanoseconds =
              int64_t{status.st_mtim.tv_sec} * kNanosecondsPerSecond +
              status.st_mtim.tv_nsec};
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
      opened_as_(StampOf(opened_as)) {}

PosixFile::~PosixFile() { close(fd_); }

FileStamp PosixFile::stamp() const { return opened_as_; }

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
  int attempts = 0;  // without a byte
  auto pause = kFirstPause;
  while (done < out.size()) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed))
      return absl::CancelledError(
          absl::StrCat(display_name(), ": the reading was stopped"));
    const size_t step = std::min(kReadStep, out.size() - done);
    const ssize_t n =
        pread(fd_, out.data() + done, step, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && MayPass(errno) && ++attempts < kMaxAttempts) {
      retries_.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::sleep_for(pause);
      pause *= 4;
      continue;
    }
    if (n < 0)
      return absl::ErrnoToStatus(
          errno, absl::StrCat(display_name(), ": cannot read ", step,
                              " bytes at offset ", offset + done));
    if (n == 0) break;
    attempts = 0;
    pause = kFirstPause;
    done += static_cast<size_t>(n);
    // No read can begin there: it is where the file ends.
    if (direct_ && static_cast<size_t>(n) % kDirectAlignment != 0) break;
  }
  return done;
}

bool PosixFile::ReadDirectly() {
  const int flags = fcntl(fd_, F_GETFL);
  direct_ = flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
  return direct_;
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
  struct stat status;
  if (fstat(fd_, &status) != 0)
    return absl::ErrnoToStatus(
        errno, absl::StrCat(display_name(), ": cannot read its size"));
  const FileStamp now = StampOf(status);
  if (now.size != opened_as_.size)
    return absl::DataLossError(absl::StrCat(
        display_name(),
        ": the file was changed while it was being read: it had ",
        opened_as_.size.value(), " bytes and has ", now.size.value()));
  if (now != opened_as_)
    return absl::DataLossError(absl::StrCat(
        display_name(), ": the file was written to while it was being read"));
  if (::stat(path().c_str(), &status) != 0 ||
      status.st_ino != opened_as_.inode || status.st_dev != opened_as_.device)
    return absl::DataLossError(
        absl::StrCat(display_name(),
                     ": the file was replaced or removed while it was being "
                     "read"));
  return absl::OkStatus();
}

}  // namespace quire
