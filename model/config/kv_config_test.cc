// Sizes against those that their authors publish, and windows against what
// transformers makes of the same configurations.

#include "quire/model/kv_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quire/model/published_models.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<KvConfig> Parse(const std::string& text) {
  return ParseKvConfig(json::parse(text), "config.json");
}

// Bytes of one token in 16-bit elements, over all layers.
uint64_t TokenBytes(const KvConfig& config) {
  const auto layout = KvLayout::Create(config.shape, 1);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? layout->TokenBytes().value() : 0;
}

std::vector<uint64_t> Windows(const KvConfig& config) {
  std::vector<uint64_t> windows;
  for (const KvLayerKind& kind : config.shape.layers)
    windows.push_back(kind.window);
  return windows;
}

// DeepSeek-AI, Insights into DeepSeek-V3 (ISCA 2025), table 1: KV cache a
// token, in kilobytes of 1000 bytes.
TEST(KvConfigTest, TokensTakeWhatDeepSeekPublishes) {
  const auto deepseek = Parse(
      R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
          "num_attention_heads": 128, "num_key_value_heads": 128,
          "kv_lora_rank": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1536,
          "qk_nope_head_dim": 128, "v_head_dim": 128,
          "max_position_embeddings": 163840, "hidden_size": 7168})");
  ASSERT_TRUE(deepseek.ok()) << deepseek.status();
  EXPECT_EQ(TokenBytes(*deepseek), 70'272u);
  EXPECT_EQ(deepseek->max_positions, 163840u);
  const auto qwen = Parse(
      R"({"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192,
          "num_attention_heads": 64, "num_key_value_heads": 8,
          "use_sliding_window": false, "sliding_window": 131072,
          "max_window_layers": 70})");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_EQ(TokenBytes(*qwen), 327'680u);
  const auto llama = Parse(
      R"({"model_type": "llama", "num_hidden_layers": 126,
          "num_attention_heads": 128, "num_key_value_heads": 8,
          "hidden_size": 16384})");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(TokenBytes(*llama), 516'096u);
}

// layers x 2 x kv_heads x head_dim x 2 bytes, and how many layers see all.
TEST(KvConfigTest, PublishedModelsAreTheFormula) {
  const struct {
    const char* name;
    uint64_t token;
    size_t layers_with_windows;
    uint64_t window;
    uint64_t max_positions;
  } expected[] = {
      {"qwen3-0.6b", 28 * 2 * 8 * 128 * 2, 0, 0, 40960},
      {"qwen3-8b", 36 * 2 * 8 * 128 * 2, 0, 0, 40960},
      {"llama2-7b", 32 * 2 * 32 * 128 * 2, 0, 0, 4096},
      {"llama3-8b", 32 * 2 * 8 * 128 * 2, 0, 0, 131072},
      {"mistral-7b", 32 * 2 * 8 * 128 * 2, 0, 0, 32768},
      {"gemma2-9b", 42 * 2 * 8 * 256 * 2, 21, 4096, 8192},
      {"gemma3-12b", 48 * 2 * 8 * 256 * 2, 40, 1024, 131072},
      {"gpt-oss-20b", 24 * 2 * 8 * 64 * 2, 12, 128, 131072},
      // One vector a layer instead of keys and values.
      {"deepseek-v2-lite", 27 * (512 + 64) * 2, 0, 0, 163840},
  };
  ASSERT_EQ(PublishedModels().size(), std::size(expected));
  for (const auto& model : expected) {
    SCOPED_TRACE(model.name);
    const PublishedModel* const published = FindPublishedModel(model.name);
    ASSERT_NE(published, nullptr);
    const auto config = published->ParseKv();
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(TokenBytes(*config), model.token);
    EXPECT_EQ(config->max_positions, model.max_positions);
    size_t with_windows = 0;
    for (const uint64_t window : Windows(*config)) {
      if (window == 0) continue;
      EXPECT_EQ(window, model.window);
      ++with_windows;
    }
    EXPECT_EQ(with_windows, model.layers_with_windows);
  }
  EXPECT_EQ(FindPublishedModel("gpt-5"), nullptr);
}

