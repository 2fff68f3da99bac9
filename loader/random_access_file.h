// A file that is read by position.
//
// Files are read with pread and never mapped: a mapped file that becomes
// shorter kills the reader, a short read is an error that can be reported.
// Sizes and offsets are 64 bits wide. Thread-safe: reading changes no state.

#ifndef QUIRE_LOADER_RANDOM_ACCESS_FILE_H_
#define QUIRE_LOADER_RANDOM_ACCESS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"

namespace quire {

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // As it was given, for opening again. In messages: display_name().
  const std::string& path() const { return path_; }
  // The path, fit for a message.
  const std::string& display_name() const { return display_name_; }
  // When it was opened.
  Bytes size() const { return size_; }
  // What it was when it was opened. What lies in no file system has a size
  // only.
  virtual FileStamp stamp() const { return {.size = size_}; }

  // Fills `out` whole or fails: kDataLoss where the file ends before.
  virtual absl::Status Read(uint64_t offset,
                            std::span<std::byte> out) const = 0;
  // The range is not needed again soon: what the system keeps of it in memory
  // may go.
  virtual void DropCache(uint64_t /*offset*/, uint64_t /*size*/) const {}
  // kDataLoss where the file is no longer what was opened.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }

 protected:
  RandomAccessFile(std::string path, Bytes size);

 private:
  std::string path_;
  std::string display_name_;
  Bytes size_;
};

// A regular file. Errors name the path: kNotFound, kPermissionDenied,
// kInvalidArgument for folders, pipes and devices.
absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenFile(
    const std::string& path);

// Whether `path` is, or links to, a regular file.
bool IsRegularFile(const std::string& path);

// Whether the file is the small text that Git LFS leaves in place of a file
// that was not downloaded, and what to say then.
absl::StatusOr<bool> IsGitLfsPointer(const RandomAccessFile& file);
absl::Status GitLfsPointerError(const RandomAccessFile& file);

}  // namespace quire

#endif  // QUIRE_LOADER_RANDOM_ACCESS_FILE_H_
