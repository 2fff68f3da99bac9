#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "quire/loader/gptq.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GptqConfigTest : public testing::Test {
 protected:
  GptqConfigTest() {
    folder_.Write("config.json", "{}");
    folder_.Write("model.safetensors", Safetensors("{}"));
  }

  absl::StatusOr<GptqConfig> Parse(const std::string& json,
                                   const char* file = "quantize_config.json") {
    folder_.Write(file, json);
    checkpoint_ = *Checkpoint::Open(folder_.path());
    return GptqConfig::Parse(*checkpoint_);
  }
  GptqConfig Parsed(const std::string& json) {
    auto config = Parse(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return *config;
  }
  GptqSettings Module(const GptqConfig& config, const std::string& module) {
    const auto settings = config.ForModule(module);
    EXPECT_TRUE(settings.ok()) << settings.status();
    EXPECT_TRUE(settings->has_value());
    return settings->value_or(GptqSettings{});
  }
  void ExpectRefused(const std::string& json, const std::string& part) {
    const auto config = Parse(json);
    ASSERT_FALSE(config.ok()) << json;
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(HasSubstr("quantize_config.json"), HasSubstr(part)))
        << json;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(GptqConfigTest, ReadsEverySpelling) {
  for (const char* json :
       {R"({"bits":3,"group_size":64,"desc_act":true,"sym":false,
            "checkpoint_format":"gptq_v2","quant_method":"gptq"})",
        R"({"wbits":3,"groupsize":64,"actorder":true,"zero_point":true,
            "format":"gptq_v2","method":"gptq"})",
        R"({"w_bit":3,"q_group_size":64,"desc_act":true,"sym":false,
            "checkpoint_format":"gptq_v2","format":"gptq_v2","bits":3})"}) {
    const GptqConfig config = Parsed(json);
    EXPECT_TRUE(config.zeros_are_v2()) << json;
    EXPECT_EQ(config.defaults().bits, 3);
    EXPECT_EQ(config.defaults().group_size, 64);
    EXPECT_TRUE(config.defaults().desc_act);
    EXPECT_FALSE(config.defaults().sym);
  }
}

TEST_F(GptqConfigTest, MissingFieldsHaveDefaults) {
  const GptqConfig config = Parsed("{}");
  EXPECT_EQ(config.defaults().bits, 4);
  EXPECT_EQ(config.defaults().group_size, 0);
  EXPECT_FALSE(config.defaults().desc_act);
  EXPECT_TRUE(config.defaults().sym);
  EXPECT_FALSE(config.zeros_are_v2());
  EXPECT_FALSE(Parsed(R"({"checkpoint_format":null})").zeros_are_v2());
}

TEST_F(GptqConfigTest, ErrorsNameTheFileAndTheFieldInConfigJson) {
  const auto config =
      Parse(R"({"quantization_config":{"bits":"four"}})", "config.json");
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("config.json: quantization_config: field \"bits\" is "
                        "\"four\""));
}

TEST_F(GptqConfigTest, NoConfigurationIsAnError) {
  checkpoint_ = *Checkpoint::Open(folder_.path());
  EXPECT_THAT(
      std::string(GptqConfig::Parse(*checkpoint_).status().message()),
      AllOf(HasSubstr("quantize_config.json"), HasSubstr(folder_.path())));
}

