#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "model/ops/ops_test_util.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// Where AutoAWQ's packer puts column c of a word: its order is
// [0, 2, 4, 6, 1, 3, 5, 7], so column 1 stands in nibble 4, and so on.
constexpr int kNibbleOfColumn[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// Codes [rows, columns] as AWQ packs them: [rows, columns / 8].
std::vector<uint32_t> PackAwq(const std::vector<uint32_t>& codes, size_t rows,
                              size_t columns) {
  std::vector<uint32_t> words(rows * columns / 8, 0);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      words[r * columns / 8 + c / 8] |= codes[r * columns + c]
                                        << 4 * kNibbleOfColumn[c % 8];
  return words;
}

TEST(AwqRepackTest, EveryCodeComesToItsPlace) {
  std::mt19937 random(3);
  ThreadPool pool(2);
  for (const size_t rows : {8, 40, 256}) {
    for (const size_t columns : {8, 24, 520}) {
      std::vector<uint32_t> codes(rows * columns);
      for (uint32_t& code : codes) code = random() % 16;
      GuardedBuffer<uint32_t> packed(PackAwq(codes, rows, columns));
      RepackAwqCodes(packed.data(), rows, columns, &pool);
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c)
          ASSERT_EQ(UnpackCode(packed.data(), 4, columns, r, c),
                    codes[r * columns + c])
              << rows << " x " << columns << ": " << r << ", " << c;
    }
  }
}

TEST(AwqRepackTest, ZerosComeInTheOrderOfTheColumns) {
  std::mt19937 random(4);
  std::vector<uint32_t> zeros(48);
  for (uint32_t& zero : zeros) zero = random() % 16;
  std::vector<uint32_t> words = PackAwq(zeros, 3, 16);
  RepackAwqZeros(words.data(), words.size());
  for (size_t i = 0; i < zeros.size(); ++i)
    EXPECT_EQ(words[i / 8] >> (i % 8 * 4) & 15, zeros[i]) << i;
}

}  // namespace
}  // namespace quire
