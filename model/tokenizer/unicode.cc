#include "model/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "model/tokenizer/unicode_tables.h"

namespace quire {
namespace {
// U+180E was white space until Unicode 6.3, and is to PCRE2 to this day. The
// other is of its category (Cf), its length, and white space to nobody.
constexpr char32_t kMongolianVowelSeparator = 0x180E;
constexpr char32_t kZeroWidthSpace = 0x200B;

uint8_t ByteAt(std::string_view text, size_t position) {
  return static_cast<uint8_t>(text[position]);
}

bool IsBetween(uint8_t byte, uint8_t low, uint8_t high) {
  return byte >= low && byte <= high;
}

template <typename Range>
const Range* FindRange(std::span<const Range> ranges, char32_t c) {
  const auto it = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const Range& range) { return value < range.first; });
  if (it == ranges.begin()) return nullptr;
  const Range& candidate = *(it - 1);
  return c <= candidate.last ? &candidate : nullptr;
}

char32_t SubstituteCategory(char32_t c) {
  const CodePointSubstitution* found = FindRange(kCategorySubstitutions, c);
  return found == nullptr ? c : found->substitute;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(
      static_cast<utf8proc_int32_t>(SubstituteCategory(c)));
}

bool IsLetter(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsMark(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}
bool IsNumber(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool IsPunctuation(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

// Alphabetic, but of category So.
bool IsCircledLetter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

Utf8Step NextUtf8(std::string_view text, size_t position) {
  const uint8_t lead = ByteAt(text, position);
  if (lead < 0x80) return {Utf8Step::kCharacter, 1};
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;  // what the second byte may be
  if (IsBetween(lead, 0xC2, 0xDF)) {
    length = 2;
  } else if (IsBetween(lead, 0xE0, 0xEF)) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // overlong
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (IsBetween(lead, 0xF0, 0xF4)) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // overlong
    if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  } else {
    return {Utf8Step::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (position + i == text.size()) return {Utf8Step::kCut, i};
    if (!IsBetween(ByteAt(text, position + i), low, high)) {
      return {Utf8Step::kInvalid, i};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::kCharacter, length};
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text, i);
    if (step.kind != Utf8Step::kCharacter) return false;
    i += step.length;
  }
  return true;
}

std::string RepairUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text, i);
    out += step.kind == Utf8Step::kCharacter ? text.substr(i, step.length)
                                             : kReplacementCharacter;
    i += step.length;
  }
  return out;
}

DecodedCharacter DecodeUtf8(std::string_view text, size_t position) {
  const uint8_t lead = ByteAt(text, position);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    c = (c << 6) | (ByteAt(text, position + i) & 0x3F);
  }
  return {c, length};
}

size_t PreviousCharacter(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (ByteAt(text, end) & 0xC0) == 0x80);
  return end;
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto tail = [c](int shift) {
    return static_cast<char>(0x80 | ((c >> shift) & 0x3F));
  };
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else if (c < 0x800) {
    *out += {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  } else if (c < 0x10000) {
    *out += {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  } else {
    *out += {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
  }
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsWord(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsLetter(category) || IsMark(category) ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || IsCircledLetter(c) ||
         c == 0x200C || c == 0x200D;  // Join_Control
}

bool IsNumeric(char32_t c) {
  return IsNumber(Category(c)) || FindRange(kLaterNumbers, c) != nullptr;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return c > 0x20 && c < 0x7F && !(c >= '0' && c <= '9') &&
           !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  }
  if (FindRange(kFormerPunctuation, c) != nullptr) return true;
  return IsPunctuation(Category(c)) &&
         FindRange(kUnknownPunctuation, c) == nullptr;
}

bool IsMark(char32_t c) {
  return FindRange(kFurtherMarks, c) != nullptr ||
         (IsMark(Category(c)) && FindRange(kUnknownMarks, c) == nullptr);
}

bool IsNonspacingMark(char32_t c) {
  return FindRange(kFurtherNonspacingMarks, c) != nullptr ||
         (Category(c) == UTF8PROC_CATEGORY_MN &&
          FindRange(kUnknownNonspacingMarks, c) == nullptr);
}

bool IsBertControl(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t category = Category(c);
  return FindRange(kFurtherControls, c) != nullptr ||
         ((category == UTF8PROC_CATEGORY_CC ||
           category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_CO) &&
          FindRange(kUnknownControls, c) == nullptr);
}

void AppendLowercase(char32_t c, std::string* out) {
  constexpr char32_t kCapitalIWithDot = 0x130;
  if (c == kCapitalIWithDot) {
    *out += "i\u0307";
    return;
  }
  const CaseRange* const range = FindRange(kUpperCase, c);
  if (range != nullptr && (c - range->first) % range->step == 0)
    c = static_cast<char32_t>(static_cast<int32_t>(c) + range->delta);
  AppendUtf8(c, out);
}

bool IsKnownToNormalization(char32_t c) {
  // What is newer than the oldest utf8proc is in the first table only.
  return FindRange(kCategorySubstitutions, c) == nullptr &&
         FindRange(kUnknownToNormalization, c) == nullptr;
}

bool SubstituteForRegex(std::string_view text, std::string* out) {
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const DecodedCharacter character = DecodeUtf8(text, i);
    const char32_t c = character.code_point;
    const char32_t substitute =
        c < 0x80 ? c
                 : (c == kMongolianVowelSeparator ? kZeroWidthSpace
                                                  : SubstituteCategory(c));
    if (substitute != c) {
      if (!any) {
        out->assign(text);
        any = true;
      }
      std::string bytes;
      AppendUtf8(substitute, &bytes);
      out->replace(i, character.length, bytes);
    }
    i += character.length;
  }
  return any;
}

}  // namespace quire
