// What Split and Replace look for: a text, or a regular expression.

#ifndef QUIRE_MODEL_TOKENIZER_PATTERN_H_
#define QUIRE_MODEL_TOKENIZER_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/json_reader.h"

namespace quire {

// A part of a text, matched or between matches.
struct PatternSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// Immutable, thread-safe, cheap to copy.
class TextPattern {
 public:
  // `pattern` is in Oniguruma's syntax.
  static absl::StatusOr<TextPattern> FromRegex(std::string_view pattern);
  // REQUIRES: `text` is not empty.
  static TextPattern FromText(std::string_view text);
  // {"String": ...} or {"Regex": ...} in the field `key`.
  static absl::StatusOr<TextPattern> FromJson(const JsonReader& json,
                                              std::string_view key);

  // The matches and what is between them: contiguous, from the first byte to
  // the last. Empty matches are there, but none right after another match.
  // `text` must be UTF-8.
  //
  // Matching is bounded: where a regular expression needs more steps than
  // allowed (far more than any that takes linear time), the rest of the text
  // counts as no match. Oniguruma gives up at such a point too.
  std::vector<PatternSpan> Find(std::string_view text) const;

  // The text that is looked for; empty for a regular expression.
  const std::string& text() const { return text_; }

 private:
  struct Compiled;

  std::string text_;
  std::shared_ptr<const Compiled> regex_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_PATTERN_H_
