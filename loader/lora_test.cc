#include "quire/loader/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kQuery[] = "model.layers.0.self_attn.q_proj";
constexpr char kUp[] = "model.layers.1.mlp.up_proj";

// A tensor of F32 and its shape.
struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::string dtype = "F32";
};

// An adapter of made-up tensors for a module of 8 inputs and 6 outputs.
class LoraTest : public testing::Test {
 protected:
  static std::vector<Tensor> Pair(const std::string& module,
                                  uint64_t rank = 4) {
    const std::string name = "base_model.model." + module;
    return {{name + ".lora_A.weight", {rank, 8}},
            {name + ".lora_B.weight", {6, rank}}};
  }
  static std::vector<Tensor> Pairs(const std::vector<std::string>& modules) {
    std::vector<Tensor> all;
    for (const std::string& module : modules)
      for (Tensor& tensor : Pair(module)) all.push_back(std::move(tensor));
    return all;
  }

  absl::StatusOr<std::unique_ptr<LoraAdapter>> Open(
      const std::string& fields, const std::vector<Tensor>& tensors) {
    folder_.Write("adapter_config.json",
                  R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6)" +
                      (fields.empty() ? "" : ", " + fields) + "}");
    std::string header = "{";
    uint64_t end = 0;
    for (const Tensor& tensor : tensors) {
      uint64_t size = 4;
      std::string shape;
      for (const uint64_t dimension : tensor.shape) {
        size *= dimension;
        shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
      }
      header += (header.size() == 1 ? "" : ",") +
                Entry(tensor.name, tensor.dtype, "[" + shape + "]",
                      Offsets(end, end + size));
      end += size;
    }
    folder_.Write("adapter_model.safetensors", Safetensors(header + "}", end));
    return LoraAdapter::Open(folder_.path());
  }

  void ExpectError(const std::string& fields,
                   const std::vector<Tensor>& tensors,
                   const std::vector<std::string>& mentions) {
    const auto adapter = Open(fields, tensors);
    ASSERT_FALSE(adapter.ok()) << fields;
    const std::string message(adapter.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& mention : mentions)
      EXPECT_THAT(message, HasSubstr(mention));
  }

  // Of kQuery and kUp, whether the configuration gives them a product.
  std::pair<bool, bool> Targeted(const std::string& fields,
                                 LoraTarget target = LoraTarget::kLinear) {
    const auto adapter = Open(fields, Pairs({kQuery, kUp}));
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    if (!adapter.ok()) return {false, false};
    return {(*adapter)->CheckTarget(kQuery, target).ok(),
            (*adapter)->CheckTarget(kUp, target).ok()};
  }

  TemporaryFolder folder_;
};

TEST_F(LoraTest, ModulesComeInTheOrderOfTheirNames) {
  const auto adapter = Open("", Pairs({kUp, kQuery}));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  std::vector<std::string> names;
  for (const LoraModule& module : (*adapter)->modules())
    names.push_back(module.name);
  EXPECT_THAT(names, ElementsAre(kQuery, kUp));
  const LoraModule* const module = (*adapter)->Find(kQuery);
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->rank, 4u);
  EXPECT_FLOAT_EQ(module->scale, 1.5f);
  EXPECT_THAT(module->a->shape, ElementsAre(4, 8));
  EXPECT_THAT(module->b->shape, ElementsAre(6, 4));
  EXPECT_EQ((*adapter)->Find("model.layers.0"), nullptr);
}

TEST_F(LoraTest, NamesOfAllGenerationsAreUnderstood) {
  const std::string base = "base_model.model.";
  const auto adapter =
      Open(R"("modules_to_save": ["lm_head"], "bias": "all")",
           {{base + kQuery + ".lora_A.default.weight", {4, 8}},
            {base + kQuery + ".lora_B.default.weight", {6, 4}},
            {base + kQuery + ".lora_B.default.bias", {6}},
            {base + kQuery + ".base_layer.weight", {6, 8}},
            {base + kQuery + ".base_layer.bias", {6}},
            {base + kUp + ".bias", {6}},
            {base + "model.embed_tokens.lora_embedding_A", {4, 10}},
            {base + "model.embed_tokens.lora_embedding_B.default", {8, 4}},
            {base + "lm_head.modules_to_save.default.weight", {10, 8}},
            {base + "model.norm.weight", {8}}});
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const LoraModule* const query = (*adapter)->Find(kQuery);
  ASSERT_NE(query, nullptr);
  EXPECT_TRUE(query->a && query->b && query->b_bias && query->weight &&
              query->bias);
  EXPECT_FALSE(query->embedding || query->copied);
  const LoraModule* const embedding = (*adapter)->Find("model.embed_tokens");
  ASSERT_NE(embedding, nullptr);
  EXPECT_TRUE(embedding->a && embedding->b && embedding->embedding);
  EXPECT_TRUE((*adapter)->Find("lm_head")->copied);
  EXPECT_FALSE((*adapter)->Find("model.norm")->copied);
  EXPECT_NE((*adapter)->Find(kUp)->bias, nullptr);
}

