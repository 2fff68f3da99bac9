// NFC, NFD, NFKC and NFKD as `tokenizers` computes them: with Unicode 9.
//
// Code points it does not know stay as they are and where they are, even where
// today's Unicode would reorder or compose them. O(n log n) for any text.

#ifndef QUIRE_MODEL_TOKENIZER_NORMALIZATION_FORMS_H_
#define QUIRE_MODEL_TOKENIZER_NORMALIZATION_FORMS_H_

#include <string>
#include <string_view>

namespace quire {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` must be UTF-8.
std::string NormalizeTo(NormalizationForm form, std::string_view text);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_NORMALIZATION_FORMS_H_
