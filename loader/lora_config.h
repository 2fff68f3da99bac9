// adapter_config.json of a LoRA adapter: which modules have a product, of which
// rank and scale. The rules are those of PEFT's tuners/tuners_utils.py
// (check_target_module_exists) and utils/other.py (get_pattern_key).

#ifndef QUIRE_LOADER_LORA_CONFIG_H_
#define QUIRE_LOADER_LORA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/module_pattern.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/lora.h"

namespace quire {

// Immutable after Read. Every pattern is bounded (module_pattern.h).
class LoraConfig {
 public:
  // Errors name the file and the field. What is odd but harmless goes to
  // `warnings`.
  static absl::StatusOr<LoraConfig> Read(const std::string& path,
                                         std::vector<std::string>* warnings);

  const std::string& where() const { return where_; }
  bool ties_weights() const { return ties_weights_; }
  // The parts of the base model that the adapter has copies of.
  const std::vector<std::string>& saved_modules() const {
    return saved_modules_;
  }
  // Whether `module` is `part`, or in it: "lm_head", "norm", "mlp".
  static bool IsWithin(std::string_view module, std::string_view part);
  bool IsSaved(std::string_view module) const;

  // Whether it says which modules have a product. PEFT always does; without,
  // the tensors decide.
  bool has_targets() const { return has_targets_; }
  absl::StatusOr<bool> Targets(std::string_view module,
                               LoraTarget target) const;
  absl::StatusOr<uint64_t> RankOf(std::string_view module) const;
  // The factor of the module's product.
  absl::StatusOr<float> ScaleOf(std::string_view module, uint64_t rank) const;

 private:
  // A list of names, each whole or the end of one after a dot, or a pattern for
  // the whole of one.
  struct Selection {
    std::vector<std::string> names;
    std::optional<ModulePattern> pattern;
    bool all_linear = false;

    absl::StatusOr<bool> Has(std::string_view module) const;
  };
  template <typename T>
  struct Override {
    ModulePattern pattern;
    T value;
  };

  absl::Status ReadScales(const JsonFields& fields, const std::string& path);
  absl::Status ReadTargets(const JsonFields& fields);
  absl::Status ReadLayers(const JsonFields& fields);
  absl::StatusOr<Selection> ReadSelection(const JsonFields& fields,
                                          std::string_view field,
                                          bool may_be_all_linear) const;
  // Whether the layer that the name is of is among those to transform.
  absl::StatusOr<bool> LayerIsSelected(std::string_view module) const;

  std::string where_;
  uint64_t rank_ = 8;
  double alpha_ = 8;
  bool scale_by_root_ = false;  // use_rslora
  bool ties_weights_ = false;
  std::vector<Override<uint64_t>> ranks_;
  std::vector<Override<double>> alphas_;
  bool has_targets_ = false;
  Selection targets_;
  Selection excluded_;
  std::vector<std::string> saved_modules_;
  // Of names up to and with the number of one of layers_to_transform, for each
  // of layers_pattern; none: all layers.
  std::vector<ModulePattern> layer_names_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_LORA_CONFIG_H_
