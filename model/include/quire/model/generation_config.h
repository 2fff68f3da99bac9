// How its makers mean a model to be sampled: generation_config.json.

#ifndef QUIRE_MODEL_GENERATION_CONFIG_H_
#define QUIRE_MODEL_GENERATION_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/sampler.h"

namespace quire {

// End-of-text tokens are in ModelConfig, joined with those of config.json.
struct GenerationConfig {
  // Greedy unless do_sample says otherwise; then with transformers' defaults
  // for what is not there: temperature 1 and top_k 50.
  SamplingOptions sampling;
  std::optional<uint64_t> max_new_tokens;
  std::optional<uint64_t> max_length;  // of prompt and output together
};

// transformers 4 leaves out what has its default value, transformers 5 writes
// null for it: both are absent here. Without such a file, greedy and no bounds.
// Errors name the file and the field.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_MODEL_GENERATION_CONFIG_H_
