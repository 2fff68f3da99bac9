// A regular file of the system that is read from front to back.
//
// Knows what the file was when it was opened, so that a change while it is read
// is found, and drops the page cache behind the reader: what was copied to the
// device is not read a second time, and the cache counts towards a container's
// memory limit. Thread-safe: reads are positional and change nothing but a
// counter.

#ifndef QUIRE_LOADER_POSIX_FILE_H_
#define QUIRE_LOADER_POSIX_FILE_H_

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/random_access_file.h"

namespace quire {

// Of every disk in use: no logical block is larger.
inline constexpr uint64_t kDirectAlignment = 4096;

class PosixFile : public RandomAccessFile {
 public:
  // Errors as OpenFile's.
  static absl::StatusOr<std::unique_ptr<PosixFile>> Open(
      const std::string& path);
  ~PosixFile() override;

  FileStamp stamp() const override;
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override;
  // Fills `out` in steps and returns how many bytes there were: fewer than
  // asked for where the file ends first. A read that fails for a reason that
  // may pass, as those of a network or of a disk that is busy, is made again a
  // few times, for a quarter of a second in all. Between two steps `stop` is
  // looked at, which may be null; once it is set the result is kCancelled.
  absl::StatusOr<size_t> ReadUpTo(uint64_t offset, std::span<std::byte> out,
                                  const std::atomic<bool>* stop) const;

  // Reads pass the page cache by from here on (O_DIRECT), where the file system
  // knows how; returns whether. Offsets, sizes and memory of reads must then be
  // multiples of kDirectAlignment. REQUIRES: nobody reads.
  bool ReadDirectly();
  bool direct() const { return direct_; }

  // Reads that were made again so far.
  uint64_t retries() const { return retries_.load(std::memory_order_relaxed); }

  // Each read fetches what it asks for and no more. For large reads by several
  // threads: they keep the disk busy by themselves, and what the kernel reads
  // ahead for one of them lies in what another has read and dropped. Measured
  // on 5.7 GiB: up to 217 MiB read twice, and 376 MiB left in the cache.
  void ReadNothingAhead() const;
  // The range is not needed again: its whole pages, and the page in which it
  // begins, leave the page cache. Advice only; the kernel may keep them.
  void DropCache(uint64_t offset, uint64_t size) const override;

  // kDataLoss where the file, or what its path names, is no longer what was
  // opened: another size or time of change, or another file.
  absl::Status CheckUnchanged() const override;

 private:
  PosixFile(const std::string& path, int fd, const struct stat& opened_as);

  const int fd_;
  const FileStamp opened_as_;
  bool direct_ = false;
  mutable std::atomic<uint64_t> retries_{0};
};

}  // namespace quire

#endif  // QUIRE_LOADER_POSIX_FILE_H_
