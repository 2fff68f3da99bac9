// Oniguruma's pattern syntax, as far as tokenizers use it, in PCRE2's terms.

#ifndef QUIRE_MODEL_TOKENIZER_REGEX_SYNTAX_H_
#define QUIRE_MODEL_TOKENIZER_REGEX_SYNTAX_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

// A PCRE2 pattern (UTF, UCP, newline LF, text passed through
// SubstituteForRegex) that matches what `pattern` does in Oniguruma with
// Ruby's syntax. Whatever the two read differently is either written out or
// refused by name; nothing is passed through in the hope that it means the
// same. kInvalidArgument or kUnimplemented, with the position in the pattern.
absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_REGEX_SYNTAX_H_
