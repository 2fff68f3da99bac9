#include "model/tokenizer/byte_level.h"

#include <array>

#include "model/tokenizer/unicode.h"

namespace quire {
namespace {

// Bytes that print in Latin-1 stand for themselves; the other 68 follow
// U+00FF in order.
constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         byte >= 0xAE;
}

constexpr char32_t kFirstShifted = 0x100;
constexpr size_t kAlphabetEnd = kFirstShifted + 68;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character[static_cast<size_t>(byte)] = c;
    alphabet.byte[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kAlphabet.character[byte]; }

std::string BytesToByteLevel(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &text);
  }
  return text;
}

std::optional<std::string> ByteLevelToBytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const DecodedCharacter c = DecodeUtf8(text, i);
    if (c.code_point >= kAlphabetEnd || kAlphabet.byte[c.code_point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kAlphabet.byte[c.code_point]);
    i += c.length;
  }
  return bytes;
}

}  // namespace quire
