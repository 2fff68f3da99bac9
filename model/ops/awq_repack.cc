// From AWQ's packing to GPTQ's.
//
// Eight rows by one word of AWQ and eight columns by one word of GPTQ are the
// same square of 8 x 8 codes, one the transpose of the other. Eight rows of AWQ
// are eight times N/8 words, which is exactly a row of N words of GPTQ: so rows
// are repacked where they lie, eight at a time, through a copy of themselves.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/loader/gptq.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

constexpr size_t kCodes = 8;  // of a word
constexpr int kBits = 4;

// Transposes the square whose row r is the word square[r]: exchanges its
// quarters, the quarters of these, and single codes (Hacker's Delight, 7-3).
void Transpose(uint32_t (&square)[kCodes]) {
  uint32_t mask = 0x0000FFFF;  // the lower half of every run of 2 * distance
  for (size_t distance = 4; distance > 0; distance /= 2) {
    const int shift = static_cast<int>(distance) * kBits;
    for (size_t row = 0; row < kCodes; ++row) {
      if ((row & distance) != 0) continue;
      uint32_t& low = square[row];
      uint32_t& high = square[row + distance];
      const uint32_t exchanged = ((low >> shift) ^ high) & mask;
      high ^= exchanged;
      low ^= exchanged << shift;
    }
    mask ^= mask << (shift / 2);
  }
}

}  // namespace

void RepackAwqCodes(uint32_t* qweight, size_t in_features, size_t out_features,
                    ThreadPool* pool) {
  const size_t words = out_features / kCodes;
  pool->ParallelFor(in_features / kCodes, 1, [&](size_t begin, size_t end) {
    std::vector<uint32_t> rows(out_features);
    for (size_t block = begin; block < end; ++block) {
      uint32_t* const out = qweight + block * out_features;
      std::copy_n(out, out_features, rows.begin());
      for (size_t w = 0; w < words; ++w) {
        uint32_t square[kCodes];
        for (size_t r = 0; r < kCodes; ++r) square[r] = rows[r * words + w];
        Transpose(square);
        for (size_t i = 0; i < kCodes; ++i)
          out[w * kCodes + static_cast<size_t>(kAwqOrder[i])] = square[i];
      }
    }
  });
}

void RepackAwqZeros(uint32_t* qzeros, size_t words) {
  for (size_t w = 0; w < words; ++w) {
    uint32_t repacked = 0;
    for (size_t i = 0; i < kCodes; ++i) {
      const uint32_t code = qzeros[w] >> (i * kBits) & 15;
      repacked |= code << (kAwqOrder[i] * kBits);
    }
    qzeros[w] = repacked;
  }
}

}  // namespace quire
