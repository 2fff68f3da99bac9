// UnpackCode and PermutePackedRows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/ops/packed_codes.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

// A cache line of words. Loops over it are left to the compiler's vectoriser.
constexpr size_t kColumns = 16;

// Copies `columns` words, zeros after them.
void LoadWords(const uint32_t* from, size_t columns, uint32_t* to) {
  std::copy_n(from, columns, to);
  std::fill(to + columns, to + kColumns, 0u);
}

// The rows' codes of kColumns columns, from words that are `stride` apart.
void UnpackTile(const uint32_t* words, size_t stride, size_t columns, int bits,
                size_t rows, std::vector<uint8_t>* codes) {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t low[kColumns];
  uint32_t high[kColumns];
  for (size_t row = 0; row < rows; ++row) {
    const size_t bit = row * static_cast<size_t>(bits);
    const int shift = static_cast<int>(bit % 32);
    const uint32_t* const word = words + bit / 32 * stride;
    LoadWords(word, columns, low);
    uint8_t* const out = codes->data() + row * kColumns;
    if (shift + bits > 32) {
      LoadWords(word + stride, columns, high);
      for (size_t c = 0; c < kColumns; ++c) {
        out[c] = static_cast<uint8_t>(
            ((low[c] >> shift) | (high[c] << (32 - shift))) & mask);
      }
    } else {
      for (size_t c = 0; c < kColumns; ++c)
        out[c] = static_cast<uint8_t>((low[c] >> shift) & mask);
    }
  }
}

// Writes the words that hold the codes of row order[i] as row i.
void PackTile(const std::vector<uint8_t>& codes, const uint32_t* order,
              int bits, size_t rows, size_t columns, size_t stride,
              uint32_t* words) {
  // Bits that wait for their word to fill up.
  uint64_t pending[kColumns] = {};
  int filled = 0;
  for (size_t row = 0; row < rows; ++row) {
    const uint8_t* const in = codes.data() + order[row] * kColumns;
    for (size_t c = 0; c < kColumns; ++c)
      pending[c] |= static_cast<uint64_t>(in[c]) << filled;
    filled += bits;
    if (filled < 32 && row + 1 < rows) continue;
    for (size_t c = 0; c < columns; ++c)
      words[c] = static_cast<uint32_t>(pending[c]);
    for (uint64_t& p : pending) p >>= 32;
    words += stride;
    filled -= 32;
  }
  // The last row may have filled a word and begun another.
  if (filled > 0)
    for (size_t c = 0; c < columns; ++c)
      words[c] = static_cast<uint32_t>(pending[c]);
}

}  // namespace

void PermutePackedRows(uint32_t* qweight, int bits, size_t in_features,
                       size_t out_features, const uint32_t* order,
                       ThreadPool* pool) {
  const size_t tiles = (out_features + kColumns - 1) / kColumns;
  pool->ParallelFor(tiles, 8, [&](size_t begin, size_t end) {
    std::vector<uint8_t> codes(in_features * kColumns);
    for (size_t tile = begin; tile < end; ++tile) {
      const size_t first = tile * kColumns;
      const size_t columns = std::min(kColumns, out_features - first);
      UnpackTile(qweight + first, out_features, columns, bits, in_features,
                 &codes);
      PackTile(codes, order, bits, in_features, columns, out_features,
               qweight + first);
    }
  });
}

uint32_t UnpackCode(const uint32_t* qweight, int bits, size_t out_features,
                    size_t row, size_t column) {
  return PackedCode(qweight + column, out_features, bits, row);
}

}  // namespace quire
