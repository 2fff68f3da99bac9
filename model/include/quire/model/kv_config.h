// What a model keeps of each token, told from its config.json, or the metadata
// of its GGUF file, alone: for plans and simulations, also of families that the
// decoder does not run.
//
// A family is a row of a table: what transformers' configuration class takes
// where a field is left out, which layers have a sliding window, and whether
// keys and values are kept or the latent vector that both come from. A family
// that is not in the table is refused by name, since what its layers keep may
// be anything.

#ifndef QUIRE_MODEL_KV_CONFIG_H_
#define QUIRE_MODEL_KV_CONFIG_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "quire/paging/kv_layout.h"

namespace quire {

struct KvConfig {
  std::string model_type;  // "gpt_oss"
  KvModelShape shape;      // of f16 elements
  uint32_t query_heads = 0;
  uint64_t max_positions = 0;
};

// Of a config.json; where that has a text_config, as models of images and text
// do, of this one. `where` begins the messages, which name the field at fault;
// kUnimplemented for families, and kinds of layers, that are not known.
absl::StatusOr<KvConfig> ParseKvConfig(const nlohmann::json& config,
                                       const std::string& where);

// Of the metadata of a GGUF file, for the same families under llama.cpp's
// names.
absl::StatusOr<KvConfig> ParseGgufKvConfig(const nlohmann::json& metadata,
                                           const std::string& where);

// The same layers with elements of another type; those of 8 bits with scales of
// 16.
KvModelShape WithElements(KvModelShape shape, KvDType dtype);

}  // namespace quire

#endif  // QUIRE_MODEL_KV_CONFIG_H_
