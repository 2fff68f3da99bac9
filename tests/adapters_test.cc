// Several adapters beside one model: who gets what, in which batch, and where
// the memory goes. That one adapter gives what PEFT gives is golden_test's.

#include "quire/model/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/alloc/leak_report.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/safetensors_writer.h"
#include "quire/model/engine.h"
#include "quire/model/plan.h"
#include "quire/model/session.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// An adapter as it is written to disk. Its values are random, and large enough
// to change what is decoded.
struct WrittenAdapter {
  // Fields of the configuration beside peft_type, r and lora_alpha.
  std::string fields;
  uint64_t rank = 4;
  struct Tensor {
    std::string name;  // after "base_model.model."
    std::vector<uint64_t> shape;
  };
  std::vector<Tensor> tensors;
  float first_value = 0.5;  // of the first tensor

  void AddProduct(const std::string& module, uint64_t outputs,
                  uint64_t inputs) {
    tensors.push_back({module + ".lora_A.weight", {rank, inputs}});
    tensors.push_back({module + ".lora_B.weight", {outputs, rank}});
  }
};

class AdaptersTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = fs::path(QUIRE_SOURCE_DIR) / "tests/golden/plain-f32";
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            (std::string("quire_adapters_") + test->name());
    fs::remove_all(root_);
    options_.device.device_memory = GiB(1);
    options_.kv_dtype = KvDType::kF32;
    options_.threads = 2;
    const auto checkpoint = Checkpoint::Open(model_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto config = ParseModelConfig(**checkpoint);
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *config;
  }
  void TearDown() override { fs::remove_all(root_); }

  // Each changes another part of the model, at another rank.
  WrittenAdapter Attention() const {
    WrittenAdapter adapter;
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      adapter.AddProduct(layer + "self_attn.q_proj", config_.query_size(),
                         config_.hidden_size);
      adapter.AddProduct(layer + "self_attn.o_proj", config_.hidden_size,
                         config_.query_size());
    }
    return adapter;
  }
  WrittenAdapter Ffn() const {
    WrittenAdapter adapter = {.rank = 33};
    adapter.AddProduct("model.layers.1.mlp.down_proj", config_.hidden_size,
                       config_.intermediate_size);
    adapter.tensors.push_back(
        {"model.layers.0.input_layernorm.weight", {config_.hidden_size}});
    adapter.fields = R"("modules_to_save": ["layers.0.input_layernorm"])";
    return adapter;
  }
  WrittenAdapter Vocabulary() const {
    WrittenAdapter adapter = {.rank = 3};
    adapter.AddProduct("lm_head", config_.vocab_size, config_.hidden_size);
    adapter.tensors.push_back({"model.embed_tokens.weight",
                               {config_.vocab_size, config_.hidden_size}});
    adapter.tensors.push_back(
        {"lm_head.base_layer.bias", {config_.vocab_size}});
    adapter.fields = R"("modules_to_save": ["embed_tokens"], "bias": "all")";
    return adapter;
  }

  std::string Write(const std::string& name, const WrittenAdapter& adapter) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    std::ofstream(folder / "adapter_config.json")
        << R"({"peft_type": "LORA", "lora_alpha": 4, "r": )" << adapter.rank
        << (adapter.fields.empty() ? "" : ", ") << adapter.fields << "}";
    std::vector<SafetensorsEntry> entries;
    for (const auto& [tensor, shape] : adapter.tensors)
      entries.push_back({"base_model.model." + tensor, DType::kF32, shape});
    const auto writer = SafetensorsWriter::Create(
        folder / "adapter_model.safetensors", entries, {});
    EXPECT_TRUE(writer.ok()) << writer.status();
    std::mt19937 random(std::hash<std::string>()(name));
    std::normal_distribution<float> normal;
    for (const SafetensorsEntry& entry : entries) {
      uint64_t elements = 1;
      for (const uint64_t dimension : entry.shape) elements *= dimension;
      std::vector<float> values(elements);
      for (float& value : values) value = normal(random);
      if (&entry == &entries.front()) values.front() = adapter.first_value;
      EXPECT_TRUE(
          (*writer)->Append(entry.name, std::as_bytes(std::span(values))).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return folder;
  }

  std::unique_ptr<Session> Open() {
    auto session = Session::Open(model_, options_);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  static AdapterId Load(Session& session, const std::string& folder) {
    const auto id =
        session.adapters().Load(fs::path(folder).filename(), folder);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(AdapterId());
  }

  std::vector<TokenId> Prompt(size_t seed, size_t length) const {
    std::vector<TokenId> prompt;
    for (size_t t = 0; t < length; ++t)
      prompt.push_back(
          static_cast<TokenId>((seed * 37 + t * 101 + 3) % config_.vocab_size));
    return prompt;
  }

  static size_t Add(Engine* engine, std::vector<TokenId> prompt,
                    AdapterId adapter) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_new_tokens = 16;
    request.adapter = adapter;
    const auto index = engine->Add(std::move(request));
    EXPECT_TRUE(index.ok()) << index.status();
    return index.value_or(0);
  }

  // In a session of its own.
  std::vector<TokenId> Alone(const std::vector<TokenId>& prompt,
                             const std::string& folder) {
    const auto session = Open();
    Engine engine(&session->decoder(), &session->cache(), 1,
                  &session->adapters());
    Add(&engine, prompt, folder.empty() ? AdapterId() : Load(*session, folder));
    EXPECT_TRUE(engine.RunToCompletion().ok());
    return engine.completions()[0].tokens;
  }

  void ExpectRefused(const std::string& name, const WrittenAdapter& adapter,
                     const std::vector<std::string>& mentions) {
    const auto session = Open();
    const uint64_t before =
        session->runtime().allocator()->GetStatistics().requested_bytes;
    const auto id = session->adapters().Load(name, Write(name, adapter));
    ASSERT_FALSE(id.ok()) << name;
    const std::string message(id.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& mention : mentions)
      EXPECT_THAT(message, HasSubstr(mention));
    EXPECT_TRUE(session->adapters().List().empty());
    EXPECT_EQ(session->runtime().allocator()->GetStatistics().requested_bytes,
              before);
  }

  fs::path model_;
  fs::path root_;
  ModelConfig config_;
  SessionOptions options_;
};

