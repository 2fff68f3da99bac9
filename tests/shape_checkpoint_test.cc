// Configurations without weights against published sizes of models, and
// against checkpoints that have both.

#include "model/engine/shape_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "quire/model/model_config.h"
#include "quire/model/plan.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct PublishedModel {
  const char* name;
  const char* config;
  uint64_t bytes;     // of its safetensors files' tensors, in bf16 or f16
  uint64_t kv_token;  // layers x 2 x kv_heads x head_dim x 2 bytes
  uint64_t vectors;   // parameters in norms
};

constexpr PublishedModel kPublished[] = {
    {"Qwen3-8B",
     R"({"model_type": "qwen3", "hidden_size": 4096,
         "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960,
         "tie_word_embeddings": false, "torch_dtype": "bfloat16"})",
     16381470720, 36 * 2 * 8 * 128 * 2, 36 * (2 * 4096 + 2 * 128) + 4096},
    {"Qwen3-0.6B",
     R"({"model_type": "qwen3", "hidden_size": 1024,
         "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960,
         "tie_word_embeddings": true, "dtype": "bfloat16"})",
     1192099840, 28 * 2 * 8 * 128 * 2, 28 * (2 * 1024 + 2 * 128) + 1024},
    {"Llama 3 8B",
     R"({"model_type": "llama", "hidden_size": 4096,
         "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "max_position_embeddings": 8192,
         "rms_norm_eps": 1e-5})",
     16060522496, 32 * 2 * 8 * 128 * 2, 32 * 2 * 4096 + 4096},
    {"Llama 2 7B",
     R"({"model_type": "llama", "hidden_size": 4096,
         "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 32000,
         "max_position_embeddings": 4096, "torch_dtype": "float16"})",
     13476831232, 32 * 2 * 32 * 128 * 2, 32 * 2 * 4096 + 4096},
};

TEST(ShapeCheckpointTest, PublishedModelsHaveTheirPublishedSizes) {
  for (const PublishedModel& model : kPublished) {
    const TemporaryFolder folder;
    folder.Write("config.json", model.config);
    ASSERT_TRUE(HasNoWeights(folder.path()));
    const auto checkpoint = OpenShape(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << model.name << ": " << checkpoint.status();
    EXPECT_EQ((*checkpoint)->total_size(), Bytes(model.bytes)) << model.name;
    const auto config = ParseModelConfig(**checkpoint);
    ASSERT_TRUE(config.ok()) << config.status();
    SessionOptions options;
    options.device.device_memory = GiB(24);
    const auto plan = PlanModel(**checkpoint, *config, options);
    ASSERT_TRUE(plan.ok()) << model.name << ": " << plan.status();
    EXPECT_EQ(plan->weights, Bytes(model.bytes)) << model.name;
    EXPECT_EQ(plan->kv_token, Bytes(model.kv_token)) << model.name;
    // What people reckon: parameters x bytes x 1.2.
    const uint64_t matrices = model.bytes - model.vectors * 2;
    EXPECT_NEAR(static_cast<double>(plan->rule_of_thumb.value()),
                1.2 * static_cast<double>(matrices), 10)
        << model.name;
  }
}

// 6,945,767,424 parameters in the linears of Qwen3-8B's layers at half a byte,
// and 2 x 151936 x 4096 of embedding and head at two: scales do not count.
TEST(ShapeCheckpointTest, TheRuleOfThumbCountsNominalBits) {
  const TemporaryFolder folder;
  folder.Write("config.json", kPublished[0].config);
  folder.Write("quantize_config.json",
               R"({"bits": 4, "group_size": 128, "desc_act": false,
                   "sym": true, "quant_method": "gptq"})");
  const auto checkpoint = OpenShape(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ParseModelConfig(**checkpoint);
  ASSERT_TRUE(config.ok()) << config.status();
  SessionOptions options;
  options.device.device_memory = GiB(24);
  const auto plan = PlanModel(**checkpoint, *config, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NEAR(static_cast<double>(plan->rule_of_thumb.value()),
              1.2 * (6945767424 * 0.5 + 2.0 * 151936 * 4096 * 2), 10);
}

// With the files beside it, the plan is the same.
TEST(ShapeCheckpointTest, IsWhatTheCheckpointHas) {
  for (const char* name :
       {"plain-f32", "plain-f16-attention-bias", "plain-bf16-tied",
        "gptq-w4-no-g-idx", "gptq-w3-sym", "gptq-w8-sym", "gptq-w4-per-channel",
        "gptq-w4-short-group"}) {
    const fs::path real = fs::path(QUIRE_SOURCE_DIR) / "tests/golden" / name;
    const TemporaryFolder folder;
    for (const char* file : {"config.json", "quantize_config.json"}) {
      if (fs::exists(real / file))
        fs::copy_file(real / file, fs::path(folder.path()) / file);
    }
    ModelPlan plans[2];
    for (const bool shape : {false, true}) {
      const auto checkpoint =
          shape ? OpenShape(folder.path()) : Checkpoint::Open(real);
      ASSERT_TRUE(checkpoint.ok()) << name << ": " << checkpoint.status();
      const auto config = ParseModelConfig(**checkpoint);
      ASSERT_TRUE(config.ok()) << config.status();
      SessionOptions options;
      options.device.device_memory = MiB(64);
      options.device.page_size = KiB(64);
      const auto plan = PlanModel(**checkpoint, *config, options);
      ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
      plans[shape ? 1 : 0] = *plan;
    }
    EXPECT_EQ(plans[0].weights, plans[1].weights) << name;
    EXPECT_EQ(plans[0].fixed, plans[1].fixed) << name;
    EXPECT_EQ(plans[0].batches.back().sequences,
              plans[1].batches.back().sequences)
        << name;
  }
}

TEST(ShapeCheckpointTest, FoldersWithWeightsAreNotTakenForShapes) {
  EXPECT_FALSE(HasNoWeights(
      (fs::path(QUIRE_SOURCE_DIR) / "tests/golden/plain-f32").string()));
  const TemporaryFolder folder;
  EXPECT_FALSE(HasNoWeights(folder.path()));
  folder.Write("config.json", "{}");
  EXPECT_TRUE(HasNoWeights(folder.path()));
  folder.Write("model.safetensors.index.json", "{}");
  EXPECT_FALSE(HasNoWeights(folder.path()));
  EXPECT_FALSE(HasNoWeights(folder.File("none")));
}

TEST(ShapeCheckpointTest, WhatAConfigurationDoesNotSayIsAnError) {
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type": "llama"})");
  EXPECT_FALSE(OpenShape(folder.path()).ok());
  folder.Write("config.json",
               R"({"model_type": "llama", "hidden_size": 64,
                   "intermediate_size": 64, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "vocab_size": 10,
                   "torch_dtype": "float8"})");
  EXPECT_THAT(std::string(OpenShape(folder.path()).status().message()),
              HasSubstr("float8"));
}

}  // namespace
}  // namespace quire
