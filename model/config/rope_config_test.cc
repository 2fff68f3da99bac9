// Rotary fields of config.json and GGUF, and the frequencies that follow:
// against those that transformers computes (tests/golden/rope.json).

#include "model/config/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/golden_data.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

constexpr uint64_t kPositions = 2048;

absl::StatusOr<ModelConfig> Read(const std::string& fields) {
  ModelConfig config;
  config.max_positions = kPositions;
  const json object = json::parse(fields);
  const absl::Status status =
      ReadRope(JsonFields(object, "config.json"), &config);
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<ModelConfig> ReadGguf(const std::string& fields) {
  ModelConfig config;
  config.max_positions = kPositions;
  const json object = json::parse(fields);
  const absl::Status status =
      ReadGgufRope(JsonFields(object, "model.gguf"), "qwen2", &config);
  if (!status.ok()) return status;
  return config;
}

void ExpectRefused(const absl::StatusOr<ModelConfig>& config,
                   const std::vector<std::string>& mentions) {
  ASSERT_FALSE(config.ok());
  for (const std::string& mention : mentions)
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(mention));
}

TEST(RopeConfigTest, FrequenciesAreThoseOfTransformers) {
  for (const json& entry : ReadGolden("rope.json")) {
    const json& fields = entry["config"];
    SCOPED_TRACE(fields.dump());
    ModelConfig config;
    config.max_positions = fields["max_position_embeddings"];
    const absl::Status status =
        ReadRope(JsonFields(fields, "config.json"), &config);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_NEAR(config.rope.magnitude, entry["magnitude"].get<double>(), 1e-12);
    const std::vector<float> frequencies =
        InverseFrequencies(config.rope, fields["head_dim"]);
    const auto expected = entry["frequencies"].get<std::vector<float>>();
    ASSERT_EQ(frequencies.size(), expected.size());
    // Theirs are rounded to float32 on the way.
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(frequencies[i] / expected[i], 1, 2e-6) << i;
  }
}

TEST(RopeConfigTest, BothGenerationsOfFieldsAreRead) {
  const auto old = Read(
      R"({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}})");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->rope.theta, 5e5);
  EXPECT_EQ(old->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old->rope.factor, 4);
  const auto current = Read(
      R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5,
          "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 8192}})");
  ASSERT_TRUE(current.ok()) << current.status();
  EXPECT_EQ(current->rope.theta, 5e5);
  EXPECT_EQ(current->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(current->rope.factor, 32);
  EXPECT_EQ(current->rope.original_max_positions, 8192);
  // No context of a model is lengthened by it.
  EXPECT_EQ(current->max_positions, kPositions);
}

TEST(RopeConfigTest, TheOldFieldCountsBesideTheNewOne) {
  // As transformers 5.24 reads them: modeling_rope_utils.py,
  // convert_rope_params_to_dict.
  const auto config = Read(
      R"({"rope_theta": 2e4,
          "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
          "rope_scaling": {"rope_type": "linear", "factor": 4.0}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope.factor, 4.0);
  EXPECT_EQ(config->rope.theta, 2e4);
  for (const char* nothing : {"{}", "null"}) {
    const auto other = Read(
        R"({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "rope_scaling": )" +
        std::string(nothing) + "}");
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->rope.theta, 5e5);
  }
}

TEST(RopeConfigTest, APartialRotationIsRefusedWhereverItIsSaid) {
  ExpectRefused(Read(R"({"partial_rotary_factor": 0.5})"),
                {"config.json", "rotation of 0.5"});
  ExpectRefused(Read(R"({"partial_rotary_factor": 0.5,
                         "rope_scaling": {"type": "linear", "factor": 2}})"),
                {"config.json", "rotation of 0.5"});
  ExpectRefused(Read(R"({"rope_parameters": {"partial_rotary_factor": 0.5}})"),
                {"config.json", "rope_parameters", "rotation of 0.5"});
  EXPECT_TRUE(Read(R"({"partial_rotary_factor": 1.0})").ok());
}

TEST(RopeConfigTest, YarnLengthensTheContext) {
  const auto config = Read(
      R"({"rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 2048}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_positions, 8192u);
  // Never shortens it.
  const auto longer = Read(
      R"({"rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 16}})");
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->max_positions, kPositions);
  const auto endless = Read(
      R"({"rope_scaling": {"type": "yarn", "factor": 1e300,
          "original_max_position_embeddings": 16}})");
  ASSERT_TRUE(endless.ok()) << endless.status();
  EXPECT_EQ(endless->max_positions, 1000000000000u);
}