// The example of docs/adapters.md.
absl::StatusOr<std::vector<TokenId>> Recite(Session* session,
                                            const std::string& folder,
                                            std::vector<TokenId> prompt) {
  QUIRE_ASSIGN_OR_RETURN(const AdapterId poet,
                         session->adapters().Load("poet", folder));
  Engine engine(&session->decoder(), &session->cache(), 64,
                &session->adapters());
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = 16;
  request.adapter = poet;
  QUIRE_RETURN_IF_ERROR(engine.Add(std::move(request)).status());
  QUIRE_RETURN_IF_ERROR(engine.RunToCompletion());
  QUIRE_RETURN_IF_ERROR(session->adapters().Unload(poet));
  return engine.completions()[0].tokens;
}
// The end of the example.

TEST_F(AdaptersTest, TheExampleRuns) {
  const std::string folder = Write("ffn", Ffn());
  const auto session = Open();
  const auto tokens = Recite(session.get(), folder, Prompt(3, 20));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, Alone(Prompt(3, 20), folder));
  EXPECT_TRUE(session->adapters().List().empty());
}

TEST_F(AdaptersTest, SequencesOfOneBatchGetWhatEachGetsAlone) {
  const std::vector<std::string> folders = {"", Write("attention", Attention()),
                                            Write("ffn", Ffn()),
                                            Write("vocabulary", Vocabulary())};
  std::vector<std::vector<TokenId>> expected;
  for (size_t i = 0; i < 9; ++i)
    expected.push_back(Alone(Prompt(i, 3 + 5 * i), folders[i % 4]));
  // The adapters make a difference, so a mixture of them would show.
  for (size_t i = 1; i < 4; ++i)
    EXPECT_NE(Alone(Prompt(i, 3 + 5 * i), ""), expected[i]) << folders[i];
  for (const uint32_t batch_tokens : {256u, 7u}) {
    options_.decoder.max_batch_tokens = batch_tokens;
    const auto session = Open();
    std::vector<AdapterId> ids = {AdapterId()};
    for (size_t i = 1; i < folders.size(); ++i)
      ids.push_back(Load(*session, folders[i]));
    Engine engine(&session->decoder(), &session->cache(), 64,
                  &session->adapters());
    for (size_t i = 0; i < expected.size(); ++i)
      Add(&engine, Prompt(i, 3 + 5 * i), ids[i % 4]);
    ASSERT_TRUE(engine.RunToCompletion().ok());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(engine.completions()[i].tokens, expected[i]) << i;
  }
}