// transformers' layer_types, where config.json has none: gpt-oss and Gemma 2
// begin with a window, Gemma 3 ends each six layers with one that sees all.
TEST(KvConfigTest, WindowsAreWhereTransformersHasThem) {
  const auto windows = [](const std::string& text) {
    const auto config = Parse(text);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? Windows(*config) : std::vector<uint64_t>();
  };
  EXPECT_THAT(windows(R"({"model_type": "gpt_oss", "num_hidden_layers": 3})"),
              ElementsAre(128, 0, 128));
  EXPECT_THAT(windows(R"({"model_type": "gemma2", "num_hidden_layers": 4,
                          "sliding_window": 4096})"),
              ElementsAre(4096, 0, 4096, 0));
  EXPECT_THAT(windows(R"({"model_type": "gemma3", "text_config": {
                  "model_type": "gemma3_text", "num_hidden_layers": 7,
                  "sliding_window": 512}})"),
              ElementsAre(512, 512, 512, 512, 512, 0, 512));
  EXPECT_THAT(windows(R"({"model_type": "gemma3_text", "num_hidden_layers": 3,
                          "sliding_window": 512,
                          "sliding_window_pattern": 2})"),
              ElementsAre(512, 0, 512));
  EXPECT_THAT(windows(R"({"model_type": "gemma3_text", "num_hidden_layers": 3,
                          "sliding_window": 512, "layer_types":
                          ["full_attention", "sliding_attention",
                           "full_attention"]})"),
              ElementsAre(0, 512, 0));
  // What is left out is the family's, what is null is none.
  constexpr char kMistral[] =
      R"("model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 64,
         "num_attention_heads": 8)";
  EXPECT_THAT(windows(std::string("{") + kMistral + "}"),
              ElementsAre(4096, 4096));
  EXPECT_THAT(
      windows(std::string("{") + kMistral + R"(, "sliding_window": null})"),
      ElementsAre(0, 0));
  EXPECT_THAT(
      windows(std::string("{") + kMistral + R"(, "sliding_window": 12})"),
      ElementsAre(12, 12));
  constexpr char kQwen[] =
      R"("model_type": "qwen3", "num_hidden_layers": 3, "hidden_size": 64,
         "num_attention_heads": 8, "num_key_value_heads": 8,
         "sliding_window": 32, "max_window_layers": 1)";
  EXPECT_THAT(windows(std::string("{") + kQwen + "}"), ElementsAre(0, 0, 0));
  EXPECT_THAT(
      windows(std::string("{") + kQwen + R"(, "use_sliding_window": true})"),
      ElementsAre(0, 32, 32));
  // The same fields mean other layers where there are experts.
  constexpr char kExperts[] =
      R"("num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 16,
         "num_key_value_heads": 4, "use_sliding_window": true,
         "sliding_window": 32, "max_window_layers": 3})";
  EXPECT_THAT(
      windows(std::string(R"({"model_type": "qwen2_moe", )") + kExperts),
      ElementsAre(32, 0, 32, 0, 0));
  EXPECT_THAT(
      windows(std::string(R"({"model_type": "qwen3_moe", )") + kExperts),
      ElementsAre(32, 32, 32, 32, 32));
  EXPECT_THAT(windows(R"({"model_type": "ministral", "num_hidden_layers": 2,
                          "hidden_size": 64, "num_attention_heads": 8,
                          "sliding_window": 8})"),
              ElementsAre(8, 8));
}

// What transformers' classes have for fields that are left out: a model of
// images and text leaves out what its language model has of them.
TEST(KvConfigTest, FieldsThatAreLeftOutAreTheFamilys) {
  const struct {
    const char* text;
    uint64_t token;
  } expected[] = {
      // llava-1.5-7b, pixtral-12b and Qwen2.5-VL-7B as they are published.
      {R"({"model_type": "llava", "text_config": {"model_type": "llama",
           "max_position_embeddings": 4096, "vocab_size": 32064}})",
       32 * 2 * 32 * 128 * 2},
      {R"({"model_type": "llava", "text_config": {"model_type": "mistral",
           "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40,
           "num_key_value_heads": 8}})",
       40 * 2 * 8 * 128 * 2},
      {R"({"model_type": "qwen2_5_vl", "hidden_size": 3584,
           "num_attention_heads": 28, "num_hidden_layers": 28,
           "num_key_value_heads": 4, "use_sliding_window": false,
           "sliding_window": 32768, "max_window_layers": 28})",
       28 * 2 * 4 * 128 * 2},
      {R"({"model_type": "qwen2_vl", "text_config": {"model_type":
           "qwen2_vl_text", "num_hidden_layers": 2}})",
       2 * 2 * 8 * 128 * 2},
      // Not as many as there are heads, but where there is a null.
      {R"({"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192,
           "num_attention_heads": 64})",
       80 * 2 * 32 * 128 * 2},
      {R"({"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192,
           "num_attention_heads": 64, "num_key_value_heads": null})",
       80 * 2 * 64 * 128 * 2},
      {R"({"model_type": "glm4", "num_hidden_layers": 40, "hidden_size": 4096,
           "num_attention_heads": 32})",
       40 * 2 * 2 * 128 * 2},
  };
  for (const auto& [text, token] : expected) {
    const auto config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(TokenBytes(*config), token) << text;
  }
}