TEST_F(LoraTest, ScalesFollowRootsAndPatterns) {
  const auto adapter = Open(
      R"("use_rslora": true,
         "rank_pattern": {"layers\\.1\\..*": 9, "up_proj": 4},
         "alpha_pattern": {"q_proj": 3, ".*proj": 30})",
      [] {
        std::vector<Tensor> tensors = Pair(kQuery, 4);
        for (Tensor& tensor : Pair(kUp, 9)) tensors.push_back(tensor);
        return tensors;
      }());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_FLOAT_EQ((*adapter)->Find(kQuery)->scale, 3 / std::sqrt(4.0f));
  EXPECT_FLOAT_EQ((*adapter)->Find(kUp)->scale, 30 / std::sqrt(9.0f));
}

TEST_F(LoraTest, TargetsAreThoseOfPeft) {
  using Both = std::pair<bool, bool>;
  EXPECT_EQ(Targeted(""), Both(true, true));  // the tensors decide
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj"])"), Both(true, false));
  EXPECT_EQ(Targeted(R"("target_modules": ["proj"])"), Both(false, false));
  EXPECT_EQ(
      Targeted(R"("target_modules": ["self_attn.q_proj", "mlp.up_proj"])"),
      Both(true, true));
  EXPECT_EQ(Targeted(R"("target_modules": "all-linear")"), Both(true, true));
  EXPECT_EQ(
      Targeted(R"("target_modules": "all-linear")", LoraTarget::kOutputHead),
      Both(false, false));
  // A pattern is for the whole name.
  EXPECT_EQ(Targeted(R"("target_modules": ".*\\.(q|up)_proj")"),
            Both(true, true));
  EXPECT_EQ(Targeted(R"("target_modules": "self_attn|.*up_proj")"),
            Both(false, true));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "exclude_modules": ["up_proj"])"),
            Both(true, false));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "exclude_modules": ".*layers.0.*")"),
            Both(false, true));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "modules_to_save": ["mlp"])"),
            Both(true, false));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "layers_to_transform": 1)"),
            Both(false, true));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "layers_to_transform": [10, 0],
                        "layers_pattern": ["h", "layers"])"),
            Both(true, false));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "layers_to_transform": [0, 1],
                        "layers_pattern": "h")"),
            Both(false, false));
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "up_proj"],
                        "layers_to_transform": [1], "layers_pattern": "")"),
            Both(false, true));
  // A whole name is meant, whatever the layers.
  EXPECT_EQ(Targeted(R"("target_modules":
                          ["model.layers.0.self_attn.q_proj", "up_proj"],
                        "layers_to_transform": [1])"),
            Both(true, true));
}

TEST_F(LoraTest, AbsentProductsAreNamed) {
  const auto adapter =
      Open(R"("target_modules": ["q_proj", "v_proj"])", Pair(kQuery));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const absl::Status status = (*adapter)->CheckTarget(
      "model.layers.0.self_attn.v_proj", LoraTarget::kLinear);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("layers.0.self_attn.v_proj.lora_A.weight"));
}

TEST_F(LoraTest, WhatIsNotPlainLoraIsRefusedByName) {
  for (const auto& [field, name] :
       std::vector<std::pair<std::string, std::string>>{
           {R"("use_dora": true)", "DoRA"},
           {R"("use_qalora": true)", "QA-LoRA"},
           {R"("use_something_new": true)", "use_something_new"},
           {R"("layer_replication": [[0, 1]])", "layer_replication"},
           {R"("target_parameters": ["experts.weight"])", "target_parameters"},
           {R"("alora_invocation_tokens": [1])", "aLoRA"},
           {R"("trainable_token_indices": [1])", "trainable_token_indices"},
           {R"("init_lora_weights": "pissa_niter_16")", "pissa_niter_16"},
           {R"("init_lora_weights": "OLoRA")", "OLoRA"}})
    ExpectError(field, Pair(kQuery), {"adapter_config.json", name});
  EXPECT_TRUE(Open(R"("use_dora": false, "alora_invocation_tokens": null,
                      "layer_replication": [], "init_lora_weights": "gaussian")",
                   Pair(kQuery))
                  .ok());
  folder_.Write("adapter_config.json", R"({"peft_type": "IA3"})");
  EXPECT_THAT(std::string(LoraAdapter::Open(folder_.path()).status().message()),
              HasSubstr("IA3"));
}

