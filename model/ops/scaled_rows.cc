// Sizes and rows of a ScaledMatrix.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/ops/code_values.h"
#include "model/ops/float_bits.h"
#include "model/ops/scaled_grid.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

size_t ScaleCount(const ScaledMatrix& matrix) {
  return ((matrix.out_features - 1) / matrix.block_rows + 1) *
         ScaleColumns(matrix);
}

float FloatAt(const void* values, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kF16:
      return F16ToF32(static_cast<const F16*>(values)[index].bits);
    case DType::kBF16:
      return BF16ToF32(static_cast<const BF16*>(values)[index].bits);
    case DType::kF8E8M0:
      return F8E8M0ToF32(static_cast<const uint8_t*>(values)[index]);
    default:
      return static_cast<const float*>(values)[index];
  }
}

float ScaleAt(const ScaledMatrix& matrix, size_t index) {
  return FloatAt(matrix.scales, matrix.scales_dtype, index);
}

}  // namespace

Bytes CodeBytes(const ScaledMatrix& matrix) {
  return Bytes(matrix.out_features * matrix.row_bytes);
}

Bytes ScaleBytes(const ScaledMatrix& matrix) {
  return Bytes(ScaleCount(matrix) * BlockBits(matrix.scales_dtype) / 8);
}

void DequantizeRow(const ScaledMatrix& matrix, size_t row, float* output) {
  DecodeCodes(matrix.kind, matrix.codes + row * matrix.row_bytes,
              matrix.in_features, output);
  const size_t columns = ScaleColumns(matrix);
  const size_t grid_row = row / matrix.block_rows;
  const size_t first = grid_row * columns;
  if (matrix.scale_column != nullptr) {
    for (size_t k = 0; k < matrix.in_features; ++k) {
      const size_t column = matrix.scale_column[k];
      output[k] = (output[k] - ZeroAt(matrix, grid_row, column, columns)) *
                  ScaleAt(matrix, first + column);
    }
    return;
  }
  for (size_t column = 0; column < columns; ++column) {
    const float scale = ScaleAt(matrix, first + column);
    const float zero = ZeroAt(matrix, grid_row, column, columns);
    const size_t begin = column * matrix.block_columns;
    const size_t end =
        begin + std::min(matrix.block_columns, matrix.in_features - begin);
    for (size_t k = begin; k < end; ++k) output[k] = (output[k] - zero) * scale;
  }
}

}  // namespace quire
