// Text as Abseil's own view, by which its hash maps look up: an alias of
// std::string_view only where Abseil was built as C++17.

#ifndef QUIRE_MODEL_TOKENIZER_ABSL_VIEW_H_
#define QUIRE_MODEL_TOKENIZER_ABSL_VIEW_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace quire {

inline absl::string_view AbslView(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_ABSL_VIEW_H_