TEST_F(GptqConfigTest, RefusesWrongValues) {
  ExpectRefused(R"({"bits":5})", "\"bits\" is 5, a width that only the planar");
  ExpectRefused(R"({"bits":16})", "\"bits\" is 16; 2, 3, 4 and 8");
  ExpectRefused(R"({"bits":4.0})", "\"bits\" is 4.0");
  ExpectRefused(R"({"bits":true})", "\"bits\" is true");
  ExpectRefused(R"({"bits":-4})", "\"bits\" is -4");
  ExpectRefused(R"({"bits":4,"wbits":8})", "\"wbits\" contradicts \"bits\"");
  ExpectRefused(R"({"group_size":0})", "\"group_size\" is 0");
  ExpectRefused(R"({"group_size":-2})", "\"group_size\" is -2");
  ExpectRefused(R"({"group_size":"128"})", "\"group_size\" is \"128\"");
  ExpectRefused(R"({"groupsize":64,"group_size":128})",
                "\"groupsize\" contradicts \"group_size\"");
  ExpectRefused(R"({"desc_act":1})", "\"desc_act\" is 1");
  ExpectRefused(R"({"sym":"yes"})", "\"sym\" is \"yes\"");
  ExpectRefused(R"({"checkpoint_format":"gptq","format":"gptq_v2"})",
                "\"format\" contradicts \"checkpoint_format\"");
  ExpectRefused(R"({"pack_dtype":"int16"})", "\"pack_dtype\" is \"int16\"");
}

TEST_F(GptqConfigTest, RefusesOtherFormatsByName) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"quant_method":"awq","version":"gemv"})", "along the inputs"},
      {R"({"quant_method":"awq","version":"marlin"})", "Marlin"},
      {R"({"quant_method":"awq","version":"x"})", "not a known AWQ format"},
      {R"({"quant_method":"awq","bits":8})", "8 bits; AWQ is read at 4 bits"},
      {R"({"quant_method":"gptq","format":"gemm"})", "AWQ"},
      {R"({"quant_method":"fp8"})", "is for fp8, not for GPTQ"},
      {R"({"quant_method":"bitsandbytes"})", "bitsandbytes"},
      {R"({"load_in_4bit":true})", "bitsandbytes"},
      {R"({"quant_method":"dbf"})", "double binary"},
      {R"({"quant_method":"onebit"})", "OneBit"},
      {R"({"quant_method":"mdbf"})", "multi-level"},
      {R"({"quant_method":"intel/auto-round"})", "auto_gptq"},
      {R"({"quant_method":"made-up"})", "not a known quantisation format"},
      {R"({"quant_method":"gptq","checkpoint_format":"gptq_p","bits":9})",
       "the planar format has 2 to 8"},
      {R"({"quant_method":"gptq","format":"marlin"})", "Marlin"},
      {R"({"is_marlin_format":true})", "Marlin"},
      {R"({"checkpoint_format":"bitblas"})", "BitBLAS"},
      {R"({"checkpoint_format":"gptq_v3"})", "not a known GPTQ format"},
      {R"({"quant_method":"gptq","rotated":true})", "rotated"},
      {R"({"quant_method":"mixed_gptq"})", "\"checkpoint_format\" is missing"},
  };
  for (const auto& [json, part] : cases) ExpectRefused(json, part);
}

TEST_F(GptqConfigTest, ReadsAwq) {
  for (
      const char* json :
      {R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,
            "version":"gemm"})",
       R"({"quant_method":"AWQ","group_size":128,"format":"gemm"})",
       R"({"w_bit":4,"q_group_size":128,"zero_point":true,"version":"GEMM"})"}) {
    const GptqConfig config = Parsed(json);
    EXPECT_EQ(config.packing(), GptqPacking::kAwq) << json;
    EXPECT_TRUE(config.zeros_are_v2());
    EXPECT_EQ(config.defaults().bits, 4);
    EXPECT_EQ(config.defaults().group_size, 128);
    EXPECT_FALSE(config.defaults().sym);
  }
  EXPECT_EQ(Parsed("{}").packing(), GptqPacking::kGptq);
}