TEST_F(AdaptersTest, TheModelMayBeElsewhere) {
  const std::string attention = Write("attention", Attention());
  const std::string vocabulary = Write("vocabulary", Vocabulary());
  const std::vector<std::vector<TokenId>> expected = {
      Alone(Prompt(1, 20), attention), Alone(Prompt(2, 9), vocabulary),
      Alone(Prompt(3, 4), "")};
  for (const char* map :
       {R"({"": "cpu"})",
        R"({"model.embed_tokens": 0, "model.layers.0": 0, "model.norm": 0,
              "lm_head": 0, "model.layers.1": "disk"})"}) {
    const fs::path file = root_ / "map.json";
    std::ofstream(file) << map;
    options_.placement.device_map = file;
    options_.placement.offload.folder = root_;
    const auto session = Open();
    ASSERT_NE(session, nullptr) << map;
    Engine engine(&session->decoder(), &session->cache(), 4,
                  &session->adapters());
    Add(&engine, Prompt(1, 20), Load(*session, attention));
    Add(&engine, Prompt(2, 9), Load(*session, vocabulary));
    Add(&engine, Prompt(3, 4), AdapterId());
    ASSERT_TRUE(engine.RunToCompletion().ok()) << map;
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(engine.completions()[i].tokens, expected[i]) << map << i;
  }
}

TEST_F(AdaptersTest, RowsAreSharedWithinAnAdapterOnly) {
  const std::string attention = Write("attention", Attention());
  const std::string ffn = Write("ffn", Ffn());
  const std::vector<TokenId> prompt = Prompt(1, 100);
  const auto session = Open();
  const std::vector<AdapterId> ids = {AdapterId(), Load(*session, attention),
                                      Load(*session, ffn)};
  const std::vector<std::vector<TokenId>> expected = {
      Alone(prompt, ""), Alone(prompt, attention), Alone(prompt, ffn)};
  Engine engine(&session->decoder(), &session->cache(), 1,
                &session->adapters());
  for (size_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint64_t cached = engine.statistics().cached_prompt_tokens;
      const size_t index = Add(&engine, prompt, ids[i]);
      ASSERT_TRUE(engine.RunToCompletion().ok());
      EXPECT_EQ(engine.completions()[index].tokens, expected[i]);
      const uint64_t found = engine.statistics().cached_prompt_tokens - cached;
      if (round == 0)
        EXPECT_EQ(found, 0u) << i;
      else
        EXPECT_GT(found, 0u) << i;
    }
  }
}

// What stands for the adapter must not hide the first token.
TEST_F(AdaptersTest, PromptsThatDifferInTheirFirstTokenShareNothing) {
  const std::string attention = Write("attention", Attention());
  std::vector<TokenId> prompt = Prompt(1, 100);
  std::vector<TokenId> other = prompt;
  other.front() =
      (prompt.front() + 1) % static_cast<TokenId>(config_.vocab_size);
  const std::vector<std::vector<TokenId>> prompts = {prompt, other};
  const std::vector<std::vector<TokenId>> expected = {Alone(prompt, attention),
                                                      Alone(other, attention)};
  const auto session = Open();
  const AdapterId id = Load(*session, attention);
  Engine engine(&session->decoder(), &session->cache(), 1,
                &session->adapters());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const size_t index = Add(&engine, prompts[i], id);
    ASSERT_TRUE(engine.RunToCompletion().ok());
    EXPECT_EQ(engine.completions()[index].tokens, expected[i]);
  }
  EXPECT_EQ(engine.statistics().cached_prompt_tokens, 0u);
}

