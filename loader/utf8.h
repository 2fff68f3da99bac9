// UTF-8 as the standard defines it: no overlong forms, no surrogates.

#ifndef QUIRE_LOADER_UTF8_H_
#define QUIRE_LOADER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

struct Utf8Character {
  uint32_t code_point = 0;
  size_t size = 0;  // in bytes; 0: no valid sequence stands here
};

// The first character of `text`. REQUIRES: `text` is not empty.
Utf8Character FirstUtf8Character(std::string_view text);

bool IsValidUtf8(std::string_view text);

}  // namespace quire

#endif  // QUIRE_LOADER_UTF8_H_
