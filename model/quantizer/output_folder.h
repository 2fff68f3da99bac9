// A folder that appears under its name when everything in it is written.
//
// What is written goes to a folder beside it, "NAME.partial", which Commit
// syncs and renames. While it is written that folder is locked: a second
// process that wants the same name is told so. A process that is killed leaves
// the folder behind without the lock, and the next one that wants the name
// takes it over, emptied.
//
// Not thread-safe.

#ifndef QUIRE_MODEL_QUANTIZER_OUTPUT_FOLDER_H_
#define QUIRE_MODEL_QUANTIZER_OUTPUT_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

class OutputFolder {
 public:
  // `path` is a new folder or an empty one; folders above it are made. Errors
  // name it: something is there already; another process writes it; it cannot
  // be renamed to (a mount point, the working folder); NAME.partial holds what
  // no interrupted run of this program has left.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Create(
      const std::string& path);
  // Removes what was written where Commit was not reached.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where the files go until then: files only, of a checkpoint's names.
  const std::string& staging() const { return staging_; }
  // Puts the folder, synced, under its name. After an error the folder can only
  // be destroyed.
  absl::Status Commit();

 private:
  OutputFolder(std::string path, std::string staging, int descriptor);

  const std::string path_;
  const std::string staging_;
  const int descriptor_;  // of staging_, which it locks
  bool committed_ = false;
};

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_OUTPUT_FOLDER_H_