TEST_F(AdaptersTest, MemoryIsAnOwnersAndGoesBack) {
  const std::string folder = Write("ffn", Ffn());
  const auto session = Open();
  AdapterSet& adapters = session->adapters();
  const auto requested = [&] {
    return session->runtime().allocator()->GetStatistics().requested_bytes;
  };
  const auto held = [&] {
    uint64_t bytes = 0;
    for (const LeakReport& report : FindLeaks(session->runtime()))
      if (report.owner == "adapters/ffn") bytes += report.requested.value();
    return bytes;
  };
  const uint64_t before = requested();
  EXPECT_EQ(held(), 0u);
  const AdapterId id = Load(*session, folder);
  ASSERT_EQ(adapters.List().size(), 1u);
  const AdapterInfo info = adapters.List()[0];
  EXPECT_EQ(info.id, id);
  EXPECT_EQ(info.name, "ffn");
  EXPECT_EQ(info.folder, folder);
  EXPECT_EQ(info.rank, 33u);
  EXPECT_EQ(info.modules, 2u);
  EXPECT_EQ(held(), info.bytes.value());
  EXPECT_EQ(requested(), before + info.bytes.value());
  EXPECT_GE(info.bytes,
            Bytes(4 * (33 * (config_.hidden_size + config_.intermediate_size) +
                       config_.hidden_size)));
  EXPECT_TRUE(absl::IsAlreadyExists(adapters.Load("ffn", folder).status()));
  ASSERT_TRUE(adapters.Unload(id).ok());
  EXPECT_EQ(requested(), before);
  EXPECT_EQ(held(), 0u);
  EXPECT_TRUE(absl::IsNotFound(adapters.Unload(id)));
  EXPECT_TRUE(absl::IsNotFound(adapters.Find("ffn").status()));
  // A new load is another adapter.
  EXPECT_NE(Load(*session, folder), id);
}