TEST(RopeConfigTest, ErrorsNameTheField) {
  ExpectRefused(Read(R"({"rope_theta": -1})"), {"config.json", "rope_theta"});
  ExpectRefused(Read(R"({"rope_scaling": {"type": "longrope"}})"),
                {"rope_scaling", "\"longrope\"", "\"yarn\""});
  for (const char* kind : {"linear", "dynamic", "yarn", "llama3"})
    ExpectRefused(
        Read(R"({"rope_scaling": {"type": ")" + std::string(kind) + "\"}}"),
        {"rope_scaling", "\"factor\" is missing"});
  ExpectRefused(Read(R"({"rope_scaling": {"type": "llama3", "factor": 8}})"),
                {"rope_scaling", "low_freq_factor"});
  const auto yarn = [](const std::string& more) {
    return Read(R"({"rope_scaling": {"type": "yarn", "factor": 4, )" + more +
                "}}");
  };
  ExpectRefused(yarn(R"("beta_slow": -1)"), {"rope_scaling", "-1"});
  ExpectRefused(yarn(R"("rope_theta": 1)"), {"rope_scaling", "base of 1"});
  ExpectRefused(yarn(R"("attention_factor": 0)"),
                {"rope_scaling", "attention_factor"});
  ExpectRefused(yarn(R"("mscale": -100, "mscale_all_dim": 1)"),
                {"rope_scaling", "mscale"});
  ExpectRefused(yarn(R"("truncate": 1)"), {"rope_scaling", "truncate"});
}

// ---- GGUF -------------------------------------------------------------------

TEST(RopeConfigTest, GgufSaysWhatTheConfigurationSays) {
  const auto config = Read(
      R"({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 4096}})");
  const auto gguf = ReadGguf(
      R"({"qwen2.rope.freq_base": 1e6, "qwen2.rope.scaling.type": "yarn",
          "qwen2.rope.scaling.factor": 4.0,
          "qwen2.rope.scaling.original_context_length": 4096})");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->rope.magnitude, config->rope.magnitude);
  EXPECT_EQ(gguf->max_positions, config->max_positions);
  EXPECT_EQ(InverseFrequencies(gguf->rope, 128),
            InverseFrequencies(config->rope, 128));
}

// llama.cpp's defaults: "linear" without a kind, no change with a factor of 0,
// and the key of the first files.
TEST(RopeConfigTest, AFactorWithoutAKindIsLinear) {
  for (const char* key : {"scaling.factor", "scale_linear"}) {
    const std::string name = "{\"qwen2.rope." + std::string(key) + "\": ";
    const auto config = ReadGguf(name + "4.0}");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(config->rope.factor, 4);
    for (const char* nothing : {"0.0}", "1.0}"}) {
      const auto same = ReadGguf(name + nothing);
      ASSERT_TRUE(same.ok()) << same.status();
      EXPECT_EQ(same->rope.scaling, RopeScaling::kNone);
    }
    ExpectRefused(ReadGguf(name + "-2.0}"), {"model.gguf", key, "-2"});
  }
  const auto none = ReadGguf(
      R"({"qwen2.rope.scaling.type": "none", "qwen2.rope.scaling.factor": 4})");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->rope.scaling, RopeScaling::kNone);
}

TEST(RopeConfigTest, OtherYarnsOfGgufAreRefusedByName) {
  for (const char* key :
       {"yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"}) {
    const std::string field = "qwen2.rope.scaling." + std::string(key);
    ExpectRefused(ReadGguf(R"({"qwen2.rope.scaling.type": "yarn", ")" + field +
                           "\": 0.5}"),
                  {"model.gguf", field, "0.5"});
  }
  ExpectRefused(ReadGguf(R"({"qwen2.rope.scaling.type": "longrope"})"),
                {"model.gguf", "\"longrope\""});
}

// ---- Frequencies ------------------------------------------------------------

TEST(InverseFrequenciesTest, WithoutScalingTheyArePowersOfTheta) {
  EXPECT_THAT(
      InverseFrequencies({.theta = 10000}, 8),
      ElementsAre(FloatEq(1), FloatEq(0.1f), FloatEq(0.01f), FloatEq(0.001f)));
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
  EXPECT_THAT(frequencies, ElementsAre(FloatEq(0.25f), FloatEq(0.0025f)));
}

}  // namespace
}  // namespace quire
