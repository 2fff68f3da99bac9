#include "loader/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace quire {

Utf8Character FirstUtf8Character(std::string_view text) {
  // No character is longer than four bytes, and utf8proc counts in a signed
  // type that a long text need not fit.
  const auto available =
      static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size(), 4));
  utf8proc_int32_t code_point = -1;
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       available, &code_point);
  if (size <= 0) return {};
  return {static_cast<uint32_t>(code_point), static_cast<size_t>(size)};
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = FirstUtf8Character(text).size;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

}  // namespace quire
