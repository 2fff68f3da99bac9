// The configuration files beside the weights. For .cc files only.

#ifndef QUIRE_LOADER_CHECKPOINT_CONFIGS_H_
#define QUIRE_LOADER_CHECKPOINT_CONFIGS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

struct CheckpointConfigs {
  nlohmann::json config = nlohmann::json::object();
  nlohmann::json generation_config = nlohmann::json::object();
  nlohmann::json quantization_config = nlohmann::json::object();
  std::string quantization_config_path;
  std::vector<std::string> dynamic_patterns;  // in the order of the file
  std::vector<std::string> warnings;
};

// Files that are absent leave {}; config.json may be absent only where
// `config_required` is false.
absl::StatusOr<CheckpointConfigs> ReadCheckpointConfigs(
    const std::string& folder, bool config_required);

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_CONFIGS_H_
