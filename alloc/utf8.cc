#include "quire/alloc/utf8.h"

#include <algorithm>
#include <cstdint>

namespace quire {
namespace {

// Of a first byte: how many follow, what of it counts, and the least that a
// sequence of this length may stand for.
struct Lead {
  size_t following;
  uint32_t bits;
  uint32_t least;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {0, byte, 0};
  if (byte >= 0xc2 && byte < 0xe0) return {1, byte & 0x1fu, 0x80};
  if (byte >= 0xe0 && byte < 0xf0) return {2, byte & 0x0fu, 0x800};
  if (byte >= 0xf0 && byte < 0xf5) return {3, byte & 0x07u, 0x10000};
  return {SIZE_MAX, 0, 0};
}

}  // namespace

Utf8Character FirstUtf8Character(std::string_view text) {
  const Lead lead = LeadOf(static_cast<unsigned char>(text.front()));
  if (lead.following >= text.size()) return {};
  uint32_t code_point = lead.bits;
  for (size_t i = 1; i <= lead.following; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (byte & 0x3fu);
  }
  const bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
  if (code_point < lead.least || surrogate || code_point > 0x10ffff) return {};
  return {code_point, lead.following + 1};
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = FirstUtf8Character(text).size;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string ValidUtf8(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string valid;
  while (!text.empty()) {
    const size_t size = FirstUtf8Character(text).size;
    valid += size == 0 ? kReplacement : text.substr(0, size);
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return valid;
}

}  // namespace quire
