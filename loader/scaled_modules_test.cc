// FP8, compressed-tensors and MXFP4: what is found in a file, and what is said
// of files that are wrong.

#include "quire/loader/scaled_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loader/tensors_test_util.h"
#include "quire/loader/quantization.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tensor to change or (no dtype) to leave out, and what the error names.
struct Wrong {
  const char* tensor;
  Tensor changed;
  const char* part;
  const char* named = nullptr;  // the tensor in the message, if another
};

class ScaledModulesTest : public testing::Test {
 protected:
  absl::StatusOr<QuantizedModules> Find(const Tensors& tensors,
                                        const std::string& config) {
    folder_.Write("config.json",
                  absl::StrCat("{\"quantization_config\":", config, "}"));
    folder_.Write("model.safetensors", FileOf(tensors));
    checkpoint_ = *Checkpoint::Open(folder_.path());
    return FindQuantizedModules(*checkpoint_);
  }
  ScaledModule FindOne(const Tensors& tensors, const std::string& config) {
    const auto found = Find(tensors, config);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return {};
    EXPECT_EQ(found->scaled.size(), 1u);
    return found->scaled.empty() ? ScaledModule() : found->scaled.front();
  }
  void ExpectRefused(const Tensors& good, const std::string& config,
                     const std::vector<Wrong>& cases) {
    for (const Wrong& wrong : cases) {
      SCOPED_TRACE(absl::StrCat(wrong.tensor, ": ", wrong.part));
      Tensors tensors = good;
      if (wrong.changed.dtype.empty()) {
        tensors.erase(wrong.tensor);
      } else {
        tensors[wrong.tensor] = wrong.changed;
      }
      const auto found = Find(tensors, config);
      ASSERT_FALSE(found.ok());
      EXPECT_THAT(
          std::string(found.status().message()),
          AllOf(HasSubstr("model.safetensors"),
                HasSubstr(wrong.named == nullptr ? wrong.tensor : wrong.named),
                HasSubstr(wrong.part), testing::Not(HasSubstr("\n"))));
    }
  }
  void ExpectConfigRefused(const Tensors& tensors, const std::string& config,
                           const std::string& part) {
    const auto found = Find(tensors, config);
    ASSERT_FALSE(found.ok()) << config;
    EXPECT_THAT(
        std::string(found.status().message()),
        AllOf(HasSubstr("config.json: quantization_config"), HasSubstr(part)));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

const Tensor kAbsent = {};

// ---- FP8 --------------------------------------------------------------------

constexpr char kFp8Blocks[] =
    R"({"quant_method":"fp8","weight_block_size":[32,16]})";
constexpr char kFp8[] = R"({"quant_method":"fp8"})";

// N = 40, K = 24: blocks of 32 x 16 are cut at both edges.
Tensors GoodFp8() {
  return {{"m.weight", {"F8_E4M3", {40, 24}, ""}},
          {"m.weight_scale_inv", {"F32", {2, 2}, ""}},
          {"m.bias", {"BF16", {40}, ""}},
          {"norm.weight", {"BF16", {24}, ""}}};
}

TEST_F(ScaledModulesTest, FindsFp8InBlocks) {
  const ScaledModule module = FindOne(GoodFp8(), kFp8Blocks);
  EXPECT_EQ(module.name, "m");
  EXPECT_EQ(module.kind, CodeKind::kF8E4M3);
  EXPECT_EQ(module.out_features, 40u);
  EXPECT_EQ(module.in_features, 24u);
  EXPECT_EQ(module.row_bytes, 24u);
  EXPECT_EQ(module.block_rows, 32u);
  EXPECT_EQ(module.block_columns, 16u);
  EXPECT_EQ(module.scale_rows(), 2u);
  EXPECT_EQ(module.scale_columns(), 2u);
  EXPECT_EQ(module.codes, checkpoint_->Find("m.weight"));
  EXPECT_EQ(module.scales, checkpoint_->Find("m.weight_scale_inv"));
  EXPECT_EQ(module.bias, checkpoint_->Find("m.bias"));
}

TEST_F(ScaledModulesTest, WithoutABlockSizeTheShapeTellsRowsFromTheWhole) {
  Tensors tensors = GoodFp8();
  tensors.erase("m.weight_scale_inv");
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{}, {1}, {1, 1}}) {
    tensors["m.weight_scale"] = {"BF16", shape, ""};
    const ScaledModule module = FindOne(tensors, kFp8);
    EXPECT_EQ(module.scale_rows(), 1u);
    EXPECT_EQ(module.scale_columns(), 1u);
  }
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{40}, {40, 1}}) {
    tensors["m.weight_scale"] = {"F32", shape, ""};
    const ScaledModule module = FindOne(tensors, kFp8);
    EXPECT_EQ(module.scale_rows(), 40u);
    EXPECT_EQ(module.scale_columns(), 1u);
  }
}

