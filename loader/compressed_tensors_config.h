// The configuration of compressed-tensors: which scheme each module has.

#ifndef QUIRE_LOADER_COMPRESSED_TENSORS_CONFIG_H_
#define QUIRE_LOADER_COMPRESSED_TENSORS_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/module_pattern.h"
#include "loader/scaled_module_readers.h"
#include "quire/loader/json_fields.h"

namespace quire {

// How weights are quantised: QuantizationArgs of compressed_tensors.
struct CompressedScheme {
  enum class Strategy { kTensor, kChannel, kGroup, kBlock };

  std::string where;  // "config.json: ... config_groups: group_0: weights"
  uint64_t bits = 8;
  bool is_float = false;
  bool symmetric = true;
  Strategy strategy = Strategy::kTensor;
  uint64_t group_size = 0;  // of kGroup
  BlockShape block;         // of kBlock
  bool quantizes_activations = false;

  // For a weight of this shape.
  BlockShape BlockFor(uint64_t out_features, uint64_t in_features) const;
};

// Immutable.
class CompressedTensorsConfig {
 public:
  // Formats and transforms that are not read are refused by name.
  static absl::StatusOr<CompressedTensorsConfig> Parse(
      const JsonFields& config);

  // By exact name first, then by pattern ("re:..."), then by class ("Linear").
  // An error where nothing matches, or a pattern takes too many steps.
  absl::StatusOr<const CompressedScheme*> ForModule(
      std::string_view module) const;

  bool quantizes_activations() const;

 private:
  struct Target {
    std::string name;                      // as in the file
    std::optional<ModulePattern> pattern;  // empty for names and classes
    size_t scheme = 0;
  };

  absl::Status AddGroup(const JsonFields& group);

  std::string where_;
  std::vector<CompressedScheme> schemes_;
  std::vector<Target> targets_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_COMPRESSED_TENSORS_CONFIG_H_
