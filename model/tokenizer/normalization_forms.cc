#include "model/tokenizer/normalization_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "model/tokenizer/unicode.h"

namespace quire {
namespace {

// A code point decomposes into at most 18 (U+FDFA).
constexpr int kMaxDecomposition = 32;

int CombiningClass(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// Decomposes, orders and, where asked, composes text of which every code point
// is known. utf8proc_map would do, but it orders marks in quadratic time.
void NormalizeKnown(NormalizationForm form,
                    const std::vector<utf8proc_int32_t>& known,
                    std::string* out) {
  const bool compose =
      form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const bool compatible =
      form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const auto decompose_options = static_cast<utf8proc_option_t>(
      UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));

  std::vector<utf8proc_int32_t> buffer;
  buffer.reserve(known.size());
  for (const utf8proc_int32_t c : known) {
    utf8proc_int32_t parts[kMaxDecomposition];
    int boundary_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        c, parts, kMaxDecomposition, decompose_options, &boundary_class);
    buffer.insert(
        buffer.end(), parts,
        parts + std::clamp<utf8proc_ssize_t>(count, 0, kMaxDecomposition));
  }
  for (auto it = buffer.begin(); it != buffer.end();) {
    if (CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, buffer.end(), [](utf8proc_int32_t c) {
      return CombiningClass(c) == 0;
    });
    std::stable_sort(it, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    it = end;
  }
  utf8proc_ssize_t size = static_cast<utf8proc_ssize_t>(buffer.size());
  if (compose) {
    size = utf8proc_normalize_utf32(
        buffer.data(), size,
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    AppendUtf8(static_cast<char32_t>(buffer[static_cast<size_t>(i)]), out);
  }
}

}  // namespace

std::string NormalizeTo(NormalizationForm form, std::string_view text) {
  // All forms of ASCII text are that text.
  if (std::all_of(text.begin(), text.end(),
                  [](unsigned char c) { return c < 0x80; })) {
    return std::string(text);
  }
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> known;
  for (size_t i = 0; i < text.size();) {
    const DecodedCharacter c = DecodeUtf8(text, i);
    if (IsKnownToNormalization(c.code_point)) {
      known.push_back(static_cast<utf8proc_int32_t>(c.code_point));
    } else {
      NormalizeKnown(form, known, &out);
      known.clear();
      AppendUtf8(c.code_point, &out);
    }
    i += c.length;
  }
  NormalizeKnown(form, known, &out);
  return out;
}

}  // namespace quire