TEST_F(ScaledModulesTest, ScalesOfActivationsAreNotedAndIgnored) {
  Tensors tensors = GoodFp8();
  tensors["m.input_scale"] = {"F32", {}, ""};
  tensors["attn.k_scale"] = {"F32", {}, ""};
  const auto found = Find(tensors, kFp8Blocks);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->ignored.size(), 2u);
  EXPECT_THAT(found->notes, ElementsAre(HasSubstr("2 scale(s)")));
  EXPECT_THAT(Find(GoodFp8(), kFp8Blocks)->notes, IsEmpty());
}

TEST_F(ScaledModulesTest, WrongFp8TensorsAreNamed) {
  ExpectRefused(
      GoodFp8(), kFp8Blocks,
      {{"m.weight_scale_inv", kAbsent, "is missing; it belongs to"},
       {"m.weight_scale_inv", {"F32", {1, 1}, ""}, "needs scales [2, 2]"},
       {"m.weight_scale_inv", {"F32", {2, 1}, ""}, "weight [40, 24] in blocks"},
       {"m.weight_scale_inv", {"F32", {2, 2, 1}, ""}, "weight_block_size"},
       {"m.weight_scale_inv", {"I32", {2, 2}, ""}, "scales are F16"},
       {"m.weight", {"F8_E4M3", {40}, ""}, "two dimensions"},
       {"m.weight", {"F8_E4M3", {40, 0}, ""}, "none of them zero"},
       {"m.weight", {"F8_E5M2", {40, 24}, ""}, "only F8_E4M3"},
       {"m.weight", {"U8", {40, 24}, ""}, "so it should be F8_E4M3"},
       {"m.weight", kAbsent,
        "is missing; it belongs to \"m.weight_scale_inv\""},
       {"m.bias", {"BF16", {24}, ""}, "40 outputs"}});
  ExpectRefused(
      GoodFp8(), kFp8,
      {{"m.weight_scale_inv", {"F32", {2, 2}, ""}, "no weight_block_size"}});
}

TEST_F(ScaledModulesTest, WrongFp8ConfigurationsAreNamed) {
  ExpectConfigRefused(GoodFp8(), R"({"quant_method":"fp8","fmt":"e5m2"})",
                      "\"fmt\" is \"e5m2\"");
  for (const char* size : {"[128]", "[0,128]", "[1,2,3]", "[-1,2]", "128"})
    ExpectConfigRefused(
        GoodFp8(),
        absl::StrCat(R"({"quant_method":"fp8","weight_block_size":)", size,
                     "}"),
        "\"weight_block_size\"");
}

// ---- compressed-tensors -----------------------------------------------------

std::string Compressed(const std::string& weights,
                       const std::string& format = "pack-quantized") {
  return absl::StrCat(R"({"quant_method":"compressed-tensors","format":")",
                      format, R"(","config_groups":{"group_0":{"targets":)",
                      R"(["Linear"],"weights":)", weights, "}}}");
}
const std::string kInt4Groups = Compressed(
    R"({"num_bits":4,"type":"int","symmetric":false,"strategy":"group",
        "group_size":16})");
const std::string kInt8Rows = Compressed(
    R"({"num_bits":8,"type":"int","symmetric":true,"strategy":"channel"})",
    "int-quantized");

// N = 20, K = 36: the last group has 4 columns, the last word of a row half its
// codes, and of zero points too.
Tensors GoodPacked() {
  return {{"m.weight_packed", {"I32", {20, 5}, ""}},
          {"m.weight_scale", {"BF16", {20, 3}, ""}},
          {"m.weight_zero_point", {"I32", {3, 3}, ""}},
          {"m.weight_shape",
           {"I64", {2}, BytesOfAll(std::vector<int64_t>{20, 36})}}};
}

