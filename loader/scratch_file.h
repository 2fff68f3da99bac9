// A file without a name, for what this process alone writes and reads again: it
// goes with the process, however that ends.
//
// What was written is on the disk, and out of memory, when Append returns. One
// thread appends; any may read what was appended before.

#ifndef QUIRE_LOADER_SCRATCH_FILE_H_
#define QUIRE_LOADER_SCRATCH_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/random_access_file.h"

namespace quire {

class ScratchFile : public RandomAccessFile {
 public:
  // Errors name the folder.
  static absl::StatusOr<std::unique_ptr<ScratchFile>> Create(
      const std::string& folder);
  ~ScratchFile() override;

  absl::Status Append(std::span<const std::byte> bytes);
  // Bytes appended so far.
  uint64_t end() const { return end_; }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override;
  void DropCache(uint64_t offset, uint64_t size) const override;

 private:
  ScratchFile(const std::string& folder, int fd);

  const int fd_;
  uint64_t end_ = 0;
};

}  // namespace quire

#endif  // QUIRE_LOADER_SCRATCH_FILE_H_
