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

// values[i] = the value of code i of a row, i < count.
void DecodeCodes(CodeKind kind, const uint8_t* codes, size_t count,
                 float* values);

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_CODE_VALUES_H_
