// The `post_processor` of tokenizer.json, for single sequences: which tokens
// stand before and after those of the text.

#ifndef QUIRE_MODEL_TOKENIZER_POST_PROCESSOR_H_
#define QUIRE_MODEL_TOKENIZER_POST_PROCESSOR_H_

#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/json_reader.h"
#include "quire/model/tokenizer.h"

namespace quire {

struct PostProcessor {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
};

// kUnimplemented, naming it, for one that is not supported.
absl::StatusOr<PostProcessor> ParsePostProcessor(const JsonReader& json);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_POST_PROCESSOR_H_
