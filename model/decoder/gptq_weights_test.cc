#include "model/decoder/gptq_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SortRowsByGroupTest, SequentialRowsStayAsTheyAre) {
  const GroupedRows rows = SortRowsByGroup({0, 0, 1, 1, 1, 2}, 3);
  EXPECT_THAT(rows.order, IsEmpty());
  EXPECT_THAT(rows.begin, ElementsAre(0, 2, 5, 6));
}

TEST(SortRowsByGroupTest, SortsStablyAndCountsEmptyGroups) {
  const GroupedRows rows = SortRowsByGroup({3, 0, 3, 1, 0}, 4);
  EXPECT_THAT(rows.order, ElementsAre(1, 4, 3, 0, 2));
  EXPECT_THAT(rows.begin, ElementsAre(0, 2, 3, 3, 5));
}

TEST(SortRowsByGroupTest, AgreesWithAStableSort) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const uint32_t groups = 1 + random() % 9;
    std::vector<uint32_t> group_of_row(random() % 200);
    for (uint32_t& group : group_of_row) group = random() % groups;
    std::vector<uint32_t> expected(group_of_row.size());
    std::iota(expected.begin(), expected.end(), 0u);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](uint32_t a, uint32_t b) {
                       return group_of_row[a] < group_of_row[b];
                     });
    GroupedRows rows = SortRowsByGroup(group_of_row, groups);
    if (rows.order.empty()) {
      rows.order.resize(group_of_row.size());
      std::iota(rows.order.begin(), rows.order.end(), 0u);
    }
    EXPECT_EQ(rows.order, expected);
    for (uint32_t g = 0; g < groups; ++g)
      EXPECT_EQ(rows.begin[g + 1] - rows.begin[g],
                std::count(group_of_row.begin(), group_of_row.end(), g));
  }
}

GptqModule SymmetricModule(bool sym) {
  GptqModule module;
  module.name = "model.layers.0.mlp.up_proj";
  module.settings.bits = 4;
  module.settings.sym = sym;
  module.groups = 1;
  module.out_features = 8;
  return module;
}

ZeroReading Read(bool sym, bool label_says_v2, uint32_t word) {
  return ReadZeros(SymmetricModule(sym), label_says_v2,
                   DetectZeroConvention(&word, 1, 8, 4));
}

void ExpectReading(const ZeroReading& reading, uint32_t offset,
                   ZeroLabel label) {
  EXPECT_EQ(reading.offset, offset);
  EXPECT_EQ(reading.label, label);
}

TEST(ReadZerosTest, TheDataOfASymmetricModuleDecides) {
  // The stored form of zero point 8: 7 in every field under v1, 8 under v2.
  const uint32_t v1 = 0x77777777;
  const uint32_t v2 = 0x88888888;
  ExpectReading(Read(true, false, v1), 1, ZeroLabel::kRight);
  ExpectReading(Read(true, true, v2), 0, ZeroLabel::kRight);
  ExpectReading(Read(true, false, v2), 0, ZeroLabel::kV2AsV1);
  ExpectReading(Read(true, true, v1), 1, ZeroLabel::kV1AsV2);
}

TEST(ReadZerosTest, TheLabelDecidesWhereZerosAreNotSymmetric) {
  const uint32_t words = 0x12345678;
  ExpectReading(Read(false, false, words), 1, ZeroLabel::kRight);
  ExpectReading(Read(false, true, words), 0, ZeroLabel::kRight);
  ExpectReading(Read(true, false, words), 1, ZeroLabel::kNotSymmetric);
  ExpectReading(Read(true, true, words), 0, ZeroLabel::kNotSymmetric);
}

}  // namespace
}  // namespace quire
