#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/gptq_test_util.h"
#include "loader/tensors_test_util.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GptqModulesTest : public testing::Test {
 protected:
  GptqModulesTest() { folder_.Write("config.json", "{}"); }

  // A module with tensors of the right shapes: K = 64, N = 24, 4 bits, g = 32.
  static Tensors Good() {
    std::vector<int32_t> groups(64);
    for (int row = 0; row < 64; ++row) groups[row] = row / 32;
    return {{"m.qweight", {"I32", {8, 24}, ""}},
            {"m.qzeros", {"I32", {2, 3}, ""}},
            {"m.scales", {"F16", {2, 24}, ""}},
            {"m.g_idx", {"I32", {64}, BytesOfAll(groups)}}};
  }

  absl::StatusOr<std::vector<GptqModule>> Find(
      const Tensors& tensors,
      const std::string& config = R"({"bits":4,"group_size":32})") {
    folder_.Write("model.safetensors", FileOf(tensors));
    folder_.Write("quantize_config.json", config);
    checkpoint_ = *Checkpoint::Open(folder_.path());
    const auto parsed = GptqConfig::Parse(*checkpoint_);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return FindGptqModules(*checkpoint_, *parsed);
  }
  GptqModule FindOne(
      const Tensors& tensors,
      const std::string& config = R"({"bits":4,"group_size":32})") {
    const auto modules = Find(tensors, config);
    EXPECT_TRUE(modules.ok()) << modules.status();
    if (!modules.ok()) return {};
    EXPECT_EQ(modules->size(), 1u);
    return modules->front();
  }
  void ExpectRefused(
      const Tensors& tensors, const std::string& tensor,
      const std::string& part,
      const std::string& config = R"({"bits":4,"group_size":32})") {
    const auto modules = Find(tensors, config);
    ASSERT_FALSE(modules.ok()) << tensor;
    EXPECT_THAT(std::string(modules.status().message()),
                AllOf(HasSubstr("model.safetensors"),
                      HasSubstr("\"" + tensor + "\""), HasSubstr(part)));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(GptqModulesTest, FindsAModuleAndItsSizes) {
  Tensors tensors = Good();
  tensors["m.bias"] = {"F16", {24}, ""};
  tensors["m.perm"] = {"I64", {64}, ""};  // OneComp up to 1.3.2
  tensors["norm.weight"] = {"F16", {64}, ""};
  const GptqModule module = FindOne(tensors);
  EXPECT_EQ(module.name, "m");
  EXPECT_EQ(module.in_features, 64u);
  EXPECT_EQ(module.out_features, 24u);
  EXPECT_EQ(module.groups, 2u);
  EXPECT_EQ(module.settings.bits, 4);
  EXPECT_EQ(module.settings.group_size, 32);
  EXPECT_EQ(module.qweight, checkpoint_->Find("m.qweight"));
  EXPECT_EQ(module.qzeros, checkpoint_->Find("m.qzeros"));
  EXPECT_EQ(module.scales, checkpoint_->Find("m.scales"));
  EXPECT_EQ(module.g_idx, checkpoint_->Find("m.g_idx"));
  EXPECT_EQ(module.bias, checkpoint_->Find("m.bias"));
}

TEST_F(GptqModulesTest, ModulesComeInTheOrderOfTheirNames) {
  Tensors tensors;
  for (const char* name : {"lm_head", "b", "a"})
    for (const auto& [part, tensor] : Good())
      tensors[name + part.substr(1)] = tensor;
  const auto modules = Find(tensors);
  ASSERT_TRUE(modules.ok()) << modules.status();
  std::vector<std::string> names;
  for (const GptqModule& module : *modules) names.push_back(module.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "lm_head"));
}

TEST_F(GptqModulesTest, EveryWidthHasTheShapeOfItsBitString) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const uint64_t inputs : {32, 64, 96, 40}) {
      for (const uint64_t outputs : {1, 8, 31, 32, 64}) {
        // As many words as the naive writer makes.
        const uint64_t rows =
            PackBits(std::vector<uint32_t>(inputs), bits).size();
        const uint64_t columns =
            PackBits(std::vector<uint32_t>(outputs), bits).size();
        const Tensors tensors = {{"m.qweight", {"I32", {rows, outputs}, ""}},
                                 {"m.qzeros", {"I32", {1, columns}, ""}},
                                 {"m.scales", {"F32", {1, outputs}, ""}},
                                 {"m.g_idx", {"I32", {inputs}, ""}}};
        const GptqModule module = FindOne(
            tensors, absl::StrCat("{\"bits\":", bits, ",\"group_size\":-1}"));
        EXPECT_EQ(module.in_features, inputs);
        EXPECT_EQ(module.out_features, outputs);
        EXPECT_EQ(module.groups, 1u);
      }
    }
  }
}