TEST_F(GptqConfigTest, DynamicOverridesTakeTheFirstMatchInTheOrderOfTheFile) {
  const GptqConfig config = Parsed(R"({"bits":4,"group_size":32,"dynamic":{
      "-:model\\.layers\\.1\\.self_attn\\.v_proj": {},
      "+:model\\.layers\\.0\\.mlp\\..*": {"bits":8,"group_size":64},
      "model\\.layers\\.1\\.mlp\\.down_proj": {"bits":3,"sym":false},
      "+:model\\.layers\\.0": {"desc_act":true},
      "lm_head": {"bits":8,"group_size":-1}}})");
  EXPECT_EQ(*config.ForModule("model.layers.1.self_attn.v_proj"), std::nullopt);
  const GptqSettings up = Module(config, "model.layers.0.mlp.up_proj");
  EXPECT_EQ(up.bits, 8);
  EXPECT_EQ(up.group_size, 64);
  EXPECT_FALSE(up.desc_act);
  const GptqSettings down = Module(config, "model.layers.1.mlp.down_proj");
  EXPECT_EQ(down.bits, 3);
  EXPECT_EQ(down.group_size, 32);
  EXPECT_FALSE(down.sym);
  EXPECT_TRUE(Module(config, "model.layers.0.self_attn.q_proj").desc_act);
  EXPECT_EQ(Module(config, "model.layers.2.mlp.down_proj").bits, 4);
  EXPECT_EQ(Module(config, "lm_head").bits, 8);
  EXPECT_EQ(Module(config, "lm_head").group_size, -1);
}

TEST_F(GptqConfigTest, ThePlanarLayoutStoresZerosAsTheyAre) {
  const GptqConfig config = Parsed(
      R"({"quant_method":"gptq","checkpoint_format":"gptq_p","bits":3})");
  EXPECT_EQ(config.packing(), GptqPacking::kPlanar);
  EXPECT_TRUE(config.zeros_are_v2());
  EXPECT_EQ(config.defaults().bits, 3);
}

TEST_F(GptqConfigTest, ThePlanarLayoutHasEveryWidth) {
  for (int bits = 2; bits <= 8; ++bits) {
    const std::string text = std::to_string(bits);
    const GptqConfig config = Parsed(
        R"({"checkpoint_format":"gptq_p","bits":)" + text +
        R"(,"dynamic":{"a":{"bits":)" + std::to_string(10 - bits) + "}}}");
    EXPECT_EQ(config.defaults().bits, bits);
    EXPECT_EQ(Module(config, "a").bits, 10 - bits);
  }
}

TEST_F(GptqConfigTest, TheOrderOfOverlappingPatternsIsThatOfTheFile) {
  // In the order of the alphabet the second pattern would come first.
  EXPECT_EQ(
      Module(Parsed(R"({"dynamic":{"z|a":{"bits":8},"a":{"bits":2}}})"), "a")
          .bits,
      8);
  EXPECT_EQ(
      Module(Parsed(R"({"dynamic":{"^a$":{"bits":2},".*":{"bits":8}}})"), "a")
          .bits,
      2);
  EXPECT_EQ(
      Module(Parsed(R"({"dynamic":{".*":{"bits":8},"^a$":{"bits":2}}})"), "a")
          .bits,
      8);
}

