// The `model` of tokenizer.json, read and written.

#ifndef QUIRE_MODEL_TOKENIZER_BPE_JSON_H_
#define QUIRE_MODEL_TOKENIZER_BPE_JSON_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/json_reader.h"

namespace quire {

// kUnimplemented, naming it, for a model that is not BPE.
absl::StatusOr<std::unique_ptr<Bpe>> ParseBpe(const JsonReader& json);

nlohmann::json BpeToJson(const Bpe& bpe);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_BPE_JSON_H_
