#include "model/ops/planar_repack.h"

#include <span>

namespace quire {
namespace {

constexpr size_t kBlockCodes = 32;
constexpr size_t kWordBits = 32;
constexpr size_t kMostBits = 8;
// Blocks of one column are too little work for a task.
constexpr size_t kWordsPerTask = 4096;

// The widths of the planes, the low bits first.
std::span<const size_t> PlanesOf(int bits) {
  static constexpr size_t kThree[] = {2, 1};
  static constexpr size_t kFive[] = {4, 1};
  static constexpr size_t kSix[] = {4, 2};
  static constexpr size_t kSeven[] = {4, 2, 1};
  switch (bits) {
    case 3:
      return kThree;
    case 5:
      return kFive;
    case 6:
      return kSix;
    case 7:
      return kSeven;
    default:
      return {};  // one plane is a string of bits already
  }
}

// kBlockCodes codes of a column, whose words are `stride` apart.
void RepackBlock(std::span<const size_t> planes, size_t bits, uint32_t* words,
                 size_t stride) {
  uint32_t string[kMostBits] = {};
  for (size_t i = 0; i < kBlockCodes; ++i) {
    uint32_t code = 0;
    size_t before = 0;  // bits in the planes before: words, too
    for (const size_t width : planes) {
      const size_t bit = i * width;
      const uint32_t word = words[(before + bit / kWordBits) * stride];
      code |= (word >> bit % kWordBits & ((1u << width) - 1)) << before;
      before += width;
    }
    const size_t bit = i * bits;
    string[bit / kWordBits] |= code << bit % kWordBits;
    if (bit % kWordBits + bits > kWordBits)
      string[bit / kWordBits + 1] |= code >> (kWordBits - bit % kWordBits);
  }
  for (size_t i = 0; i < bits; ++i) words[i * stride] = string[i];
}

}  // namespace

void RepackPlanar(uint32_t* words, int bits, size_t blocks, size_t columns,
                  ThreadPool* pool) {
  const std::span<const size_t> planes = PlanesOf(bits);
  if (planes.empty()) return;
  const auto width = static_cast<size_t>(bits);
  const size_t grain = kWordsPerTask / (columns * width) + 1;
  pool->ParallelFor(blocks, grain, [&](size_t begin, size_t end) {
    for (size_t block = begin; block < end; ++block) {
      uint32_t* const first = words + block * width * columns;
      for (size_t c = 0; c < columns; ++c)
        RepackBlock(planes, width, first + c, columns);
    }
  });
}

}  // namespace quire