TEST_F(GptqModulesTest, WithoutGIdxTheRowsTellTheInputs) {
  Tensors tensors = Good();
  tensors.erase("m.g_idx");
  const GptqModule module = FindOne(tensors);
  EXPECT_EQ(module.in_features, 64u);
  EXPECT_EQ(module.g_idx, nullptr);
  tensors["m.qweight"].shape = {7, 24};
  ExpectRefused(tensors, "m.scales",
                "74 inputs (the most that qweight holds at 3 bits)",
                R"({"bits":3,"group_size":32})");
}

// The last word, and the last group, may be used in part: what the shapes leave
// open, the model decides.
TEST_F(GptqModulesTest, WithoutGIdxInputsMayEndWithinAWord) {
  constexpr uint64_t kOutputs = 8;
  for (const int bits : {2, 3, 4, 8}) {
    const uint64_t columns =
        PackBits(std::vector<uint32_t>(kOutputs), bits).size();
    for (const int64_t group_size : {-1, 8, 20, 128}) {
      // Rows of qweight and of the scales, by inputs.
      std::vector<std::pair<uint64_t, uint64_t>> shapes(91);
      for (uint64_t inputs = 1; inputs < shapes.size(); ++inputs)
        shapes[inputs] = {
            PackBits(std::vector<uint32_t>(inputs), bits).size(),
            group_size < 0 ? 1
                           : (inputs + static_cast<uint64_t>(group_size) - 1) /
                                 static_cast<uint64_t>(group_size)};
      for (uint64_t inputs = 1; inputs <= 70; inputs += 3) {
        const auto& [rows, groups] = shapes[inputs];
        const GptqModule module =
            FindOne({{"m.qweight", {"I32", {rows, kOutputs}, ""}},
                     {"m.qzeros", {"I32", {groups, columns}, ""}},
                     {"m.scales", {"F16", {groups, kOutputs}, ""}}},
                    absl::StrCat("{\"bits\":", bits,
                                 ",\"group_size\":", group_size, "}"));
        for (uint64_t other = 1; other < shapes.size(); ++other) {
          GptqModule copy = module;
          const bool fits = shapes[other] == shapes[inputs];
          ASSERT_EQ(copy.SetInFeatures(other), fits)
              << other << " inputs with the shapes of " << inputs << " at "
              << bits << " bits in groups of " << group_size;
          ASSERT_EQ(copy.in_features, fits ? other : module.in_features);
        }
      }
    }
  }
}

TEST_F(GptqModulesTest, AGroupSizeThatIsInferredGoesWithTheInputs) {
  GptqModule module = FindOne({{"m.qweight", {"I32", {13, 24}, ""}},
                               {"m.qzeros", {"I32", {5, 3}, ""}},
                               {"m.scales", {"F16", {5, 24}, ""}}},
                              R"({"bits":4})");
  EXPECT_EQ(module.in_features, 104u);
  EXPECT_EQ(module.settings.group_size, 21);
  EXPECT_TRUE(module.SetInFeatures(100));
  EXPECT_EQ(module.settings.group_size, 20);
}

TEST_F(GptqModulesTest, InputsNeedNotBeAMultipleOfTheGroup) {
  Tensors tensors = Good();
  tensors["m.qweight"].shape = {10, 24};
  tensors["m.g_idx"] = {"I32", {80}, ""};
  tensors["m.scales"].shape = {3, 24};
  tensors["m.qzeros"].shape = {3, 3};
  EXPECT_EQ(FindOne(tensors).groups, 3u);
}

TEST_F(GptqModulesTest, AMissingGroupSizeIsTakenFromTheShapes) {
  EXPECT_EQ(FindOne(Good(), R"({"bits":4})").settings.group_size, 32);
  Tensors tensors = Good();
  tensors["m.scales"].shape = {1, 24};
  tensors["m.qzeros"].shape = {1, 3};
  EXPECT_EQ(FindOne(tensors, R"({"bits":4})").settings.group_size, -1);
  tensors["m.qweight"].shape = {32, 24};
  tensors["m.g_idx"] = {"I32", {256}, ""};
  tensors["m.scales"].shape = {2, 24};
  tensors["m.qzeros"].shape = {2, 3};
  EXPECT_EQ(FindOne(tensors, R"({"bits":4})").settings.group_size, 128);
}

TEST_F(GptqModulesTest, TheTensorsDecideWhatIsQuantised) {
  const GptqModule module =
      FindOne(Good(), R"({"bits":4,"group_size":32,"dynamic":{"-:m":{}}})");
  EXPECT_EQ(module.settings.bits, 4);
}

