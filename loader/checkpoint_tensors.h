// The tensors of a checkpoint that consists of one or several safetensors
// files.

#ifndef QUIRE_LOADER_CHECKPOINT_TENSORS_H_
#define QUIRE_LOADER_CHECKPOINT_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/weight_files.h"
#include "quire/loader/checkpoint.h"

namespace quire {

struct CheckpointTensors {
  std::vector<CheckpointFile> files;
  std::vector<TensorInfo> tensors;  // by file, then by offset
  std::vector<std::string> warnings;
};

// Reads the headers of all `weights`. With an index a tensor comes from the
// file that the index names and from no other; a tensor that is not there is an
// error, one that the index does not list is left out with a warning.
absl::StatusOr<CheckpointTensors> ReadCheckpointTensors(
    const std::string& folder, const WeightFiles& weights);

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_TENSORS_H_
