// The `pre_tokenizer` of tokenizer.json: cuts text into the words that merges
// do not cross.

#ifndef QUIRE_MODEL_TOKENIZER_PRE_TOKENIZER_H_
#define QUIRE_MODEL_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/json_reader.h"
#include "quire/model/tokenizer.h"

namespace quire {

// A part of the input on its way to tokens: text, or an added token.
struct TextPiece {
  static constexpr TokenId kText = -1;

  std::string text;
  TokenId token = kText;
  // Its text starts where the input does.
  bool at_start = false;
};

// Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts and rewrites the pieces that are text; drops those that get empty.
  virtual void PreTokenize(std::vector<TextPiece>* pieces) const = 0;
};

// kUnimplemented, naming it, for one that is not supported. `has_normalizer`:
// text may differ from the input by now, so that some of them cannot tell
// where the input starts.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(
    const JsonReader& json, bool has_normalizer);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_PRE_TOKENIZER_H_