TEST_F(GptqConfigTest, RefusesWrongOverrides) {
  ExpectRefused(R"({"dynamic":[]})", "\"dynamic\" is an array");
  ExpectRefused(R"({"dynamic":{"(":{}}})",
                "dynamic: the pattern \"(\" is wrong");
  ExpectRefused(R"({"dynamic":{"a":{"bits":7}}})",
                "dynamic: a: field \"bits\" is 7");
  ExpectRefused(R"({"dynamic":{"a":8}})", "field \"a\" is 8, not an object");
}

TEST_F(GptqConfigTest, APatternThatTakesTooLongIsAnError) {
  const GptqConfig config = Parsed(R"({"dynamic":{"(a+)+[bc]":{"bits":8}}})");
  const auto settings = config.ForModule(std::string(200, 'a'));
  ASSERT_FALSE(settings.ok());
  EXPECT_THAT(std::string(settings.status().message()),
              AllOf(HasSubstr("quantize_config.json: dynamic"),
                    HasSubstr("(a+)+[bc]")));
}

TEST_F(GptqConfigTest, ThousandsOfLiteralPatternsAreFast) {
  std::string json = R"({"bits":4,"dynamic":{"x\\d":{"bits":2})";
  for (int i = 0; i < 20'000; ++i)
    json +=
        ",\"^model\\\\.layers\\\\." + std::to_string(i) + "$\":{\"bits\":8}";
  json += "}}";
  const GptqConfig config = Parsed(json);
  for (int i = 0; i < 20'000; ++i)
    ASSERT_EQ(Module(config, "model.layers." + std::to_string(i)).bits, 8);
  EXPECT_EQ(Module(config, "model.layers.20000").bits, 4);
  EXPECT_EQ(Module(config, "x1").bits, 2);
}

// ---- OneComp ----------------------------------------------------------------

TEST_F(GptqConfigTest, OneCompTablesHaveTheirPriorities) {
  const GptqConfig config = Parsed(R"({
      "quant_method":"mixed_gptq","checkpoint_format":"gptq",
      "bits":4,"groupsize":128,"group_size":128,"actorder":true,"desc_act":true,
      "mlp_wbits":3,"mlp_groupsize":32,
      "module_wbits":{"model.layers.0.mlp.up_proj":2,
                      "model.layers.1.mlp.up_proj":2},
      "quantization_bits":[
        {"mlp.up_proj":{"bits":8,"method":"gptq","params":{"group_size":64}}},
        {},
        {"_all":{"bits":2},"self_attn":{"bits":8,"group_size":16}}]})");
  EXPECT_EQ(Module(config, "model.layers.0.mlp.up_proj").bits, 8);
  EXPECT_EQ(Module(config, "model.layers.0.mlp.up_proj").group_size, 64);
  EXPECT_EQ(Module(config, "model.layers.1.mlp.up_proj").bits, 2);
  EXPECT_EQ(Module(config, "model.layers.1.mlp.up_proj").group_size, 32);
  EXPECT_EQ(Module(config, "model.layers.1.mlp.down_proj").bits, 3);
  EXPECT_EQ(Module(config, "model.layers.1.self_attn.q_proj").bits, 4);
  EXPECT_EQ(Module(config, "model.layers.1.self_attn.q_proj").group_size, 128);
  EXPECT_EQ(Module(config, "model.layers.2.self_attn.q_proj").bits, 8);
  EXPECT_EQ(Module(config, "model.layers.2.self_attn.q_proj").group_size, 16);
  EXPECT_EQ(Module(config, "model.layers.2.mlp.gate_proj").bits, 2);
  EXPECT_EQ(Module(config, "model.layers.9.self_attn.q_proj").bits, 4);
  EXPECT_EQ(Module(config, "model.language_model.layers.0.mlp.up_proj").bits,
            8);
  EXPECT_EQ(Module(config, "lm_head").bits, 4);
  EXPECT_TRUE(Module(config, "lm_head").desc_act);
}

TEST_F(GptqConfigTest, RefusesWrongOneCompTables) {
  ExpectRefused(R"({"quantization_bits":{}})", "\"quantization_bits\"");
  ExpectRefused(R"({"quantization_bits":[3]})", "quantization_bits[0]");
  ExpectRefused(R"({"quantization_bits":[{},{"a":{"method":"dbf"}}]})",
                "quantization_bits[1]: a: field \"method\" is \"dbf\"");
  ExpectRefused(R"({"quantization_bits":[{"a":{"bits":6}}]})",
                "quantization_bits[0]: a: field \"bits\" is 6");
  ExpectRefused(R"({"module_wbits":{"a":1}})",
                "module_wbits: field \"a\" is 1");
  ExpectRefused(R"({"mlp_wbits":16})", "\"mlp_wbits\" is 16");
  ExpectRefused(R"({"mlp_groupsize":0})", "\"mlp_groupsize\" is 0");
}

}  // namespace
}  // namespace quire
