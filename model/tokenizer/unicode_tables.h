// Where the Unicode data in `tokenizers` differs from the system's. Generated;
// generate_unicode_tables.py says how. Sorted by `first`, without overlaps.

#ifndef QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_
#define QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_

#include <span>

namespace quire {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

struct CodePointSubstitution {
  char32_t first;
  char32_t last;
  char32_t substitute;
};

extern const std::span<const CodePointSubstitution> kCategorySubstitutions;
extern const std::span<const CodePointRange> kLaterNumbers;
extern const std::span<const CodePointRange> kUnknownPunctuation;
extern const std::span<const CodePointRange> kFormerPunctuation;
extern const std::span<const CodePointRange> kUnknownToNormalization;

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_
