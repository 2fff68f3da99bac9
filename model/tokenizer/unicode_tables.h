// Where the Unicode data in `tokenizers` differs from the system's. Generated;
// generate_unicode_tables.py says how. Sorted by `first`, without overlaps.

#ifndef QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_
#define QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_

#include <cstdint>
#include <span>

namespace quire {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Every `step`-th of these is upper case, `delta` before its lower case.
struct CaseRange {
  char32_t first;
  char32_t last;
  char32_t step;
  int32_t delta;
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
extern const std::span<const CodePointRange> kUnknownMarks;
extern const std::span<const CodePointRange> kFurtherMarks;
extern const std::span<const CodePointRange> kUnknownNonspacingMarks;
extern const std::span<const CodePointRange> kFurtherNonspacingMarks;
extern const std::span<const CodePointRange> kUnknownControls;
extern const std::span<const CodePointRange> kFurtherControls;
extern const std::span<const CaseRange> kUpperCase;

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_UNICODE_TABLES_H_
