// The grid of values that a group of weights is rounded to.
//
// w is stored as a code q in [0, 2^bits) and read as scale * (q - zero).
// Min-max and error-minimising fits as in the GPTQ authors' code
// (github.com/IST-DASLab/gptq, quant.py).

#ifndef QUIRE_MODEL_QUANTIZER_QUANTIZATION_GRID_H_
#define QUIRE_MODEL_QUANTIZER_QUANTIZATION_GRID_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

struct GridOptions {
  int bits = 4;
  bool sym = true;  // zero = 2^(bits-1), the grid is symmetric around 0
  // Also tries narrower grids and keeps the one of least squared error: few
  // outliers are met less well, all other weights better.
  bool mse = true;
};

struct QuantizationGrid {
  float scale = 1;    // exactly a half-precision number, as it is stored
  uint32_t zero = 0;  // in [0, 2^bits)

  // The nearest code. REQUIRES: max_code is 2^bits - 1 of the grid.
  uint32_t Code(float weight, uint32_t max_code) const;
  float Value(uint32_t code) const {
    return scale * (static_cast<float>(code) - static_cast<float>(zero));
  }
};

// The grid for `weights`. A group of zeros gets a grid that holds zero.
QuantizationGrid FitGrid(std::span<const float> weights,
                         const GridOptions& options);

// The nearest half-precision number, by round-to-nearest-even; what is larger
// than all of them gives the largest.
float RoundToHalf(float value);
// Its bits. REQUIRES: value == RoundToHalf(value).
uint16_t HalfBits(float value);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_QUANTIZATION_GRID_H_