TEST(KvConfigTest, ElementsOf8BitsHaveScales) {
  const auto config = Parse(R"({"model_type": "gpt_oss",
                                "num_hidden_layers": 2})");
  ASSERT_TRUE(config.ok()) << config.status();
  for (const KvLayerKind& kind :
       WithElements(config->shape, KvDType::kInt8).layers)
    EXPECT_EQ(kind.scale, KvScale::kF16);
  for (const KvLayerKind& kind :
       WithElements(config->shape, KvDType::kBF16).layers) {
    EXPECT_EQ(kind.scale, KvScale::kNone);
    EXPECT_EQ(kind.dtype, KvDType::kBF16);
  }
}

TEST(KvConfigTest, WhatIsNotKnownIsAnErrorThatNamesIt) {
  const auto expect = [](const std::string& text, absl::StatusCode code,
                         const std::string& mention) {
    const auto config = Parse(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().code(), code) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(mention));
    EXPECT_THAT(std::string(config.status().message()),
                HasSubstr("config.json"));
  };
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  expect(R"({"model_type": "mamba2", "num_hidden_layers": 2})", kUnimplemented,
         "mamba2");
  expect(R"({"num_hidden_layers": 2})", absl::StatusCode::kNotFound,
         "model_type");
  expect(R"({"model_type": "llama"})", absl::StatusCode::kNotFound,
         "num_hidden_layers");
  expect(R"({"model_type": "gpt_oss", "num_hidden_layers": 5000})", kInvalid,
         "num_hidden_layers");
  expect(R"({"model_type": "gpt_oss", "num_hidden_layers": 2,
             "sliding_window": 0})",
         kInvalid, "sliding_window");
  expect(R"({"model_type": "gpt_oss", "num_hidden_layers": 2,
             "layer_types": ["full_attention"]})",
         kInvalid, "layer_types");
  expect(R"({"model_type": "gpt_oss", "num_hidden_layers": 1,
             "layer_types": ["chunked_attention"]})",
         kUnimplemented, "chunked_attention");
  expect(R"({"model_type": "gpt_oss", "num_hidden_layers": 1,
             "num_key_value_heads": 7})",
         kInvalid, "num_key_value_heads");
  expect(R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 65,
             "num_attention_heads": 8})",
         kInvalid, "hidden_size");
  expect(R"({"model_type": "gemma3_text", "sliding_window_pattern": 0})",
         kInvalid, "sliding_window_pattern");
  expect(R"({"model_type": "gemma3", "text_config": 3})", kInvalid,
         "text_config");
}

// ---- GGUF -------------------------------------------------------------------

absl::StatusOr<KvConfig> ParseGguf(const std::string& text) {
  return ParseGgufKvConfig(json::parse(text), "model.gguf");
}

