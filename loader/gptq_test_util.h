// Packs GPTQ tensors bit by bit, for tests.

#ifndef QUIRE_LOADER_GPTQ_TEST_UTIL_H_
#define QUIRE_LOADER_GPTQ_TEST_UTIL_H_

#include <cstdint>
#include <vector>

namespace quire {

// Writes each code's bits, lowest first, one after the other into words whose
// bits are counted from the lowest: the definition of the format, and nothing
// faster.
inline std::vector<uint32_t> PackBits(const std::vector<uint32_t>& codes,
                                      int bits) {
  std::vector<uint32_t> words;
  size_t position = 0;
  for (const uint32_t code : codes) {
    for (int bit = 0; bit < bits; ++bit, ++position) {
      if (position / 32 == words.size()) words.push_back(0);
      if ((code >> bit) & 1) words[position / 32] |= 1u << (position % 32);
    }
  }
  return words;
}

}  // namespace quire

#endif  // QUIRE_LOADER_GPTQ_TEST_UTIL_H_
