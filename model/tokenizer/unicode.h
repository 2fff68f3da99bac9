// UTF-8, and the character classes of `tokenizers`.
//
// All functions but NextUtf8, IsUtf8 and RepairUtf8 require valid UTF-8: text
// is repaired once, where it enters.

#ifndef QUIRE_MODEL_TOKENIZER_UNICODE_H_
#define QUIRE_MODEL_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// One step through text that may not be UTF-8.
struct Utf8Step {
  enum Kind {
    kCharacter,  // a whole character
    kInvalid,    // bytes that start no character, or the start of one that
                 // another byte breaks off ("maximal subpart")
    kCut,        // the start of a character, broken off by the end of the text
  };
  Kind kind;
  size_t length;  // of the bytes the step covers, at least 1
};

// REQUIRES: position < text.size().
Utf8Step NextUtf8(std::string_view text, size_t position);

bool IsUtf8(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Every kInvalid and kCut step becomes one U+FFFD, as Rust's from_utf8_lossy.
std::string RepairUtf8(std::string_view text);

struct DecodedCharacter {
  char32_t code_point;
  size_t length;
};

// The character at `position`. REQUIRES: one starts there.
DecodedCharacter DecodeUtf8(std::string_view text, size_t position);

// Where the character that ends at `end` starts. REQUIRES: end > 0.
size_t PreviousCharacter(std::string_view text, size_t end);

void AppendUtf8(char32_t code_point, std::string* out);

// Rust's char::is_whitespace, and \s of every regex engine involved.
bool IsWhitespace(char32_t c);
// \w of Rust's `regex`.
bool IsWord(char32_t c);
// Rust's char::is_numeric.
bool IsNumeric(char32_t c);
// ASCII punctuation, or category P of `unicode_categories`.
bool IsPunctuation(char32_t c);
// What the normalizers of `tokenizers` remove: StripAccents the marks,
// BertNormalizer nonspacing marks of its own table and, of categories Cc, Cf
// and Co, what is neither tab nor end of line.
bool IsMark(char32_t c);
bool IsNonspacingMark(char32_t c);
bool IsBertControl(char32_t c);
// Rust's char::to_lowercase: of one character, whatever is around it.
void AppendLowercase(char32_t c, std::string* out);
// The normalizers of `tokenizers` know it, or there is nothing to know.
bool IsKnownToNormalization(char32_t c);

// `text` with every code point that PCRE2 may classify otherwise than
// Oniguruma replaced by one of the same length and class, so that a match in
// the result is the match in `text`. Returns false, and leaves `out` alone,
// where there is none: the usual case.
bool SubstituteForRegex(std::string_view text, std::string* out);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_UNICODE_H_
