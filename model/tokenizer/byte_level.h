// GPT-2's byte-level alphabet: every byte is a printable character, so that
// any bytes are text that a vocabulary can hold.

#ifndef QUIRE_MODEL_TOKENIZER_BYTE_LEVEL_H_
#define QUIRE_MODEL_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// The character that stands for `byte`.
char32_t ByteLevelCharacter(uint8_t byte);

std::string BytesToByteLevel(std::string_view bytes);

// The bytes that `text` stands for; nullopt where a character is outside the
// alphabet. `text` must be UTF-8.
std::optional<std::string> ByteLevelToBytes(std::string_view text);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_BYTE_LEVEL_H_
