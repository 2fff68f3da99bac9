#include "quire/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder with a configuration and a checkpoint of no tensors.
class ModelConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) /
              (std::string("quire_model_config_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "model.safetensors", std::ios::binary)
        << std::string("\x02\0\0\0\0\0\0\0{}", 10);
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<ModelConfig> Parse(const std::string& config,
                                    const std::string& generation = "") {
    std::ofstream(folder_ / "config.json") << config;
    if (!generation.empty())
      std::ofstream(folder_ / "generation_config.json") << generation;
    auto checkpoint = Checkpoint::Open(folder_);
    if (!checkpoint.ok()) return checkpoint.status();
    return ParseModelConfig(**checkpoint);
  }

  // A sound configuration with `extra` fields before the others.
  static std::string Config(const std::string& extra) {
    return ConfigOf("llama", extra);
  }
  static std::string ConfigOf(const std::string& family,
                              const std::string& extra) {
    return "{" + extra + (extra.empty() ? "" : ",") + R"("model_type": ")" +
           family + R"(", "hidden_size": 96, "vocab_size": 320,
              "intermediate_size": 192, "num_hidden_layers": 2,
              "num_attention_heads": 3, "rms_norm_eps": 1e-5})";
  }

  // Whatever the file says, its error is a line that can be read.
  void ExpectShortError(const std::string& config) {
    const auto parsed = Parse(config);
    ASSERT_FALSE(parsed.ok());
    EXPECT_LT(parsed.status().message().size(), 1000u);
    EXPECT_EQ(parsed.status().message().find('\n'), std::string::npos);
  }

  void ExpectError(const std::string& config,
                   const std::vector<std::string>& mentions) {
    const auto parsed = Parse(config);
    ASSERT_FALSE(parsed.ok()) << config;
    for (const std::string& mention : mentions)
      EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(mention));
  }

  fs::path folder_;
};

TEST_F(ModelConfigTest, HugeStringsAreCutInMessages) {
  const std::string huge = std::string(1 << 20, 'x') + "\\n";
  ExpectShortError(ConfigOf(huge, ""));
  ExpectShortError(Config(R"("hidden_act": ")" + huge + "\""));
  ExpectShortError(Config(R"("rope_scaling": {"rope_type": ")" + huge + "\"}"));
}

TEST_F(ModelConfigTest, DefaultsAreThoseOfTransformers) {
  const auto config = Parse(Config(""));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, "llama");
  EXPECT_EQ(config->kv_heads, 3u);
  EXPECT_EQ(config->head_dim, 32u);
  EXPECT_EQ(config->max_positions, 2048u);
  EXPECT_EQ(config->rope.theta, 10000);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config->rope.pairing, RopePairing::kHalf);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_TRUE(config->eos_tokens.empty());
}

TEST_F(ModelConfigTest, AnExplicitHeadSizeIsNeverDerived) {
  const auto config = Parse(Config(R"("head_dim": 64,
                                      "num_key_value_heads": 1)"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 64u);
  EXPECT_EQ(config->query_size(), 192u);
  EXPECT_EQ(config->kv_size(), 64u);
}

TEST_F(ModelConfigTest, BothNamesOfTheActivationAreKnown) {
  for (const char* name : {"silu", "swish"})
    EXPECT_TRUE(
        Parse(Config(absl::StrCat(R"("hidden_act": ")", name, "\""))).ok());
}

TEST_F(ModelConfigTest, AFamilyDecidesOnBiasesAndNorms) {
  const auto llama = Parse(Config(R"("attention_bias": true)"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_TRUE(llama->qkv_bias && llama->attention_output_bias);
  EXPECT_FALSE(llama->ffn_bias || llama->head_norms);
  const auto qwen2 = Parse(ConfigOf("qwen2", R"("attention_bias": true)"));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->attention_output_bias || qwen2->head_norms);
  EXPECT_EQ(qwen2->head_dim, 32u);
  EXPECT_EQ(qwen2->max_positions, 32768u);
  const auto qwen3 = Parse(ConfigOf("qwen3", R"("mlp_bias": true)"));
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_TRUE(qwen3->head_norms);
  EXPECT_FALSE(qwen3->qkv_bias || qwen3->ffn_bias);
  // Qwen3Config's default, whatever the hidden size.
  EXPECT_EQ(qwen3->head_dim, 128u);
}

TEST_F(ModelConfigTest, AWindowThatIsUsedIsRefused) {
  const std::string window = R"("sliding_window": 8, )";
  for (const char* unused :
       {R"("use_sliding_window": false, "max_window_layers": 0)",
        R"("use_sliding_window": true, "max_window_layers": 2)",
        R"("use_sliding_window": true, "max_position_embeddings": 8,
           "max_window_layers": 0)",
        R"("use_sliding_window": true, "max_window_layers": 0,
           "layer_types": ["full_attention", "full_attention"])"})
    EXPECT_TRUE(Parse(ConfigOf("qwen2", window + unused)).ok()) << unused;
  for (const char* used :
       {R"("use_sliding_window": true, "max_window_layers": 1)",
        R"("use_sliding_window": true,
           "layer_types": ["full_attention", "sliding_attention"])"})
    ExpectError(ConfigOf("qwen3", window + used),
                {"config.json", "use_sliding_window", "8", "layer 1"});
}

TEST_F(ModelConfigTest, EosIdsOfBothFilesAreJoined) {
  const auto config =
      Parse(Config(R"("eos_token_id": [2, 300])"), R"({"eos_token_id": 5})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_tokens, testing::UnorderedElementsAre(2, 5, 300));
}

TEST_F(ModelConfigTest, ErrorsNameTheFileAndTheField) {
  ExpectError(R"({"model_type": "mamba"})", {"config.json", "mamba", "llama"});
  ExpectError(R"({"hidden_size": 96})", {"config.json", "model_type"});
  ExpectError(R"({"model_type": "llama"})", {"config.json", "hidden_size"});
  ExpectError(Config(R"("num_key_value_heads": 2)"), {"config.json", "3", "2"});
  ExpectError(Config(R"("num_key_value_heads": 0)"),
              {"config.json", "num_key_value_heads"});
  ExpectError(Config(R"("head_dim": 31)"), {"config.json", "31"});
  ExpectError(Config(R"("head_dim": 1e99)"), {"config.json", "head_dim"});
  ExpectError(Config(R"("hidden_act": "gelu")"), {"config.json", "gelu"});
  ExpectError(Config(R"("eos_token_id": "end")"),
              {folder_.string() + "/config.json: eos_token_id"});
}

}  // namespace
}  // namespace quire