TEST_F(AdaptersTest, AnAdapterInUseStays) {
  const auto session = Open();
  AdapterSet& adapters = session->adapters();
  const AdapterId id = Load(*session, Write("attention", Attention()));
  Engine engine(&session->decoder(), &session->cache(), 4, &adapters);
  Add(&engine, Prompt(1, 8), id);
  Add(&engine, Prompt(2, 8), id);
  ASSERT_TRUE(engine.Step().ok());
  EXPECT_TRUE(adapters.List()[0].in_use);
  const absl::Status refused = adapters.Unload(id);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("attention"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 sequence"));
  // Others come and go meanwhile.
  const AdapterId other = Load(*session, Write("ffn", Ffn()));
  ASSERT_TRUE(engine.Step().ok());
  EXPECT_TRUE(adapters.Unload(other).ok());
  ASSERT_TRUE(engine.RunToCompletion().ok());
  EXPECT_TRUE(adapters.Unload(id).ok());
  Request request;
  request.prompt = {1};
  request.max_new_tokens = 1;
  request.adapter = id;
  EXPECT_TRUE(absl::IsNotFound(engine.Add(request).status()));
  Engine without(&session->decoder(), &session->cache(), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(without.Add(request).status()));
}

TEST_F(AdaptersTest, AdaptersOfOtherModelsAreRefused) {
  WrittenAdapter adapter = Attention();
  adapter.tensors[1].shape[0] += 1;
  ExpectRefused("outputs", adapter,
                {"layers.0.self_attn.q_proj.lora_B.weight", "the model says"});
  adapter = Attention();
  adapter.tensors[0].shape[1] *= 2;
  ExpectRefused("inputs", adapter,
                {"layers.0.self_attn.q_proj.lora_A.weight", "the model says"});
  adapter = Attention();
  adapter.AddProduct("model.layers.2.self_attn.q_proj", config_.query_size(),
                     config_.hidden_size);
  ExpectRefused("layer", adapter, {"layers.2", "of 2 layers"});
  adapter = Attention();
  adapter.AddProduct("model.layers.0.input_layernorm", config_.hidden_size, 1);
  ExpectRefused("norm", adapter, {"input_layernorm", "no linear"});
  adapter = Attention();
  adapter.AddProduct("model.embed_tokens", config_.hidden_size,
                     config_.vocab_size);
  ExpectRefused("embedding", adapter, {"embed_tokens", "embedding"});
  adapter = Ffn();
  adapter.tensors.back().shape = {config_.hidden_size + 1};
  ExpectRefused("saved", adapter, {"input_layernorm.weight"});
}

TEST_F(AdaptersTest, WhatTheConfigurationAsksForMustBeThere) {
  WrittenAdapter adapter = Attention();
  adapter.fields = R"("target_modules": ["q_proj", "o_proj", "v_proj"])";
  ExpectRefused("absent", adapter, {"layers.0.self_attn.v_proj"});
  adapter.fields = R"("target_modules": ["q_proj"])";
  ExpectRefused("unasked", adapter, {"o_proj", "target_modules"});
  adapter.fields = R"("target_modules": "all-linear")";
  ExpectRefused("all", adapter, {"layers.0.mlp.down_proj"});
}

TEST_F(AdaptersTest, ElementsThatAreNotFiniteAreRefused) {
  WrittenAdapter adapter = Attention();
  adapter.first_value = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused("nan", adapter, {"q_proj.lora_A.weight", "not finite"});
}

TEST_F(AdaptersTest, NamesHaveNoSlashes) {
  const std::string folder = Write("attention", Attention());
  const auto session = Open();
  for (const char* name : {"", "a/b"})
    EXPECT_TRUE(absl::IsInvalidArgument(
        session->adapters().Load(name, folder).status()))
        << name;
}

TEST_F(AdaptersTest, AFullDeviceLeavesTheOthersAsTheyAre) {
  const std::string folder = Write("attention", Attention());
  options_.device.page_size = KiB(64);
  Bytes needed;
  {
    const auto session = Open();
    Load(*session, folder);
    needed = session->runtime().memory()->GetStatistics().in_use;
  }
  options_.device.memory_utilization = 1;
  options_.device.device_memory = needed;
  const auto session = Open();
  const AdapterId id = Load(*session, folder);
  WrittenAdapter large = {.rank = 2048};
  large.AddProduct("model.layers.0.mlp.up_proj", config_.intermediate_size,
                   config_.hidden_size);
  const auto refused = session->adapters().Load("large", Write("large", large));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  ASSERT_EQ(session->adapters().List().size(), 1u);
  EXPECT_EQ(session->adapters().List()[0].id, id);
}

TEST_F(AdaptersTest, ASessionTakesWhatWasPlanned) {
  options_.device.page_size = KiB(64);
  options_.adapters = {{"attention", Write("attention", Attention())},
                       {"ffn", Write("ffn", Ffn())}};
  const auto checkpoint = Checkpoint::Open(model_);
  ASSERT_TRUE(checkpoint.ok());
  const auto plan = PlanModel(**checkpoint, config_, options_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto session = Open();
  const AllocatorStatistics taken =
      session->runtime().allocator()->GetStatistics();
  EXPECT_EQ(plan->fixed, Bytes(taken.mapped_bytes));
  const std::vector<AdapterInfo> resident = session->adapters().List();
  ASSERT_EQ(plan->adapters.size(), resident.size());
  for (size_t i = 0; i < resident.size(); ++i) {
    EXPECT_EQ(plan->adapters[i].name, resident[i].name);
    EXPECT_EQ(plan->adapters[i].size, resident[i].bytes);
  }
}

}  // namespace
}  // namespace quire
