// What the rulers share: an open file, memory that direct reads can fill, and
// memory to copy to.

#ifndef QUIRE_BENCH_LOAD_BENCH_RAW_FILE_H_
#define QUIRE_BENCH_LOAD_BENCH_RAW_FILE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace quire {

class RawFile {
 public:
  // With `flags` beside O_RDONLY. kUnimplemented where the file system does not
  // know them.
  static absl::StatusOr<RawFile> Open(const std::string& path, int flags) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
      const int error = errno;
      if (fd >= 0) close(fd);
      if (error == EINVAL)
        return absl::UnimplementedError(absl::StrCat(path, ": not read so"));
      return absl::ErrnoToStatus(error, path);
    }
    return RawFile(fd, static_cast<uint64_t>(status.st_size));
  }
  RawFile(RawFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  RawFile& operator=(RawFile&&) = delete;
  ~RawFile() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  uint64_t size() const { return size_; }

 private:
  RawFile(int fd, uint64_t size) : fd_(fd), size_(size) {}
  int fd_;
  uint64_t size_;
};

// Whole pages, touched.
class ReadBuffer {
 public:
  explicit ReadBuffer(size_t size)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  ReadBuffer(ReadBuffer&& other) noexcept
      : size_(other.size_), data_(std::exchange(other.data_, MAP_FAILED)) {}
  ReadBuffer& operator=(ReadBuffer&&) = delete;
  ~ReadBuffer() {
    if (ok()) munmap(data_, size_);
  }

  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  const size_t size_;
  void* data_;
};

// Memory of a file, that nobody has touched: what the pages of the software
// device are.
class UntouchedMemory {
 public:
  explicit UntouchedMemory(uint64_t size) : size_(size) {
    const int fd = memfd_create("load_bench", MFD_CLOEXEC);
    if (fd < 0) return;
    if (ftruncate(fd, static_cast<off_t>(size)) == 0)
      data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);  // the mapping keeps it
  }
  UntouchedMemory(const UntouchedMemory&) = delete;
  UntouchedMemory& operator=(const UntouchedMemory&) = delete;
  ~UntouchedMemory() {
    if (ok()) munmap(data_, size_);
  }

  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  const uint64_t size_;
  void* data_ = MAP_FAILED;
};

}  // namespace quire

#endif  // QUIRE_BENCH_LOAD_BENCH_RAW_FILE_H_
