// How positions turn queries and keys: the rotary fields of config.json and of
// GGUF's metadata. What is read is part of ModelConfig (model_config.h).
//
// Formulas: transformers' modeling_rope_utils.py; YaRN is Peng et al. 2023
// (https://arxiv.org/abs/2309.00071).

#ifndef QUIRE_MODEL_CONFIG_ROPE_CONFIG_H_
#define QUIRE_MODEL_CONFIG_ROPE_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "quire/loader/json_fields.h"
#include "quire/model/model_config.h"

namespace quire {

// Both fill in `config->rope`, but for its pairing, and raise
// `config->max_positions` where YaRN lengthens the context. REQUIRES:
// max_positions is that of the file. Errors name the file and the field; a kind
// that is not supported is refused by name.
absl::Status ReadRope(const JsonFields& fields, ModelConfig* config);
absl::Status ReadGgufRope(const JsonFields& fields,
                          const std::string& architecture, ModelConfig* config);

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_ROPE_CONFIG_H_
