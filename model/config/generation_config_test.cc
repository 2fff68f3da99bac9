#include "quire/model/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GenerationConfigTest : public testing::Test {
 protected:
  GenerationConfigTest() {
    std::string pattern = testing::TempDir() + "quire_test_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~GenerationConfigTest() override { std::filesystem::remove_all(folder_); }

  void Write(const char* name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  absl::StatusOr<GenerationConfig> Parse(const std::string& json) {
    // No tensors: a header of two bytes, and no data.
    Write("model.safetensors", std::string_view("\2\0\0\0\0\0\0\0{}", 10));
    Write("config.json", R"({"model_type": "llama"})");
    if (!json.empty()) Write("generation_config.json", json);
    const auto checkpoint = Checkpoint::Open(folder_.string());
    if (!checkpoint.ok()) return checkpoint.status();
    return ParseGenerationConfig(**checkpoint);
  }

  std::filesystem::path folder_;
};

TEST_F(GenerationConfigTest, WithoutAFileItIsGreedy) {
  const auto config = Parse("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sampling.temperature, 0);
  EXPECT_EQ(config->sampling.repetition_penalty, 1);
  EXPECT_FALSE(config->max_new_tokens || config->max_length);
}

// As Qwen3-8B has it.
TEST_F(GenerationConfigTest, FieldsOfTransformers4AreRead) {
  const auto config = Parse(
      R"({"bos_token_id": 151643, "do_sample": true, "eos_token_id":
          [151645, 151643], "pad_token_id": 151643, "temperature": 0.6,
          "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sampling.temperature, 0.6);
  EXPECT_EQ(config->sampling.top_k, 20);
  EXPECT_EQ(config->sampling.top_p, 0.95);
  EXPECT_EQ(config->sampling.min_p, 0);
}

TEST_F(GenerationConfigTest, NullIsUnsetAsInTransformers5) {
  const auto config = Parse(
      R"({"do_sample": true, "temperature": null, "top_k": null,
          "top_p": null, "max_length": null, "max_new_tokens": 96,
          "repetition_penalty": null, "suppress_tokens": null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sampling.temperature, 1);
  EXPECT_EQ(config->sampling.top_k, 50);
  EXPECT_EQ(config->sampling.top_p, 1);
  EXPECT_EQ(config->max_new_tokens, 96u);
  EXPECT_EQ(config->max_length, std::nullopt);
  EXPECT_THAT(config->sampling.suppressed_tokens, IsEmpty());
}

TEST_F(GenerationConfigTest, WithoutSamplingOnlyWhatChangesTheLikeliestCounts) {
  const auto config = Parse(
      R"({"do_sample": false, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
          "repetition_penalty": 1.05, "suppress_tokens": [7, 9],
          "max_length": 4096})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sampling.temperature, 0);
  EXPECT_EQ(config->sampling.top_k, 0);
  EXPECT_EQ(config->sampling.repetition_penalty, 1.05);
  EXPECT_THAT(config->sampling.suppressed_tokens, ElementsAre(7, 9));
  EXPECT_EQ(config->max_length, 4096u);
}

TEST_F(GenerationConfigTest, ErrorsNameTheFileAndTheField) {
  for (const auto& [json, field] :
       std::vector<std::pair<std::string, std::string>>{
           {R"({"do_sample": "yes"})", "do_sample"},
           {R"({"do_sample": true, "temperature": -1})", "temperature"},
           {R"({"do_sample": true, "top_k": -5})", "top_k"},
           {R"({"do_sample": true, "top_p": 2})", "top_p"},
           {R"({"repetition_penalty": 0})", "repetition_penalty"},
           {R"({"suppress_tokens": [1e30]})", "suppress_tokens"},
           {R"({"suppress_tokens": [9999999999]})", "suppress_tokens"},
           {R"({"max_new_tokens": -1})", "max_new_tokens"}}) {
    const auto config = Parse(json);
    ASSERT_FALSE(config.ok()) << json;
    const std::string message(config.status().message());
    EXPECT_THAT(message, HasSubstr("generation_config.json"));
    EXPECT_THAT(message, HasSubstr(field));
  }
}

}  // namespace
}  // namespace quire
