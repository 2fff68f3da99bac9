// Pages in a file without a name.
//
// Two pinned buffers, each with a stream: while the device copies from or to
// one, the file takes or gives the other. The page cache would keep on the host
// what the caller wanted off it, so what was written is waited for one buffer
// later and dropped there.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/copy_streams.h"
#include "alloc/page_archive.h"
#include "alloc/pinned_memory.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr Bytes kBufferSize = MiB(16);

class FilePageArchive final : public PageArchive {
 public:
  FilePageArchive(const ArchiveContext& context, const std::string& folder)
      : context_(context), folder_(folder) {}
  ~FilePageArchive() override {
    if (fd_ >= 0) close(fd_);
    context_.use->disk -= held_;
  }

  absl::Status Save(std::span<const ArchivedPage> pages);
  absl::Status Load(std::span<const ArchivePlacement> pages) override;
  void Drop(uint64_t place) override {
    // Where the file system knows no holes, the space comes with the end of the
    // archive.
    (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    OffsetOf(place), OffsetOf(1));
    held_ -= page_bytes();
    context_.use->disk -= page_bytes();
  }

 private:
  using Buffers = std::array<PinnedMemory, CopyStreams::kCount>;

  uint64_t page_bytes() const { return context_.page_size.value(); }
  off_t OffsetOf(uint64_t place) const {
    return static_cast<off_t>(place * page_bytes());
  }
  absl::Status Error(int error, const std::string& what) const {
    const absl::Status status = absl::ErrnoToStatus(
        error, absl::StrCat(what, " the sleeping pages' file in ",
                            Printable(folder_)));
    switch (error) {
      // What the folder does not allow is no lack of device memory, which
      // others would try to end, and no wrong argument.
      case EACCES:
      case EDQUOT:
      case EFBIG:
      case ENOSPC:
      case EPERM:
      case EROFS:
        return absl::FailedPreconditionError(status.message());
      default:
        return status;
    }
  }
  // What there is, for errors.
  std::string DescribeRoom() const;
  absl::Status Open(uint64_t size);
  absl::StatusOr<Buffers> MakeBuffers(uint64_t pages) const;
  // The pages [first, end) are in `buffer`.
  absl::Status Write(const std::byte* buffer, uint64_t first, uint64_t end);
  absl::Status Read(std::byte* buffer, uint64_t place, uint64_t count) const;
  // Waits until what was written is on the disk, and leaves none in memory.
  absl::Status Flush(uint64_t first, uint64_t end) const;

  const ArchiveContext context_;
  const std::string folder_;
  int fd_ = -1;
  std::atomic<uint64_t> held_{0};
};

std::string FilePageArchive::DescribeRoom() const {
  struct statvfs there = {};
  if (fstatvfs(fd_, &there) != 0) return "";
  const auto free = CheckedMultiply(there.f_bavail, there.f_frsize);
  return absl::StrCat(" (", FormatBytes(Bytes(free.value_or(UINT64_MAX))),
                      " are free there)");
}

absl::Status FilePageArchive::Open(uint64_t size) {
  fd_ = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string path = absl::StrCat(folder_, "/quire-sleep-XXXXXX");
    fd_ = mkostemp(path.data(), O_CLOEXEC);
    if (fd_ >= 0) unlink(path.c_str());
  }
  if (fd_ < 0) return Error(errno, "to make");
  // A disk that is full says so before anything was copied.
  int reserved = 0;
  do {
    reserved = fallocate(fd_, 0, 0, static_cast<off_t>(size));
  } while (reserved != 0 && errno == EINTR);
  if (reserved != 0 && errno != EOPNOTSUPP) {
    const int error = errno;
    return Error(error, absl::StrCat("to get ", FormatBytes(Bytes(size)),
                                     DescribeRoom(), " for"));
  }
  held_ = size;
  context_.use->disk += size;
  return absl::OkStatus();
}

absl::StatusOr<FilePageArchive::Buffers> FilePageArchive::MakeBuffers(
    uint64_t pages) const {
  Buffers buffers;
  for (PinnedMemory& buffer : buffers) {
    QUIRE_ASSIGN_OR_RETURN(
        buffer,
        PinnedMemory::Allocate(context_.driver, Bytes(pages * page_bytes())));
  }
  return buffers;
}

