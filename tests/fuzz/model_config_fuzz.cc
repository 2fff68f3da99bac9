// Whatever config.json, generation_config.json, quantize_config.json and the
// names and shapes of the tensors: the checkpoint is refused, or what is read
// from it fits together. The same configuration without weights is one that
// plans can be made of.
//
// The input has these four parts; the last one is a list for TensorFile.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/engine/shape_checkpoint.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"
#include "quire/model/generation_config.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {
namespace {

constexpr char kWeights[] = "model.safetensors";

absl::Status CheckModules(const Checkpoint& checkpoint) {
  const absl::StatusOr<QuantizedModules> modules =
      FindQuantizedModules(checkpoint);
  if (!modules.ok()) return CheckRefusal(modules.status());
  for (const GptqModule& module : modules->gptq) {
    const auto groups = ReadGroupIndex(checkpoint, module);
    if (!groups.ok()) {
      QUIRE_RETURN_IF_ERROR(CheckRefusal(groups.status()));
      continue;
    }
    QUIRE_RETURN_IF_ERROR(Property(groups->size() == module.in_features,
                                   "every input has a group"));
  }
  for (const ScaledModule& module : modules->scaled) {
    QUIRE_RETURN_IF_ERROR(
        Property(module.codes != nullptr && module.scales != nullptr &&
                     module.block_rows > 0 && module.block_columns > 0 &&
                     module.count > 0,
                 "a module has codes, scales and blocks"));
    const auto columns = ReadScaleColumns(checkpoint, module);
    if (!columns.ok()) QUIRE_RETURN_IF_ERROR(CheckRefusal(columns.status()));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const ModelConfig& config) {
  QUIRE_RETURN_IF_ERROR(Property(
      config.hidden_size > 0 && config.layers > 0 && config.heads > 0 &&
          config.kv_heads > 0 && config.head_dim > 0 && config.vocab_size > 0 &&
          config.intermediate_size > 0 && config.max_positions > 0,
      "no size is 0"));
  QUIRE_RETURN_IF_ERROR(Property(config.heads % config.kv_heads == 0,
                                 "heads share keys and values evenly"));
  QUIRE_RETURN_IF_ERROR(
      Property(std::isfinite(config.norm_epsilon) && config.norm_epsilon >= 0,
               "the norm's epsilon is a number"));
  const std::vector<float> frequencies =
      InverseFrequencies(config.rope, config.head_dim);
  QUIRE_RETURN_IF_ERROR(Property(frequencies.size() == config.head_dim / 2,
                                 "a frequency for each pair"));
  for (const float frequency : frequencies)
    QUIRE_RETURN_IF_ERROR(Property(std::isfinite(frequency) && frequency >= 0,
                                   "a frequency is a number"));
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const Checkpoint& checkpoint) {
  QUIRE_RETURN_IF_ERROR(CheckModules(checkpoint));
  const auto generation = ParseGenerationConfig(checkpoint);
  if (!generation.ok())
    QUIRE_RETURN_IF_ERROR(CheckRefusal(generation.status()));
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(checkpoint);
  if (!config.ok()) return CheckRefusal(config.status());
  QUIRE_RETURN_IF_ERROR(CheckModel(*config));
  const absl::Status weights =
      ModelWeights::Check(checkpoint, *config).status();
  if (!weights.ok()) return CheckRefusal(weights);
  return ModelWeights::Blocks(checkpoint, *config).status();
}

// A description of a model has what its own configuration asks for.
absl::Status CheckShape(const std::string& folder) {
  const auto shape = OpenShape(folder);
  if (!shape.ok()) return CheckRefusal(shape.status());
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(**shape));
  return ModelWeights::Check(**shape, config).status();
}

}  // namespace

absl::Status FuzzModelConfig(std::string_view input) {
  static const ScratchFolder folder;
  const std::vector<std::string_view> parts = InputParts(input, 4);
  QUIRE_RETURN_IF_ERROR(folder.Write("config.json", parts[0]));
  QUIRE_RETURN_IF_ERROR(folder.Write("generation_config.json", parts[1]));
  QUIRE_RETURN_IF_ERROR(folder.Write("quantize_config.json", parts[2]));
  QUIRE_RETURN_IF_ERROR(folder.Write(kWeights, TensorFile(parts[3])));
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return CheckRefusal(checkpoint.status());
  QUIRE_RETURN_IF_ERROR(CheckCheckpoint(**checkpoint));
  QUIRE_RETURN_IF_ERROR(folder.Write(kWeights, {}));
  return CheckShape(folder.path());
}

}  // namespace quire
