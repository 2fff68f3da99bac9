#include "quire/alloc/quote.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/utf8.h"

namespace quire {
namespace {

constexpr size_t kNameLimit = 256;

bool IsUnsafeToPrint(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0) ||
         code_point == 0x061c ||
         (code_point >= 0x200b && code_point <= 0x200f) ||
         (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2060 && code_point <= 0x206f) || code_point == 0xfeff;
}

std::string Escaped(std::string_view text, size_t limit, bool quotes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) {
      out += "...";
      break;
    }
    const Utf8Character character = FirstUtf8Character(text);
    const uint32_t code_point = character.code_point;
    if (character.size == 0) {
      absl::StrAppendFormat(&out, "\\x%02x",
                            static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
      continue;
    }
    if (code_point == '\n') {
      out += "\\n";
    } else if (quotes && (code_point == '"' || code_point == '\\')) {
      out += '\\';
      out += static_cast<char>(code_point);
    } else if (!IsUnsafeToPrint(code_point)) {
      out.append(text.substr(0, character.size));
    } else if (code_point < 0x80) {
      absl::StrAppendFormat(&out, "\\x%02x", code_point);
    } else {
      absl::StrAppendFormat(&out, "\\u%04x", code_point);
    }
    text.remove_prefix(character.size);
  }
  return out;
}

}  // namespace

std::string Printable(std::string_view text, size_t limit) {
  return Escaped(text, limit, /*quotes=*/false);
}

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", Escaped(text, kNameLimit, /*quotes=*/true), "\"");
}

}  // namespace quire