TEST_F(ScaledModulesTest, FindsPackedCodesWithZeroPoints) {
  const ScaledModule module = FindOne(GoodPacked(), kInt4Groups);
  EXPECT_EQ(module.kind, CodeKind::kUint4);
  EXPECT_EQ(module.out_features, 20u);
  EXPECT_EQ(module.in_features, 36u);
  EXPECT_EQ(module.row_bytes, 20u);
  EXPECT_EQ(module.block_rows, 1u);
  EXPECT_EQ(module.block_columns, 16u);
  EXPECT_EQ(module.zeros, checkpoint_->Find("m.weight_zero_point"));
  const auto found = Find(GoodPacked(), kInt4Groups);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->ignored, ElementsAre(checkpoint_->Find("m.weight_shape")));

  Tensors eight = GoodPacked();
  eight["m.weight_packed"].shape = {20, 9};
  eight["m.weight_scale"].shape = {20, 1};
  eight.erase("m.weight_zero_point");
  const ScaledModule wide =
      FindOne(eight, Compressed(R"({"num_bits":8,"group_size":-1})"));
  EXPECT_EQ(wide.kind, CodeKind::kUint8);
  EXPECT_EQ(wide.row_bytes, 36u);
  EXPECT_EQ(wide.block_columns, 36u);
  EXPECT_EQ(wide.zeros, nullptr);
}

TEST_F(ScaledModulesTest, FindsPlainIntegersAndFloats) {
  Tensors tensors = {{"m.weight", {"I8", {20, 36}, ""}},
                     {"m.weight_scale", {"F16", {20, 1}, ""}},
                     {"plain.weight", {"BF16", {20, 36}, ""}}};
  EXPECT_EQ(FindOne(tensors, kInt8Rows).kind, CodeKind::kInt8);
  tensors["m.weight"].dtype = "F8_E4M3";
  tensors["m.weight_scale"] = {"F32", {2, 3}, ""};
  const ScaledModule module = FindOne(
      tensors, Compressed(R"({"num_bits":8,"type":"float","strategy":"block",
                              "block_structure":[16,16]})",
                          "float-quantized"));
  EXPECT_EQ(module.kind, CodeKind::kF8E4M3);
  EXPECT_EQ(module.block_rows, 16u);
}

TEST_F(ScaledModulesTest, TargetsGoFromNamesOverPatternsToClasses) {
  const std::string config =
      R"({"quant_method":"compressed-tensors","format":"mixed-precision",
          "config_groups":{
            "group_0":{"targets":["Linear"],"weights":{"num_bits":8}},
            "group_1":{"targets":["re:.*mlp"],
                       "weights":{"num_bits":4,"group_size":16}},
            "group_2":{"targets":["mlp.down"],
                       "weights":{"num_bits":4,"group_size":32}}},
          "ignore":["lm_head"]})";
  Tensors tensors;
  for (const char* name : {"mlp.down", "mlp.up"}) {
    for (const auto& [part, tensor] : GoodPacked())
      tensors[name + part.substr(1)] = tensor;
    tensors.erase(absl::StrCat(name, ".weight_zero_point"));
  }
  tensors["mlp.down.weight_scale"].shape = {20, 2};
  tensors["attn.q.weight"] = {"I8", {20, 36}, ""};
  tensors["attn.q.weight_scale"] = {"F16", {1}, ""};
  const auto found = Find(tensors, config);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->scaled.size(), 3u);
  EXPECT_EQ(found->scaled[0].name, "attn.q");
  EXPECT_EQ(found->scaled[0].block_rows, 20u);
  EXPECT_EQ(found->scaled[1].block_columns, 32u);
  EXPECT_EQ(found->scaled[2].block_columns, 16u);
}

