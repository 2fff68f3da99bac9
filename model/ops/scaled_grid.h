// The grid of scales and zero points of a ScaledMatrix, element by element.

#ifndef QUIRE_MODEL_OPS_SCALED_GRID_H_
#define QUIRE_MODEL_OPS_SCALED_GRID_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "model/ops/packed_codes.h"
#include "quire/model/ops.h"

namespace quire {

inline size_t ScaleColumns(const ScaledMatrix& matrix) {
  return (matrix.in_features - 1) / matrix.block_columns + 1;
}

inline float F8E8M0ToF32(uint8_t code) {
  // 2^(code - 127): the exponent of a float32; 0 is a subnormal, 255 is NaN.
  const uint32_t bits = code == 0     ? 0x00400000u
                        : code == 255 ? 0x7FC00000u
                                      : static_cast<uint32_t>(code) << 23;
  return std::bit_cast<float>(bits);
}

// Of the cell (row, column) of the grid, which has `columns` columns.
inline float ZeroAt(const ScaledMatrix& matrix, size_t row, size_t column,
                    size_t columns) {
  if (matrix.zeros == nullptr) return 0;
  if (matrix.zeros_dtype == DType::kI8)
    return static_cast<const int8_t*>(matrix.zeros)[row * columns + column];
  const int bits = CodeBits(matrix.kind);
  const uint32_t stored = PackedCode(
      static_cast<const uint32_t*>(matrix.zeros) + column, columns, bits, row);
  return static_cast<float>(stored) -
         static_cast<float>(uint32_t{1} << (bits - 1));
}

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_SCALED_GRID_H_