TEST_F(LoraTest, WrongFieldsAreNamed) {
  ExpectError(R"("bias": "some")", Pair(kQuery), {"bias", "some"});
  ExpectError(R"("r": 0)", Pair(kQuery), {"\"r\"", "0"});
  ExpectError(R"("r": 1000000000000)", Pair(kQuery), {"\"r\""});
  ExpectError(R"("lora_alpha": NaN)", Pair(kQuery), {"adapter_config.json"});
  ExpectError(R"("lora_alpha": "nan")", Pair(kQuery), {"lora_alpha"});
  ExpectError(R"("lora_alpha": 1e300)", Pair(kQuery), {"lora_alpha", "large"});
  ExpectError(R"("rank_pattern": {"(": 4})", Pair(kQuery), {"rank_pattern"});
  ExpectError(R"("rank_pattern": {"q_proj": -1})", Pair(kQuery), {"q_proj"});
  ExpectError(R"("alpha_pattern": {"q_proj": "x"})", Pair(kQuery), {"q_proj"});
  ExpectError(R"("target_modules": "(")", Pair(kQuery), {"target_modules"});
  ExpectError(R"("target_modules": [1])", Pair(kQuery), {"target_modules"});
  ExpectError(R"("target_modules": "(a+)+b", "layers_to_transform": [1])",
              Pair(kQuery), {"layers_to_transform"});
  ExpectError(R"("modules_to_save": ["lm_head"])", Pair(kQuery),
              {"modules_to_save", "lm_head"});
}

TEST_F(LoraTest, APatternThatNeverEndsIsAnError) {
  const std::string module = "model.layers.0." + std::string(40, 'a');
  const auto adapter = Open(R"("target_modules": ".*\\.(a+)+b")", Pair(module));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_FALSE((*adapter)->CheckTarget(module, LoraTarget::kLinear).ok());
}

TEST_F(LoraTest, WrongTensorsAreNamed) {
  const std::string base = std::string("base_model.model.") + kQuery;
  const Tensor a = {base + ".lora_A.weight", {4, 8}};
  const Tensor b = {base + ".lora_B.weight", {6, 4}};
  ExpectError("", {}, {"adapter_model.safetensors", "no tensors"});
  ExpectError("", {a}, {"lora_A.weight", "lora_B"});
  ExpectError("", {b}, {"lora_B.weight", "lora_A"});
  ExpectError("", {{base + ".lora_B.bias", {6}}}, {"lora_B.bias"});
  ExpectError("", {a, {base + ".lora_B.weight", {6, 5}}},
              {"lora_B.weight", "[6, 5]", "[4, 8]"});
  ExpectError("", Pair(kQuery, 5), {"lora_A.weight", "5", "4"});
  ExpectError("", {{base + ".lora_A.weight", {0, 8}}, b}, {"[0, 8]"});
  ExpectError("", {{base + ".lora_A.weight", {32}}, b}, {"[32]"});
  ExpectError("", {{base + ".lora_A.weight", {4, 8}, "I32"}, b}, {"I32"});
  ExpectError("", {a, b, {base + ".lora_A.default.weight", {4, 8}}},
              {"lora_A.default.weight", "lora_A.weight"});
  ExpectError("", {a, b, {base + ".lora_C.weight", {4, 8}}}, {"lora_C.weight"});
  ExpectError("", {a, b, {base + ".lora_magnitude_vector", {6}}},
              {"lora_magnitude_vector", "DoRA"});
  ExpectError("", {a, b, {base + ".weight", {6, 8}}}, {".q_proj.weight"});
  ExpectError("", {a, {base + ".lora_embedding_B", {6, 4}}}, {"embedding"});
  ExpectError("", {{"model.norm.weight", {8}}}, {"model.norm.weight"});
  ExpectError("", {{"base_model.model.weight", {8}}}, {"weight"});
}

TEST_F(LoraTest, AbsentFilesAreNamed) {
  EXPECT_THAT(
      std::string(
          LoraAdapter::Open(folder_.File("nowhere")).status().message()),
      HasSubstr("nowhere"));
  EXPECT_THAT(std::string(LoraAdapter::Open(folder_.path()).status().message()),
              HasSubstr("adapter_config.json"));
  folder_.Write("adapter_config.json", R"({"peft_type": "LORA"})");
  folder_.Write("adapter_model.bin", "pickle");
  EXPECT_THAT(std::string(LoraAdapter::Open(folder_.path()).status().message()),
              HasSubstr("convert it to safetensors"));
}

}  // namespace
}  // namespace quire