TEST_F(ScaledModulesTest, WrongPackedTensorsAreNamed) {
  const auto shape = [](const std::vector<int64_t>& sizes) {
    return Tensor{"I64", {2}, BytesOfAll(sizes)};
  };
  ExpectRefused(
      GoodPacked(), kInt4Groups,
      {{"m.weight_shape", kAbsent, "is missing; it belongs to"},
       {"m.weight_packed", kAbsent, "is missing; it belongs to", "m.weight"},
       {"m.weight_scale", kAbsent, "is missing; it belongs to"},
       {"m.weight_zero_point", kAbsent, "is missing; it belongs to"},
       {"m.weight_shape", {"F32", {2}, ""}, "I64 or I32 [2]"},
       {"m.weight_shape", {"I64", {3}, ""}, "I64 or I32 [2]"},
       {"m.weight_shape", shape({20, 0}), "holds 0"},
       {"m.weight_shape", shape({-20, 36}), "holds -20"},
       {"m.weight_shape", shape({20, 44}), "needs [20, 6]", "m.weight_packed"},
       {"m.weight_shape", shape({20, INT64_MAX}), "9223372036854775807",
        "m.weight_packed"},
       {"m.weight_packed", {"I32", {20, 9}, ""}, "it would fit 8 bits"},
       {"m.weight_packed", {"I32", {19, 5}, ""}, "needs [20, 5]"},
       {"m.weight_packed", {"I16", {20, 5}, ""}, "packed codes are I32"},
       {"m.weight_packed", {"I32", {100}, ""}, "two dimensions"},
       {"m.weight_scale", {"BF16", {20, 2}, ""}, "needs scales [20, 3]"},
       {"m.weight_scale", {"BF16", {3, 20}, ""}, "strategy \"group\""},
       {"m.weight_zero_point", {"I32", {20, 3}, ""}, "need [3, 3]"},
       {"m.weight_zero_point", {"I8", {20, 2}, ""}, "[20, 3]"},
       {"m.weight_zero_point", {"F16", {20, 3}, ""}, "I8, or I32"},
       {"m.weight_g_idx", {"I32", {35}, ""}, "g_idx I32 [36]"},
       {"m.bias", {"F32", {36}, ""}, "20 outputs"}});
}

TEST_F(ScaledModulesTest, CodesThatTheConfigurationContradictsAreNamed) {
  const Tensors tensors = {{"m.weight", {"I8", {20, 36}, ""}},
                           {"m.weight_scale", {"F16", {20, 1}, ""}}};
  ExpectRefused(
      tensors, kInt8Rows,
      {{"m.weight", {"F8_E4M3", {20, 36}, ""}, "8 bits of type int"}});
  ExpectRefused(tensors, kInt4Groups,
                {{"m.weight", {"I8", {20, 36}, ""}, "4 bits of type int"}});
}

TEST_F(ScaledModulesTest, OtherCompressedFormatsAreRefusedByName) {
  const Tensors tensors = GoodPacked();
  ExpectConfigRefused(tensors, Compressed("{}", "nvfp4-pack-quantized"),
                      "nvfp4-pack-quantized");
  ExpectConfigRefused(tensors, Compressed("{}", "marlin-24"), "marlin-24");
  for (const auto& [weights, part] :
       std::vector<std::pair<const char*, const char*>>{
           {R"({"num_bits":3})", "\"num_bits\" is 3"},
           {R"({"num_bits":4,"type":"float"})", "4 of type \"float\""},
           {R"({"num_bits":4,"type":"complex"})", "\"complex\""},
           {R"({"strategy":"group"})", "group_size"},
           {R"({"strategy":"token"})", "\"token\""},
           {R"({"strategy":"block"})", "block_structure"},
           {R"({"strategy":"block","block_structure":[0,1]})",
            "block_structure"}})
    ExpectConfigRefused(tensors, Compressed(weights), part);
  ExpectConfigRefused(
      tensors,
      R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
      "config_groups");
  ExpectConfigRefused(
      tensors,
      R"({"quant_method":"compressed-tensors","config_groups":{"g":{
          "targets":["re:("],"weights":{}}}})",
      "\"re:(\"");
  ExpectConfigRefused(
      tensors,
      R"({"quant_method":"compressed-tensors","config_groups":{"g":{
          "targets":["other"],"weights":{"num_bits":4}}}})",
      "no target of config_groups is \"m\"");
  ExpectConfigRefused(
      tensors,
      R"({"quant_method":"compressed-tensors","config_groups":{},
          "transform_config":{"config_groups":{"u":{}}}})",
      "transform_config");
  ExpectConfigRefused(
      tensors,
      R"({"quant_method":"compressed-tensors","config_groups":{},
          "sparsity_config":{"format":"sparse-24-bitmask"}})",
      "sparse-24-bitmask");
}

