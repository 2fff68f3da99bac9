#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "loader/gptq_test_util.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

ZeroConvention Detect(const std::vector<uint32_t>& words, uint64_t groups,
                      uint64_t columns, int bits) {
  return DetectZeroConvention(words.data(), groups, columns, bits);
}

// The words that AutoGPTQ (v1) and GPTQModel (v2) write for symmetric modules.
TEST(GptqZerosTest, KnowsThePublishedWords) {
  struct Case {
    int bits;
    std::vector<uint32_t> v1;
    std::vector<uint32_t> v2;
  };
  const std::vector<Case> cases = {{2, {0x55555555}, {0xaaaaaaaa}},
                                   {3,
                                    {0xdb6db6db, 0xb6db6db6, 0x6db6db6d},
                                    {0x24924924, 0x49249249, 0x92492492}},
                                   {4, {0x77777777}, {0x88888888}},
                                   {8, {0x7f7f7f7f}, {0x80808080}}};
  for (const Case& c : cases) {
    const uint64_t columns = c.v1.size() * 32 / c.bits;
    EXPECT_EQ(Detect(c.v1, 1, columns, c.bits), ZeroConvention::kV1) << c.bits;
    EXPECT_EQ(Detect(c.v2, 1, columns, c.bits), ZeroConvention::kV2) << c.bits;
    std::vector<uint32_t> rows = c.v1;
    rows.insert(rows.end(), c.v1.begin(), c.v1.end());
    EXPECT_EQ(Detect(rows, 2, columns, c.bits), ZeroConvention::kV1);
    std::copy(c.v2.begin(), c.v2.end(), rows.begin());
    EXPECT_EQ(Detect(rows, 2, columns, c.bits), ZeroConvention::kNeither);
  }
}

TEST(GptqZerosTest, EveryFieldCounts) {
  for (const int bits : {2, 3, 4, 8}) {
    const uint32_t middle = 1u << (bits - 1);
    for (const uint64_t columns : {1, 7, 31, 32, 33, 64, 100}) {
      const std::vector<uint32_t> v1(columns, middle - 1);
      const std::vector<uint32_t> v2(columns, middle);
      EXPECT_EQ(Detect(PackBits(v1, bits), 1, columns, bits),
                ZeroConvention::kV1);
      EXPECT_EQ(Detect(PackBits(v2, bits), 1, columns, bits),
                ZeroConvention::kV2);
      for (uint64_t changed = 0; changed < columns; ++changed) {
        for (std::vector<uint32_t> codes : {v1, v2}) {
          codes[changed] ^= 1u << (changed % bits);
          if (codes == v1 || codes == v2) continue;
          EXPECT_EQ(Detect(PackBits(codes, bits), 1, columns, bits),
                    ZeroConvention::kNeither)
              << bits << " " << columns << " " << changed;
        }
      }
    }
  }
}

TEST(GptqZerosTest, BitsBehindTheLastColumnDoNotCount) {
  std::vector<uint32_t> words = PackBits(std::vector<uint32_t>(5, 7), 4);
  words.back() |= 0xabc00000;
  EXPECT_EQ(Detect(words, 1, 5, 4), ZeroConvention::kV1);
}

TEST(GptqZerosTest, NothingIsNeither) {
  EXPECT_EQ(Detect({}, 0, 8, 4), ZeroConvention::kNeither);
  EXPECT_EQ(Detect({}, 1, 0, 4), ZeroConvention::kNeither);
}

// Of every width, whether fields straddle words or not.
TEST(GptqZerosTest, WrappedZerosAreCounted) {
  std::mt19937 random(1);
  for (const int bits : {2, 3, 4, 8}) {
    for (const uint64_t columns : {1, 11, 32, 75}) {
      std::vector<uint32_t> words;
      uint64_t wrapped = 0;
      for (int group = 0; group < 3; ++group) {
        std::vector<uint32_t> row(columns);
        for (uint32_t& code : row) {
          code = random() % (1u << bits);
          if (code == (1u << bits) - 1) ++wrapped;
        }
        const std::vector<uint32_t> packed = PackBits(row, bits);
        words.insert(words.end(), packed.begin(), packed.end());
      }
      EXPECT_EQ(CountWrappedZeros(words.data(), 3, columns, bits), wrapped)
          << bits << " " << columns;
    }
  }
}

}  // namespace
}  // namespace quire
