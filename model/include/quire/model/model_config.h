// What a decoder is, as data: its sizes and the choices of its family.
//
// Read from config.json (transformers 4 and 5 spellings) or from a GGUF's
// metadata. A family is a row in a table of traits (family.h), not a copy of
// the forward pass.

#ifndef QUIRE_MODEL_MODEL_CONFIG_H_
#define QUIRE_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/ops.h"
#include "quire/model/tokenizer.h"

namespace quire {

// How rotary frequencies are changed for contexts longer than trained on.
// Formulas: transformers' modeling_rope_utils.py.
enum class RopeScaling : uint8_t {
  kNone,
  kLinear,   // every frequency divided by the factor
  kLlama3,   // by wavelength: kept, blended, or divided
  kYarn,     // the same by other bounds, and a magnitude
  kDynamic,  // as trained up to max_positions, beyond which nothing is run
};

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_max_positions = 8192;
  // Of kYarn: pairs that turn more often than beta_fast within the context
  // trained on are kept, those that turn less than beta_slow divided.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // both bounds to whole pairs
  double magnitude = 1;  // that queries and keys are scaled by
  RopePairing pairing = RopePairing::kHalf;
};

struct ModelConfig {
  std::string family;  // "llama", "qwen2", "qwen3"
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  uint64_t max_positions = 0;
  float norm_epsilon = 0;
  bool tied_embeddings = false;
  // The configuration says that the output head is a matrix of its own.
  bool has_own_head = false;
  // Which linears have biases. A checkpoint may have more: quantisers write
  // biases of zeros.
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool ffn_bias = false;
  // Queries and keys are normalised, head by head, before the rotation.
  bool head_norms = false;
  RopeConfig rope;
  std::vector<TokenId> eos_tokens;  // of config and generation config together

  uint64_t query_size() const { return uint64_t{heads} * head_dim; }
  uint64_t kv_size() const { return uint64_t{kv_heads} * head_dim; }
};

// Errors name the file and the field; a family that is not supported is refused
// by name.
absl::StatusOr<ModelConfig> ParseModelConfig(const Checkpoint& checkpoint);

// inverse_frequencies[i] of ops.h's Rope, head_dim / 2 of them.
std::vector<float> InverseFrequencies(const RopeConfig& rope,
                                      uint32_t head_dim);
// Divides each by its factor, as llama.cpp stores the changes of Llama 3.1. An
// error where a factor is not above 0 and finite. REQUIRES: as many of both.
absl::Status DivideFrequencies(std::span<const float> factors,
                               std::vector<float>* frequencies);

}  // namespace quire

#endif  // QUIRE_MODEL_MODEL_CONFIG_H_