TEST_F(GptqModulesTest, MissingTensorsAreNamed) {
  for (const char* name : {"m.qzeros", "m.scales"}) {
    Tensors tensors = Good();
    tensors.erase(name);
    ExpectRefused(tensors, name, "is missing; it belongs to \"m.qweight\"");
  }
}

TEST_F(GptqModulesTest, WrongShapesAndTypesAreNamed) {
  struct Case {
    const char* tensor;
    Tensor changed;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"m.qweight", {"I32", {6, 24}, ""}, "64 inputs"},
      {"m.qweight", {"I32", {6, 24}, ""}, "it would fit 3 bits"},
      {"m.qweight", {"I32", {16, 24}, ""}, "it would fit 8 bits"},
      {"m.qweight", {"I32", {64, 24}, ""}, "unpacked codes"},
      {"m.qweight", {"I32", {8, 23}, ""}, "the scales have 24 columns"},
      {"m.qweight",
       {"I32", {64, 3}, ""},
       "as AWQ does, but the configuration says GPTQ"},
      {"m.qweight", {"I32", {192}, ""}, "two dimensions"},
      {"m.qweight", {"I32", {8, 24, 1}, ""}, "two dimensions"},
      {"m.qweight", {"I32", {0, 24}, ""}, "none of them zero"},
      {"m.qweight", {"U8", {64, 24}, ""}, "packed codes are I32"},
      {"m.qzeros", {"I32", {1, 3}, ""}, "the scales have 2 rows"},
      {"m.qzeros", {"I32", {2, 4}, ""}, "24 outputs with bits = 4"},
      {"m.qzeros", {"F16", {2, 3}, ""}, "packed codes are I32"},
      {"m.scales",
       {"F16", {3, 24}, ""},
       "64 inputs (the length of g_idx) with group_size = 32"},
      {"m.scales", {"F16", {24}, ""}, "two dimensions"},
      {"m.scales", {"I32", {2, 24}, ""}, "scales are F16, BF16 or F32"},
      {"m.g_idx", {"I64", {64}, ""}, "g_idx is I32"},
      {"m.g_idx", {"I32", {8, 8}, ""}, "g_idx is I32"},
      {"m.g_idx", {"I32", {0}, ""}, "g_idx is I32"},
      {"m.bias", {"F16", {25}, ""}, "24 outputs"},
      {"m.bias", {"F16", {1, 24}, ""}, "24 outputs"},
      {"m.bias", {"I32", {24}, ""}, "F16, BF16 or F32"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.part);
    Tensors tensors = Good();
    tensors[c.tensor] = c.changed;
    ExpectRefused(tensors, c.tensor, c.part);
  }
}

TEST_F(GptqModulesTest, AConfigurationThatDisagreesWithTheShapesIsNamed) {
  ExpectRefused(Good(), "m.qweight", "quantize_config.json",
                R"({"bits":8,"group_size":32})");
  ExpectRefused(Good(), "m.scales", "group_size = 64",
                R"({"bits":4,"group_size":64})");
  Tensors without_index = Good();
  without_index.erase("m.g_idx");
  ExpectRefused(without_index, "m.scales", "holds at 8 bits",
                R"({"bits":8,"group_size":32})");
  ExpectRefused(Good(), "m.scales", "group_size = -1",
                R"({"bits":4,"group_size":-1})");
}

// ---- AWQ --------------------------------------------------------------------

constexpr char kAwqConfig[] =
    R"({"quant_method":"awq","version":"GEMM","w_bit":4,"q_group_size":32})";

// K = 64, N = 24, g = 32, packed along the outputs.
Tensors GoodAwq() {
  return {{"m.qweight", {"I32", {64, 3}, ""}},
          {"m.qzeros", {"I32", {2, 3}, ""}},
          {"m.scales", {"F16", {2, 24}, ""}}};
}

TEST_F(GptqModulesTest, FindsAnAwqModuleAndItsSizes) {
  const GptqModule module = FindOne(GoodAwq(), kAwqConfig);
  EXPECT_EQ(module.packing, GptqPacking::kAwq);
  EXPECT_EQ(module.in_features, 64u);
  EXPECT_EQ(module.out_features, 24u);
  EXPECT_EQ(module.groups, 2u);
  EXPECT_EQ(module.settings.group_size, 32);
  EXPECT_FALSE(module.settings.sym);
}

