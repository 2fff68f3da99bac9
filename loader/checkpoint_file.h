// The files of a checkpoint, told from others that have come in their place.
//
// What is read of a checkpoint is read in several steps: its index first, then
// its weights, and once more where dropped weights come back. All of them must
// find the same file.

#ifndef QUIRE_LOADER_CHECKPOINT_FILE_H_
#define QUIRE_LOADER_CHECKPOINT_FILE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/posix_file.h"
#include "loader/random_access_file.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// A file of a checkpoint that begins with a header of `header_size` bytes.
// Reads the header, a piece at a time.
absl::StatusOr<CheckpointFile> MakeCheckpointFile(const RandomAccessFile& file,
                                                  Bytes header_size);

// Opens the file, which must still be what it was when its index was read: else
// kDataLoss, with what has changed.
absl::StatusOr<std::unique_ptr<PosixFile>> OpenUnchanged(
    const CheckpointFile& expected);

// The same, and that its header still has the same bytes.
absl::Status CheckUnchanged(const CheckpointFile& expected);

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_FILE_H_
