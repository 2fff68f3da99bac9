#include "model/ops/planar_repack.h"

namespace quire {
namespace {

constexpr size_t kPlanarBits = 3;  // the only width of two planes
constexpr size_t kWordsOfLowPlane = 2;
constexpr size_t kCodesOfWord = 16;  // of the low plane
// Blocks of one column are too little work for a task.
constexpr size_t kWordsPerTask = 4096;

// 32 codes of a column, whose words are `stride` apart.
void RepackBlock(uint32_t* words, size_t stride) {
  uint32_t string[kPlanarBits] = {};
  const uint32_t high = words[kWordsOfLowPlane * stride];
  for (size_t i = 0; i < kWordsOfLowPlane * kCodesOfWord; ++i) {
    const uint32_t low =
        words[i / kCodesOfWord * stride] >> (2 * (i % kCodesOfWord)) & 3;
    const uint32_t code = low | (high >> i & 1) << 2;
    const size_t bit = i * kPlanarBits;
    string[bit / 32] |= code << bit % 32;
    if (bit % 32 > 32 - kPlanarBits)
      string[bit / 32 + 1] |= code >> (32 - bit % 32);
  }
  for (size_t i = 0; i < kPlanarBits; ++i) words[i * stride] = string[i];
}

}  // namespace

void RepackPlanar(uint32_t* words, int bits, size_t blocks, size_t columns,
                  ThreadPool* pool) {
  // One plane is a string of bits already.
  if (bits != static_cast<int>(kPlanarBits)) return;
  const size_t grain = kWordsPerTask / (columns * kPlanarBits) + 1;
  pool->ParallelFor(blocks, grain, [&](size_t begin, size_t end) {
    for (size_t block = begin; block < end; ++block) {
      uint32_t* const first = words + block * kPlanarBits * columns;
      for (size_t c = 0; c < columns; ++c) RepackBlock(first + c, columns);
    }
  });
}

}  // namespace quire
