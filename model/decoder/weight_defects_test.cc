#include "model/decoder/weight_defects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace quire {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct SmallGptq {
  SmallGptq() {
    module.name = "model.layers.3.mlp.up_proj";
    matrix.bits = 4;
    matrix.groups = 2;
    matrix.out_features = 8;
    matrix.qzeros = zeros.data();
    matrix.scales = scales.data();
    matrix.scales_dtype = DType::kF32;
    matrix.zero_offset = 1;
  }

  GptqModule module;
  GptqMatrix matrix;
  std::vector<uint32_t> zeros = {0x77777777, 0x77777777};
  std::vector<float> scales = std::vector<float>(16, 0.5f);
};

TEST(WeightDefectsTest, SaysNothingOfSoundWeights) {
  SmallGptq sound;
  WeightDefects defects;
  defects.AddGptq(sound.module, sound.matrix, ZeroLabel::kRight);
  defects.AddNonFinite("lm_head", {});
  defects.AddGroupIndex(sound.module, GroupIndexOddity::kNone);
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(WeightDefectsTest, CountsOverModules) {
  SmallGptq first;
  // AutoGPTQ's writer on [8, 0, 5, ...]: the -1 of the second fills the word.
  first.zeros[0] = 0xFFFFFFF7;
  first.scales[5] = std::numeric_limits<float>::quiet_NaN();
  SmallGptq second;
  second.zeros[1] = 0x7777777F;
  second.scales[0] = std::numeric_limits<float>::infinity();
  WeightDefects defects;
  defects.AddGptq(first.module, first.matrix, ZeroLabel::kRight);
  defects.AddGptq(second.module, second.matrix, ZeroLabel::kRight);
  defects.AddNonFinite("lm_head", {.scales = 3, .codes = 11});
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("5 scale(s) are NaN or infinite"),
                                HasSubstr("in 3 module(s), the first is "
                                          "\"model.layers.3.mlp.up_proj\"")),
                          AllOf(HasSubstr("11 weight(s) are NaN or infinite"),
                                HasSubstr("\"lm_head\"")),
                          AllOf(HasSubstr("8 zero point(s)"),
                                HasSubstr("in 2 module(s)"))));
}

// However many modules there are, a kind is one sentence.
TEST(WeightDefectsTest, SaysEachKindOnce) {
  WeightDefects defects;
  for (const char* name : {"a", "b", "c"}) {
    GptqModule module;
    module.name = name;
    defects.AddZeros(module, {1, ZeroLabel::kV1AsV2}, 0);
    defects.AddZeros(module, {0, ZeroLabel::kV2AsV1}, 0);
    defects.AddZeros(module, {0, ZeroLabel::kNotSymmetric}, 0);
    defects.AddGroupIndex(module, GroupIndexOddity::kAllZero);
    defects.AddGroupIndex(module, GroupIndexOddity::kUnequalGroups);
    defects.AddBias(name);
  }
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(warnings,
              AllOf(SizeIs(6), Each(HasSubstr("in 3 module(s), the first is "
                                              "\"a\""))));
  EXPECT_THAT(
      warnings,
      ElementsAre(HasSubstr("read as v1"), HasSubstr("read as v2"),
                  HasSubstr("labelled symmetric"),
                  HasSubstr("g_idx is all zero"),
                  HasSubstr("groups of other sizes"), HasSubstr("biases")));
}

TEST(WeightDefectsTest, ZerosThatAreStoredAsTheyAreDoNotWrap) {
  SmallGptq v2;
  v2.zeros = {0xFFFFFFFF, 0xFFFFFFFF};
  v2.matrix.qzeros = v2.zeros.data();
  v2.matrix.zero_offset = 0;
  WeightDefects defects;
  defects.AddGptq(v2.module, v2.matrix, ZeroLabel::kRight);
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(warnings, IsEmpty());
}

}  // namespace
}  // namespace quire
