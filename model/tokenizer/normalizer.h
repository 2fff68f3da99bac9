// The `normalizer` of tokenizer.json.

#ifndef QUIRE_MODEL_TOKENIZER_NORMALIZER_H_
#define QUIRE_MODEL_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/tokenizer/json_reader.h"

namespace quire {

// Immutable, thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is UTF-8 before and after.
  virtual void Normalize(std::string* text) const = 0;
};

// kUnimplemented, naming it, for a normalizer that is not supported.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(
    const JsonReader& json);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_NORMALIZER_H_