absl::Status FilePageArchive::Write(const std::byte* buffer, uint64_t first,
                                    uint64_t end) {
  const uint64_t size = (end - first) * page_bytes();
  for (uint64_t done = 0; done < size;) {
    const ssize_t written = pwrite(fd_, buffer + done, size - done,
                                   OffsetOf(first) + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      return Error(error,
                   absl::StrCat("to write ", FormatBytes(Bytes(size - done)),
                                DescribeRoom(), " to"));
    }
    done += static_cast<uint64_t>(written);
  }
  // Begins; Flush waits.
  (void)sync_file_range(fd_, OffsetOf(first), static_cast<off_t>(size),
                        SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

absl::Status FilePageArchive::Flush(uint64_t first, uint64_t end) const {
  if (first == end) return absl::OkStatus();
  const off_t size = OffsetOf(end - first);
  if (sync_file_range(fd_, OffsetOf(first), size,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                          SYNC_FILE_RANGE_WAIT_AFTER) != 0 &&
      errno != ENOSYS && errno != ESPIPE && errno != EINVAL) {
    return Error(errno, "to write");
  }
  (void)posix_fadvise(fd_, OffsetOf(first), size, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

absl::Status FilePageArchive::Read(std::byte* buffer, uint64_t place,
                                   uint64_t count) const {
  const uint64_t size = count * page_bytes();
  for (uint64_t done = 0; done < size;) {
    const ssize_t read = pread(fd_, buffer + done, size - done,
                               OffsetOf(place) + static_cast<off_t>(done));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return Error(errno, "to read");
    if (read == 0) {
      return absl::DataLossError(absl::StrCat(
          "the sleeping pages' file in ", folder_, " ends at byte ",
          place * page_bytes() + done, ", before page ", place + count));
    }
    done += static_cast<uint64_t>(read);
  }
  (void)posix_fadvise(fd_, OffsetOf(place), OffsetOf(count),
                      POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

absl::Status FilePageArchive::Save(std::span<const ArchivedPage> pages) {
  QUIRE_RETURN_IF_ERROR(Open(pages.size() * page_bytes()));
  const uint64_t batch = std::min<uint64_t>(
      PagesPerPiece(kBufferSize, context_.page_size), pages.size());
  QUIRE_ASSIGN_OR_RETURN(const Buffers buffers, MakeBuffers(batch));
  CopyStreams streams(context_.driver);
  QUIRE_RETURN_IF_ERROR(streams.Open(context_.device));
  struct Filled {
    uint64_t first = 0;
    uint64_t end = 0;
  };
  std::array<Filled, CopyStreams::kCount> filled;
  Filled written;
  const auto write_out = [&](size_t i) -> absl::Status {
    Filled& buffer = filled[i % CopyStreams::kCount];
    if (buffer.first == buffer.end) return absl::OkStatus();
    QUIRE_RETURN_IF_ERROR(streams.Synchronize(i));
    QUIRE_RETURN_IF_ERROR(Write(buffers[i % CopyStreams::kCount].data(),
                                buffer.first, buffer.end));
    QUIRE_RETURN_IF_ERROR(Flush(written.first, written.end));
    written = std::exchange(buffer, Filled());
    return absl::OkStatus();
  };
  size_t turn = 0;
  for (uint64_t first = 0; first < pages.size(); first += batch, ++turn) {
    QUIRE_RETURN_IF_ERROR(write_out(turn));
    const uint64_t end = std::min<uint64_t>(first + batch, pages.size());
    QUIRE_RETURN_IF_ERROR(CopyPagesToHost(
        context_, pages.subspan(first, end - first),
        buffers[turn % CopyStreams::kCount].data(), streams.at(turn)));
    filled[turn % CopyStreams::kCount] = {first, end};
  }
  for (size_t i = 0; i < CopyStreams::kCount; ++i) {
    QUIRE_RETURN_IF_ERROR(write_out(turn + i));
  }
  QUIRE_RETURN_IF_ERROR(Flush(written.first, written.end));
  // Says of every write that has failed since, wherever it was waited for.
  return fdatasync(fd_) == 0 ? absl::OkStatus() : Error(errno, "to write");
}

absl::Status FilePageArchive::Load(std::span<const ArchivePlacement> pages) {
  const uint64_t batch = std::min<uint64_t>(
      PagesPerPiece(kBufferSize, context_.page_size), pages.size());
  QUIRE_ASSIGN_OR_RETURN(const Buffers buffers, MakeBuffers(batch));
  CopyStreams streams(context_.driver);
  QUIRE_RETURN_IF_ERROR(streams.Open(context_.device));
  size_t turn = 0;
  for (size_t first = 0; first < pages.size(); first += batch, ++turn) {
    // What was in the buffer has arrived.
    QUIRE_RETURN_IF_ERROR(streams.Synchronize(turn));
    const size_t end = std::min<size_t>(first + batch, pages.size());
    std::byte* const buffer = buffers[turn % CopyStreams::kCount].data();
    const auto memory_of = [&](size_t i) {
      return buffer + (i - first) * page_bytes();
    };
    for (size_t at = first; at < end;) {
      const size_t run_end = EndOfRun(at, end, [&](size_t i) {
        return pages[i].place == pages[i - 1].place + 1;
      });
      QUIRE_RETURN_IF_ERROR(Read(memory_of(at), pages[at].place, run_end - at));
      at = run_end;
    }
    for (size_t at = first; at < end;) {
      const size_t run_end = EndOfAddresses(pages, at, end, context_.page_size);
      QUIRE_RETURN_IF_ERROR(context_.driver->CopyToDevice(
          pages[at].address, memory_of(at),
          Bytes((run_end - at) * page_bytes()), streams.at(turn)));
      at = run_end;
    }
  }
  return streams.Synchronize();
}

}  // namespace

absl::StatusOr<std::shared_ptr<PageArchive>> SaveToDisk(
    const ArchiveContext& context, std::span<const ArchivedPage> pages,
    const std::string& folder) {
  auto archive = std::make_shared<FilePageArchive>(context, folder);
  QUIRE_RETURN_IF_ERROR(archive->Save(pages));
  return archive;
}

}  // namespace quire
