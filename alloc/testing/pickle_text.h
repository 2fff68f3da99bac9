// Pickles for tests, written by hand: the operations of protocol 2 without the
// memo, one function per kind of value.

#ifndef QUIRE_ALLOC_TESTING_PICKLE_TEXT_H_
#define QUIRE_ALLOC_TESTING_PICKLE_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quire::pickle_text {

inline std::string LittleEndian(uint64_t number, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) {
    bytes += static_cast<char>((number >> (8 * i)) & 0xff);
  }
  return bytes;
}

inline std::string Text(const std::string& text) {
  return "X" + LittleEndian(text.size(), 4) + text;
}
inline std::string Number(int64_t number) {
  return "\x8a\x08" + LittleEndian(static_cast<uint64_t>(number), 8);
}
inline std::string List(const std::vector<std::string>& items) {
  std::string list = "](";
  for (const std::string& item : items) list += item;
  return list + "e";
}
inline std::string Dict(
    const std::vector<std::pair<std::string, std::string>>& items) {
  std::string dict = "}(";
  for (const auto& [key, value] : items) dict += Text(key) + value;
  return dict + "u";
}
inline std::string Pickle(const std::string& value) {
  return "\x80\x02" + value + ".";
}

}  // namespace quire::pickle_text

#endif  // QUIRE_ALLOC_TESTING_PICKLE_TEXT_H_