TEST_F(GptqModulesTest, WrongAwqTensorsAreNamed) {
  struct Case {
    const char* tensor;
    Tensor changed;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"m.qweight", {"I32", {8, 24}, ""}, "as GPTQ does"},
      {"m.qweight", {"I32", {64, 4}, ""}, "24 outputs (the scales' columns)"},
      {"m.qweight", {"I32", {60, 3}, ""}, "60 inputs are no multiple of 8"},
      {"m.qweight", {"I16", {64, 3}, ""}, "packed codes are I32"},
      {"m.qzeros", {"I32", {3, 3}, ""}, "the scales have 2 rows"},
      {"m.qzeros", {"I32", {2, 24}, ""}, "need 3 columns"},
      {"m.scales",
       {"F16", {3, 24}, ""},
       "64 inputs (the rows of qweight) with group_size = 32"},
      {"m.scales", {"F16", {2, 20}, ""}, "8 columns into a word"},
      {"m.g_idx", {"I32", {64}, ""}, "no order of activations"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.part);
    Tensors tensors = GoodAwq();
    tensors[c.tensor] = c.changed;
    ExpectRefused(tensors, c.tensor, c.part, kAwqConfig);
  }
  for (const char* name : {"m.qzeros", "m.scales"}) {
    Tensors tensors = GoodAwq();
    tensors.erase(name);
    ExpectRefused(tensors, name, "is missing; it belongs to \"m.qweight\"",
                  kAwqConfig);
  }
}

// ---- g_idx ------------------------------------------------------------------

TEST_F(GptqModulesTest, WithoutGIdxRowsAreInOrder) {
  Tensors tensors = Good();
  tensors.erase("m.g_idx");
  const GptqModule module = FindOne(tensors);
  const auto groups = ReadGroupIndex(*checkpoint_, module);
  ASSERT_TRUE(groups.ok()) << groups.status();
  for (uint32_t row = 0; row < 64; ++row) EXPECT_EQ((*groups)[row], row / 32);
}

TEST_F(GptqModulesTest, APermutedGIdxIsReturnedAsItIs) {
  Tensors tensors = Good();
  std::vector<int32_t> stored(64);
  for (int row = 0; row < 64; ++row) stored[row] = row * 7 % 64 / 32;
  tensors["m.g_idx"].bytes = BytesOfAll(stored);
  const GptqModule module = FindOne(tensors);
  GroupIndexOddity oddity;
  const auto groups = ReadGroupIndex(*checkpoint_, module, &oddity);
  ASSERT_TRUE(groups.ok()) << groups.status();
  for (int row = 0; row < 64; ++row)
    EXPECT_EQ((*groups)[row], static_cast<uint32_t>(stored[row]));
  EXPECT_EQ(oddity, GroupIndexOddity::kNone);
}

TEST_F(GptqModulesTest, AnAllZeroGIdxCountsAsMissing) {
  Tensors tensors = Good();
  tensors["m.g_idx"].bytes = "";
  GptqModule module = FindOne(tensors);
  GroupIndexOddity oddity;
  auto groups = ReadGroupIndex(*checkpoint_, module, &oddity);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->back(), 1u);
  EXPECT_EQ(oddity, GroupIndexOddity::kAllZero);

  // With one group it is what it says.
  tensors["m.scales"].shape = {1, 24};
  tensors["m.qzeros"].shape = {1, 3};
  module = FindOne(tensors, R"({"bits":4,"group_size":-1})");
  groups = ReadGroupIndex(*checkpoint_, module, &oddity);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->back(), 0u);
  EXPECT_EQ(oddity, GroupIndexOddity::kNone);
}

TEST_F(GptqModulesTest, GroupsOutsideTheModuleAreNamed) {
  for (const int32_t wrong : {2, -1, INT32_MAX, INT32_MIN}) {
    Tensors tensors = Good();
    std::vector<int32_t> stored(64, 1);
    stored[5] = wrong;
    tensors["m.g_idx"].bytes = BytesOfAll(stored);
    const GptqModule module = FindOne(tensors);
    EXPECT_THAT(
        std::string(ReadGroupIndex(*checkpoint_, module).status().message()),
        AllOf(HasSubstr("model.safetensors"),
              HasSubstr(absl::StrCat("\"m.g_idx\": row 5 is in group ", wrong)),
              HasSubstr("2 groups")));
  }
}

TEST_F(GptqModulesTest, UnequalGroupsAreOdd) {
  Tensors tensors = Good();
  std::vector<int32_t> stored(64, 1);
  stored[0] = 0;
  tensors["m.g_idx"].bytes = BytesOfAll(stored);
  const GptqModule module = FindOne(tensors);
  GroupIndexOddity oddity;
  EXPECT_TRUE(ReadGroupIndex(*checkpoint_, module, &oddity).ok());
  EXPECT_EQ(oddity, GroupIndexOddity::kUnequalGroups);
}

}  // namespace
}  // namespace quire
