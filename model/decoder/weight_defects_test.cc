#include "model/decoder/weight_defects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace quire {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  defects.AddGptq(sound.module, sound.matrix);
  defects.AddScaled({}, {});
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
  ScaledModule fp8;
  fp8.name = "lm_head";
  WeightDefects defects;
  defects.AddGptq(first.module, first.matrix);
  defects.AddGptq(second.module, second.matrix);
  defects.AddScaled(fp8, {.scales = 3, .codes = 11});
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(
      warnings,
      ElementsAre(
          AllOf(HasSubstr("5 scale(s) are NaN or infinite"),
                HasSubstr("in 3 module(s), the first is "
                          "\"model.layers.3.mlp.up_proj\"")),
          AllOf(HasSubstr("11 weight(s) are NaN"), HasSubstr("\"lm_head\"")),
          AllOf(HasSubstr("8 zero point(s)"), HasSubstr("in 2 module(s)"))));
}

TEST(WeightDefectsTest, ZerosThatAreStoredAsTheyAreDoNotWrap) {
  SmallGptq v2;
  v2.zeros = {0xFFFFFFFF, 0xFFFFFFFF};
  v2.matrix.qzeros = v2.zeros.data();
  v2.matrix.zero_offset = 0;
  WeightDefects defects;
  defects.AddGptq(v2.module, v2.matrix);
  std::vector<std::string> warnings;
  defects.AppendTo(&warnings);
  EXPECT_THAT(warnings, IsEmpty());
}

}  // namespace
}  // namespace quire
