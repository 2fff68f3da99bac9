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

// The field of config.json that says how weights are quantised: its
// quantization_config, or, as in the first files of compressed-tensors, its
// compression_config. Null where there is none.
const char* EmbeddedQuantization(const nlohmann::json& config);

// Files that are absent leave {}; config.json may be absent only where
// `config_required` is false.
absl::StatusOr<CheckpointConfigs> ReadCheckpointConfigs(
    const std::string& folder, bool config_required);

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_CONFIGS_H_
