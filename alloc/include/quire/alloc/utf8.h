// UTF-8 as the standard defines it: no overlong forms, no surrogates.

#ifndef QUIRE_ALLOC_UTF8_H_
#define QUIRE_ALLOC_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

struct Utf8Character {
  uint32_t code_point = 0;
  size_t size = 0;  // in bytes; 0: no valid sequence stands here
};

// The first character of `text`. REQUIRES: `text` is not empty.
Utf8Character FirstUtf8Character(std::string_view text);

bool IsValidUtf8(std::string_view text);

// The text, with U+FFFD for each byte that is no part of a character.
std::string ValidUtf8(std::string_view text);

}  // namespace quire

#endif  // QUIRE_ALLOC_UTF8_H_
