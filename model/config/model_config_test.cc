#include "quire/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
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

TEST_F(ModelConfigTest, BothGenerationsOfRotaryFieldsAreRead) {
  const auto old = Parse(Config(
      R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4})"));
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->rope.theta, 5e5);
  EXPECT_EQ(old->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old->rope.factor, 4);
  const auto current = Parse(Config(
      R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5,
         "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 8192})"));
  ASSERT_TRUE(current.ok()) << current.status();
  EXPECT_EQ(current->rope.theta, 5e5);
  EXPECT_EQ(current->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(current->rope.factor, 32);
  EXPECT_EQ(current->rope.original_max_positions, 8192);
}

TEST_F(ModelConfigTest, TheOldRotaryFieldCountsBesideTheNewOne) {
  // As transformers 5.24 reads them: modeling_rope_utils.py,
  // convert_rope_params_to_dict.
  const auto config = Parse(Config(
      R"("rope_theta": 2e4,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
         "rope_scaling": {"rope_type": "linear", "factor": 4.0})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope.factor, 4.0);
  EXPECT_EQ(config->rope.theta, 2e4);
  for (const char* nothing : {"{}", "null"}) {
    const auto other = Parse(Config(absl::StrCat(
        R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
           "rope_scaling": )",
        nothing)));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->rope.theta, 5e5);
  }
}

TEST_F(ModelConfigTest, APartialRotationIsRefusedWhereverItIsSaid) {
  ExpectError(Config(R"("partial_rotary_factor": 0.5)"),
              {"config.json", "rotation of 0.5"});
  ExpectError(Config(R"("partial_rotary_factor": 0.5,
                        "rope_scaling": {"type": "linear", "factor": 2})"),
              {"config.json", "rotation of 0.5"});
  ExpectError(Config(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
              {"config.json", "rope_parameters", "rotation of 0.5"});
  EXPECT_TRUE(Parse(Config(R"("partial_rotary_factor": 1.0)")).ok());
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
  ExpectError(Config(R"("rope_theta": -1)"), {"config.json", "rope_theta"});
  ExpectError(Config(R"("hidden_act": "gelu")"), {"config.json", "gelu"});
  ExpectError(Config(R"("rope_scaling": {"type": "yarn", "factor": 4})"),
              {"config.json", "yarn"});
  ExpectError(Config(R"("rope_scaling": {"type": "linear"})"),
              {"rope_scaling", "factor"});
  ExpectError(Config(R"("rope_scaling": {"type": "llama3", "factor": 8})"),
              {"rope_scaling", "low_freq_factor"});
  ExpectError(Config(R"("eos_token_id": "end")"),
              {folder_.string() + "/config.json: eos_token_id"});
}

TEST(InverseFrequenciesTest, WithoutScalingTheyArePowersOfTheta) {
  const std::vector<float> frequencies =
      InverseFrequencies({.theta = 10000}, 8);
  EXPECT_THAT(frequencies,
              ElementsAre(testing::FloatEq(1), testing::FloatEq(0.1f),
                          testing::FloatEq(0.01f), testing::FloatEq(0.001f)));
}

// transformers' _compute_llama3_parameters, written out with its branches.
float Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * M_PI / frequency;
  const double low = rope.original_max_positions / rope.low_frequency_factor;
  const double high = rope.original_max_positions / rope.high_frequency_factor;
  if (wavelength < high) return static_cast<float>(frequency);
  if (wavelength > low) return static_cast<float>(frequency / rope.factor);
  const double smooth =
      (rope.original_max_positions / wavelength - rope.low_frequency_factor) /
      (rope.high_frequency_factor - rope.low_frequency_factor);
  return static_cast<float>((1 - smooth) * frequency / rope.factor +
                            smooth * frequency);
}

TEST(InverseFrequenciesTest, FactorsDivideAndAreAboveZero) {
  std::vector<float> frequencies = {1, 0.5f};
  ASSERT_TRUE(DivideFrequencies(std::vector<float>{1, 8}, &frequencies).ok());
  EXPECT_THAT(frequencies, ElementsAre(1, 0.0625f));
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    const absl::Status status =
        DivideFrequencies(std::vector<float>{1, bad}, &frequencies);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("factor 1 is"));
  }
}

TEST(InverseFrequenciesTest, Llama3KeepsBlendsAndDivides) {
  const RopeConfig rope = {.theta = 500000,
                           .scaling = RopeScaling::kLlama3,
                           .factor = 8,
                           .low_frequency_factor = 1,
                           .high_frequency_factor = 4,
                           .original_max_positions = 8192};
  const std::vector<float> frequencies = InverseFrequencies(rope, 128);
  for (int i = 0; i < 64; ++i)
    EXPECT_FLOAT_EQ(frequencies[static_cast<size_t>(i)],
                    Llama3Frequency(rope, std::pow(500000.0, -i / 64.0)))
        << i;
  // All three bands occur.
  EXPECT_FLOAT_EQ(frequencies[0], 1);
  EXPECT_FLOAT_EQ(frequencies[63],
                  static_cast<float>(std::pow(500000.0, -63 / 64.0) / 8));
}

TEST(InverseFrequenciesTest, LinearDividesAll) {
  const std::vector<float> frequencies = InverseFrequencies(
      {.theta = 10000, .scaling = RopeScaling::kLinear, .factor = 4}, 4);
  EXPECT_THAT(frequencies,
              ElementsAre(testing::FloatEq(0.25f), testing::FloatEq(0.0025f)));
}

}  // namespace
}  // namespace quire