// What llama.cpp's converter writes of a model is what its config.json says.
TEST(GgufKvConfigTest, SaysWhatTheConfigurationSays) {
  const struct {
    const char* config;
    const char* gguf;
  } same[] = {
      {R"({"model_type": "gemma2", "num_hidden_layers": 42, "head_dim": 256,
           "num_attention_heads": 16, "num_key_value_heads": 8,
           "hidden_size": 3584, "sliding_window": 4096})",
       R"({"general.architecture": "gemma2", "gemma2.block_count": 42,
           "gemma2.context_length": 8192, "gemma2.embedding_length": 3584,
           "gemma2.attention.head_count": 16,
           "gemma2.attention.head_count_kv": 8,
           "gemma2.attention.key_length": 256,
           "gemma2.attention.value_length": 256,
           "gemma2.attention.sliding_window": 4096})"},
      {R"({"model_type": "gpt_oss", "num_hidden_layers": 24})",
       R"({"general.architecture": "gpt-oss", "gpt-oss.block_count": 24,
           "gpt-oss.context_length": 131072, "gpt-oss.embedding_length": 2880,
           "gpt-oss.attention.head_count": 64,
           "gpt-oss.attention.head_count_kv": 8,
           "gpt-oss.attention.key_length": 64,
           "gpt-oss.attention.value_length": 64,
           "gpt-oss.attention.sliding_window": 128})"},
      {R"({"model_type": "gemma3_text", "num_hidden_layers": 34,
           "num_attention_heads": 8, "num_key_value_heads": 4,
           "head_dim": 256, "sliding_window": 1024})",
       R"({"general.architecture": "gemma3", "gemma3.block_count": 34,
           "gemma3.context_length": 131072, "gemma3.embedding_length": 2560,
           "gemma3.attention.head_count": 8,
           "gemma3.attention.head_count_kv": 4,
           "gemma3.attention.key_length": 256,
           "gemma3.attention.value_length": 256,
           "gemma3.attention.sliding_window": 1024})"},
      {R"({"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072,
           "num_attention_heads": 32, "sliding_window": 2047,
           "max_position_embeddings": 4096})",
       R"({"general.architecture": "phi3", "phi3.block_count": 32,
           "phi3.context_length": 4096, "phi3.embedding_length": 3072,
           "phi3.attention.head_count": 32,
           "phi3.attention.sliding_window": 2047})"},
      {R"({"model_type": "mixtral", "num_hidden_layers": 32,
           "hidden_size": 4096, "num_attention_heads": 32,
           "num_key_value_heads": 8, "max_position_embeddings": 32768})",
       R"({"general.architecture": "llama", "llama.block_count": 32,
           "llama.context_length": 32768, "llama.embedding_length": 4096,
           "llama.attention.head_count": 32,
           "llama.attention.head_count_kv": 8})"},
      {R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
           "num_attention_heads": 128, "kv_lora_rank": 512,
           "qk_rope_head_dim": 64, "max_position_embeddings": 163840})",
       R"({"general.architecture": "deepseek2", "deepseek2.block_count": 61,
           "deepseek2.context_length": 163840,
           "deepseek2.embedding_length": 7168,
           "deepseek2.attention.head_count": 128,
           "deepseek2.attention.head_count_kv": 1,
           "deepseek2.attention.key_length": 576,
           "deepseek2.attention.value_length": 512,
           "deepseek2.attention.kv_lora_rank": 512,
           "deepseek2.rope.dimension_count": 64})"},
  };
  for (const auto& [text, gguf_text] : same) {
    const auto config = Parse(text);
    const auto gguf = ParseGguf(gguf_text);
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    EXPECT_EQ(gguf->shape.layers, config->shape.layers) << gguf_text;
    EXPECT_EQ(gguf->max_positions, config->max_positions);
    EXPECT_EQ(gguf->query_heads, config->query_heads);
  }
}

TEST(GgufKvConfigTest, LayersMayBeListed) {
  const auto config = ParseGguf(
      R"({"general.architecture": "gpt-oss", "gpt-oss.block_count": 3,
          "gpt-oss.embedding_length": 64,
          "gpt-oss.attention.head_count": [4, 4, 8],
          "gpt-oss.attention.head_count_kv": [1, 2, 4],
          "gpt-oss.attention.key_length": 16,
          "gpt-oss.attention.value_length": 8,
          "gpt-oss.attention.sliding_window": 32,
          "gpt-oss.attention.sliding_window_pattern": [false, false, true]})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(Windows(*config), ElementsAre(0, 0, 32));
  EXPECT_EQ(TokenBytes(*config), (1 + 2 + 4) * (16 + 8) * 2);
  EXPECT_EQ(config->query_heads, 8u);
}

TEST(GgufKvConfigTest, ErrorsNameTheField) {
  const auto expect = [](const std::string& fields, absl::StatusCode code,
                         const std::string& mention) {
    const absl::Status status =
        ParseGguf(R"({"general.architecture": )" + fields + "}").status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.gguf"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(mention));
  };
  expect(R"("mamba")", absl::StatusCode::kUnimplemented, "gpt-oss");
  expect(R"("gemma2")", absl::StatusCode::kNotFound, "gemma2.block_count");
  expect(R"("gemma2", "gemma2.block_count": 1000000)",
         absl::StatusCode::kInvalidArgument, "gemma2.block_count");
  expect(R"("gemma2", "gemma2.block_count": 2,
            "gemma2.attention.head_count": [4])",
         absl::StatusCode::kInvalidArgument, "1 entries for 2 layers");
  expect(R"("gemma2", "gemma2.block_count": 2, "gemma2.embedding_length": 8,
            "gemma2.attention.head_count": 4,
            "gemma2.attention.head_count_kv": [1, 0])",
         absl::StatusCode::kInvalidArgument, "an entry of 0");
  expect(R"("gemma2", "gemma2.block_count": 2, "gemma2.embedding_length": 8,
            "gemma2.attention.head_count": 4,
            "gemma2.attention.sliding_window_pattern": [true])",
         absl::StatusCode::kInvalidArgument, "1 entries for 2 layers");
  expect(R"("deepseek2", "deepseek2.block_count": 2,
            "deepseek2.attention.head_count": 4)",
         absl::StatusCode::kNotFound, "kv_lora_rank");
}

}  // namespace
}  // namespace quire