TEST_F(ScaledModulesTest, TheGroupIndexIsReadAndChecked) {
  Tensors tensors = GoodPacked();
  std::vector<int32_t> groups(36);
  for (int k = 0; k < 36; ++k) groups[k] = k * 5 % 36 / 16;
  tensors["m.weight_g_idx"] = {"I32", {36}, BytesOfAll(groups)};
  ScaledModule module = FindOne(tensors, kInt4Groups);
  const auto columns = ReadScaleColumns(*checkpoint_, module);
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(std::vector<int32_t>(columns->begin(), columns->end()), groups);

  tensors["m.weight_g_idx"].bytes = BytesOfAll(std::vector<int32_t>(36, -1));
  module = FindOne(tensors, kInt4Groups);
  EXPECT_THAT(*ReadScaleColumns(*checkpoint_, module), IsEmpty());

  for (const int32_t wrong : {3, -1, INT32_MIN}) {
    groups[7] = wrong;
    tensors["m.weight_g_idx"].bytes = BytesOfAll(groups);
    module = FindOne(tensors, kInt4Groups);
    EXPECT_THAT(
        std::string(ReadScaleColumns(*checkpoint_, module).status().message()),
        AllOf(HasSubstr("\"m.weight_g_idx\""),
              HasSubstr(absl::StrCat("input 7 is in group ", wrong)),
              HasSubstr("3 groups")));
  }
}

// ---- MXFP4 ------------------------------------------------------------------

constexpr char kMxfp4[] = R"({"quant_method":"mxfp4"})";

// 4 experts of 12 outputs and 64 inputs.
Tensors GoodMxfp4() {
  return {{"experts.up_blocks", {"U8", {4, 12, 2, 16}, ""}},
          {"experts.up_scales", {"U8", {4, 12, 2}, ""}},
          {"experts.up_bias", {"BF16", {4, 12}, ""}}};
}

TEST_F(ScaledModulesTest, FindsMxfp4Experts) {
  const ScaledModule module = FindOne(GoodMxfp4(), kMxfp4);
  EXPECT_EQ(module.name, "experts.up");
  EXPECT_EQ(module.kind, CodeKind::kF4E2M1);
  EXPECT_EQ(module.scales_dtype, DType::kF8E8M0);
  EXPECT_EQ(module.count, 4u);
  EXPECT_EQ(module.out_features, 12u);
  EXPECT_EQ(module.in_features, 64u);
  EXPECT_EQ(module.row_bytes, 32u);
  EXPECT_EQ(module.block_columns, 32u);
}

TEST_F(ScaledModulesTest, WrongMxfp4TensorsAreNamed) {
  ExpectRefused(
      GoodMxfp4(), kMxfp4,
      {{"experts.up_scales", kAbsent, "is missing; it belongs to"},
       {"experts.up_scales", {"U8", {4, 12, 3}, ""}, "U8 [4, 12, 2]"},
       {"experts.up_scales", {"F8_E8M0", {4, 12, 2}, ""}, "U8 [4, 12, 2]"},
       {"experts.up_blocks", {"U8", {4, 12, 2, 8}, ""}, "16], none"},
       {"experts.up_blocks", {"U8", {4, 12, 32}, ""}, "[experts, outputs"},
       {"experts.up_blocks", {"I8", {4, 12, 2, 16}, ""}, "are U8"},
       {"experts.up_bias", {"BF16", {12}, ""}, "[4, 12]"}});
}

TEST_F(ScaledModulesTest, UnknownMethodsAreRefusedByName) {
  ExpectConfigRefused({}, R"({"quant_method":"modelopt"})", "ModelOpt");
  ExpectConfigRefused({}, R"({"quant_method":"bitsandbytes"})", "bitsandbytes");
  ExpectConfigRefused({}, R"({"quant_method":"made-up"})",
                      "not a known quantisation format");
}

}  // namespace
}  // namespace quire
