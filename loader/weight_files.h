// Which files of a Hugging Face folder hold the weights.

#ifndef QUIRE_LOADER_WEIGHT_FILES_H_
#define QUIRE_LOADER_WEIGHT_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/shard_index.h"

namespace quire {

struct WeightFiles {
  std::vector<std::string> names;  // in the folder, sorted
  // Where there is one: its shards are `names`.
  std::optional<ShardIndex> index;
  std::string index_name;
  std::vector<std::string> warnings;
};

// In this order: AutoGPTQ's basename (gptq_model-4bit-128g), "model", then
// whatever else ends in .safetensors; for each an index before a single file.
// Several files without an index are read together. Errors name the folder, the
// index or the shard that is absent, and say what was found instead.
absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& folder);

}  // namespace quire

#endif  // QUIRE_LOADER_WEIGHT_FILES_H_
