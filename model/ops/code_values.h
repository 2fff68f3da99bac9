// What the codes of a ScaledMatrix mean.
//
// A code has few values, so each kind is a table: of 256 floats for codes of a
// byte, of 256 pairs for nibbles, which decodes two at a time.

#ifndef QUIRE_MODEL_OPS_CODE_VALUES_H_
#define QUIRE_MODEL_OPS_CODE_VALUES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "quire/loader/scaled_modules.h"

namespace quire {

using NibblePair = std::array<float, 2>;  // the low nibble's value is the first

// The levels of NF4, ascending.
extern const std::array<float, 16> kNf4Levels;

// Of a kind of nibbles, by code.
const std::array<float, 16>& NibbleValues(CodeKind kind);

// The values of E4M3 for a look-up by bytes: as bfloat16, which all of them
// are.
struct F8E4M3Tables {
  using Table = std::array<uint8_t, 128>;

  static const F8E4M3Tables& Get();

  // Byte 0 and byte 1 of the value of each code without its sign.
  alignas(64) Table low;
  alignas(64) Table high;
  // For each half of 32 such values, where bytes 2 and 3 of its float32 are in
  // 64 low bytes and the 64 high bytes behind them.
  alignas(64) std::array<std::array<uint8_t, 64>, 2> spread;
};

// values[i] = the value of code i of a row, i < count.
void DecodeCodes(CodeKind kind, const uint8_t* codes, size_t count,
                 float* values);

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_CODE_VALUES_H_
