// The table of model families: what each one calls its tensors, and how it
// differs from the common decoder.

#ifndef QUIRE_MODEL_CONFIG_FAMILY_H_
#define QUIRE_MODEL_CONFIG_FAMILY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/loader/checkpoint.h"
#include "quire/loader/lora.h"
#include "quire/model/ops.h"

namespace quire {

// Module names of one naming scheme. Those of a layer follow LayerPrefix.
struct TensorNames {
  const char* layer_prefix;  // before the layer's number
  const char* embedding;
  const char* output_norm;
  const char* output;
  const char* attention_norm;
  const char* query;
  const char* key;
  const char* value;
  const char* attention_output;
  const char* query_norm;  // of each head
  const char* key_norm;
  const char* ffn_norm;
  const char* gate;
  const char* up;
  const char* down;

  // "model.layers.3".
  std::string Layer(uint32_t layer) const;
  // "model.layers.3." + module.
  std::string InLayer(uint32_t layer, const char* module) const;
};

// Hugging Face's names, which most families share, or llama.cpp's.
const TensorNames& NamesFor(CheckpointFormat format);
// The same, or the names under another prefix ("model.language_model.",
// "language_model.model.", none) under which the checkpoint has its embedding.
const TensorNames& NamesOf(const Checkpoint& checkpoint);
// The same for an adapter's modules ("model.layers.0.mlp.up_proj"): the names
// that a layer, the embedding or the last norm is under. Hugging Face's where
// there is none of these.
const TensorNames& NamesOf(const std::vector<LoraModule>& modules);

struct FamilyTraits {
  const char* model_type;          // config.json's
  const char* gguf_architecture;   // general.architecture
  const char* transformers_class;  // that config.json names
  // How llama.cpp's converter leaves the rows of queries and keys.
  RopePairing gguf_pairing;
  // Queries, keys and values have biases, whatever the configuration says.
  bool has_qkv_bias = false;
  // config.json's field of that name gives all linears of the attention, or of
  // the FFN, biases.
  bool reads_attention_bias = false;
  bool reads_mlp_bias = false;
  // Queries and keys are normalised, head by head, before the rotation.
  bool has_head_norms = false;
  // config.json's use_sliding_window limits what layers see.
  bool reads_sliding_window = false;
  // Where config.json does not say; 0: hidden size / heads.
  uint32_t default_head_dim = 0;
  uint64_t default_max_positions = 2048;
};

// Null where the family is not supported.
const FamilyTraits* FindFamily(CheckpointFormat format, std::string_view name);
// "llama, ..." for messages.
std::string SupportedFamilies();

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_FAMILY_H_
