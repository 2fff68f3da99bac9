#include "model/ops/planar_repack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// Codes [rows, columns] in the planar layout, bit by bit: plane by plane, low
// bits first, each a string of its own.
std::vector<uint32_t> PackPlanar(const std::vector<uint32_t>& codes, int bits,
                                 size_t rows, size_t columns) {
  // As GPTQModel's docs/gptq_planar.md lists them.
  const std::map<int, std::vector<int>> kPlanes = {
      {2, {2}},    {3, {2, 1}},    {4, {4}}, {5, {4, 1}},
      {6, {4, 2}}, {7, {4, 2, 1}}, {8, {8}}};
  const std::vector<int>& planes = kPlanes.at(bits);
  const auto words_per_block = static_cast<size_t>(bits);
  std::vector<uint32_t> words(rows / 32 * words_per_block * columns, 0);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      size_t first_word = r / 32 * words_per_block;
      int offset = 0;
      for (const int width : planes) {
        for (int b = 0; b < width; ++b) {
          const size_t bit =
              r % 32 * static_cast<size_t>(width) + static_cast<size_t>(b);
          words[(first_word + bit / 32) * columns + c] |=
              (codes[r * columns + c] >> (offset + b) & 1) << bit % 32;
        }
        first_word += static_cast<size_t>(width);
        offset += width;
      }
    }
  }
  return words;
}

TEST(PlanarRepackTest, EveryCodeComesToItsPlace) {
  std::mt19937 random(3);
  ThreadPool pool(2);
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const size_t rows : {32, 96, 2048}) {
      for (const size_t columns : {1, 5, 520}) {
        std::vector<uint32_t> codes(rows * columns);
        for (uint32_t& code : codes) code = random() % (1u << bits);
        GuardedBuffer<uint32_t> packed(PackPlanar(codes, bits, rows, columns));
        RepackPlanar(packed.data(), bits, rows / 32, columns, &pool);
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = 0; c < columns; ++c)
            ASSERT_EQ(UnpackCode(packed.data(), bits, columns, r, c),
                      codes[r * columns + c])
                << bits << " bits, " << rows << " x " << columns << ": " << r
                << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace quire
