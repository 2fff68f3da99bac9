// The table of model families: what each one calls its tensors, and how it
// differs from the common decoder.

#ifndef QUIRE_MODEL_CONFIG_FAMILY_H_
#define QUIRE_MODEL_CONFIG_FAMILY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/loader/checkpoint.h"

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
  const char* ffn_norm;
  const char* gate;
  const char* up;
  const char* down;

  // "model.layers.3." + module.
  std::string InLayer(uint32_t layer, const char* module) const;
};

// Hugging Face's names, which most families share, or llama.cpp's.
const TensorNames& NamesFor(CheckpointFormat format);

struct FamilyTraits {
  const char* model_type;         // config.json's
  const char* gguf_architecture;  // general.architecture
};

// Null where the family is not supported.
const FamilyTraits* FindFamily(CheckpointFormat format, std::string_view name);
// "llama, ..." for messages.
std::string SupportedFamilies();

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_FAMILY_H_
