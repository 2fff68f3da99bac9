// What others reported of checkpoints that load and give nonsense, or that
// crash the loader, as tests of the whole chain: the logits are those of
// transformers, of the project's own golden cases and of what is made from them
// here.
//
// Named after the reports: Vllm38966 is
// github.com/vllm-project/vllm/issues/38966.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "loader/tensors_test_util.h"
#include "quire/model/session.h"
#include "tests/golden_cases.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::string ReadBytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CheckpointIssueTest : public testing::Test {
 protected:
  // A copy of a golden case, to be changed.
  void Copy(const std::string& name) {
    fs::copy(fs::path(QUIRE_SOURCE_DIR) / "tests/golden" / name, Model(),
             fs::copy_options::recursive);
  }
  std::string Model() const { return folder_.File("model"); }

  // Sets a field of the quantisation in every file that has one.
  void SetQuantization(const std::string& field, const json& value) {
    json config = json::parse(ReadBytes(Model() + "/config.json"));
    config["quantization_config"][field] = value;
    folder_.Write("model/config.json", config.dump());
    json quantize = json::parse(ReadBytes(Model() + "/quantize_config.json"));
    quantize[field] = value;
    folder_.Write("model/quantize_config.json", quantize.dump());
  }

  Tensors ReadTensors() const {
    const std::string file = ReadBytes(Model() + "/model.safetensors");
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i)
      length = length << 8 | static_cast<unsigned char>(file[i]);
    Tensors tensors;
    const json header = json::parse(file.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
      tensors[name] = {
          entry["dtype"], entry["shape"].get<std::vector<uint64_t>>(),
          file.substr(8 + length + offsets[0], offsets[1] - offsets[0])};
    }
    return tensors;
  }
  void WriteTensors(const Tensors& tensors) {
    folder_.Write("model/model.safetensors", FileOf(tensors));
  }

  // Replaces each byte of the tensors whose names end with `suffix`.
  void ChangeTensors(const std::string& suffix,
                     const std::function<char(char)>& change) {
    Tensors tensors = ReadTensors();
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with(suffix)) continue;
      for (char& byte : tensor.bytes) byte = change(byte);
    }
    WriteTensors(tensors);
  }

  // Expects the logits of the case that was copied, and returns the warnings.
  std::vector<std::string> ExpectGoldenLogits() {
    const GoldenCase golden = ReadGoldenCase(Model());
    SessionOptions options;
    options.device.device_memory = GiB(1);
    options.kv_dtype = KvDType::kF32;
    options.threads = 1;
    const auto session = Session::Open(Model(), options);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return {};
    EXPECT_LE(RelativeError(AllLogits(**session, golden.prompt), golden.logits),
              golden.rtol);
    return (*session)->weights().warnings();
  }

  TemporaryFolder folder_;
};

// A symmetric checkpoint with the zero points of v2 (0x88...) is labelled v1.
TEST_F(CheckpointIssueTest, Vllm38966SymmetricZerosOfV2LabelledV1) {
  Copy("gptq-w4-sym");
  ChangeTensors(".qzeros", [](char byte) {
    EXPECT_EQ(byte, '\x77');
    return '\x88';
  });
  EXPECT_THAT(
      ExpectGoldenLogits(),
      Contains(AllOf(HasSubstr("labelled gptq (v1)"), HasSubstr("q_proj"))));
}

// The other way round.
TEST_F(CheckpointIssueTest, Vllm38966SymmetricZerosOfV1LabelledV2) {
  Copy("gptq-w4-sym");
  SetQuantization("checkpoint_format", "gptq_v2");
  EXPECT_THAT(ExpectGoldenLogits(), Contains(HasSubstr("labelled gptq_v2")));
}

// v2 read as v1: every weight is off by a scale, and the model says "!!!!".
TEST_F(CheckpointIssueTest, Vllm26343ZerosOfV2AreNotThoseOfV1) {
  Copy("gptq-w4-v2");
  ExpectGoldenLogits();
  // Asymmetric zero points do not tell: the label counts.
  SetQuantization("checkpoint_format", "gptq");
  const GoldenCase golden = ReadGoldenCase(Model());
  SessionOptions options;
  options.device.device_memory = GiB(1);
  const auto session = Session::Open(Model(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_GT(RelativeError(AllLogits(**session, golden.prompt), golden.logits),
            10 * golden.rtol);
}

// The same at 2 bits: what v1 stores less one is stored as it is, field by
// field, and nothing is carried into the next one.
TEST_F(CheckpointIssueTest, Vllm37185ZerosOfV2AtTwoBits) {
  Copy("gptq-w2-asym");
  SetQuantization("checkpoint_format", "gptq_v2");
  ChangeTensors(".qzeros", [](char byte) {
    unsigned changed = 0;
    for (int shift = 0; shift < 8; shift += 2)
      changed |= (((static_cast<unsigned char>(byte) >> shift) + 1u) & 3u)
                 << shift;
    return static_cast<char>(changed);
  });
  ExpectGoldenLogits();
}

TEST_F(CheckpointIssueTest, Vllm48810NoGroupIndex) {
  Copy("gptq-w4-no-g-idx");
  ExpectGoldenLogits();
}

// Activation order with a single group: there is nothing to order.
TEST_F(CheckpointIssueTest, AutoGptq292ActivationOrderWithoutGroups) {
  Copy("gptq-w4-per-channel");
  SetQuantization("desc_act", true);
  ExpectGoldenLogits();
}

// 96 inputs in groups of 64.
TEST_F(CheckpointIssueTest, GptqModel328InputsAreNoMultipleOfTheGroup) {
  Copy("gptq-w4-short-group");
  ExpectGoldenLogits();
}

// The head is the embedding: there is no lm_head tensor to look for, quantised
// or not.
TEST_F(CheckpointIssueTest, Sglang2935TiedHeadOfAQuantizedCheckpoint) {
  Copy("gptq-w4-no-g-idx");
  SetQuantization("lm_head", true);
  ExpectGoldenLogits();
}

// The dimension of heads is 24, the hidden size divided by the heads 16.
TEST_F(CheckpointIssueTest,
       Candle2358TensorRtLlm5912HeadDimensionIsAsTheConfigSays) {
  for (const char* const name : {"plain-bf16-tied", "qwen3-gptq"}) {
    fs::remove_all(Model());
    Copy(name);
    ExpectGoldenLogits();
  }
}

// ---- What other readers make of a checkpoint --------------------------------

// A model that was saved without its head has no "model.", one within a model
// of images and text has more before it.
TEST_F(CheckpointIssueTest, NamesMayHaveAnotherPrefix) {
  for (const char* const golden : {"plain-bf16-tied", "gptq-w4-sym"}) {
    for (const std::string prefix :
         {"", "model.language_model.", "language_model.model."}) {
      fs::remove_all(Model());
      Copy(golden);
      Tensors renamed;
      for (const auto& [name, tensor] : ReadTensors()) {
        if (name.starts_with("model.")) {
          renamed[prefix + name.substr(6)] = tensor;
        } else {
          renamed[(prefix == "language_model.model." ? "language_model." : "") +
                  name] = tensor;
        }
      }
      WriteTensors(renamed);
      SCOPED_TRACE(std::string(golden) + " with \"" + prefix + "\"");
      EXPECT_THAT(ExpectGoldenLogits(), Not(Contains(HasSubstr("not used"))));
    }
  }
}

// AutoGPTQ writes a bias of zeros beside every linear; one that is not zero is
// dropped by transformers, where the configuration gives the model none.
TEST_F(CheckpointIssueTest, ABiasThatTheModelHasNotIsToldUnlessItIsZero) {
  Copy("plain-bf16-tied");
  Tensors tensors = ReadTensors();
  Tensor& bias = tensors["model.layers.1.self_attn.o_proj.bias"];
  bias = {"BF16", {48}, std::string(96, '\0')};
  WriteTensors(tensors);
  EXPECT_THAT(ExpectGoldenLogits(), Not(Contains(HasSubstr("bias"))));
  bias.bytes[95] = '\x3F';
  WriteTensors(tensors);
  SessionOptions options;
  options.device.device_memory = GiB(1);
  const auto session = Session::Open(Model(), options);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_THAT((*session)->weights().warnings(),
              Contains(AllOf(HasSubstr("biases that are not 0"),
                             HasSubstr("layers.1.self_attn.o_proj"))));
}

// Readers do not agree on which of the two configurations counts.
TEST_F(CheckpointIssueTest, ConfigurationsThatContradictEachOtherAreTold) {
  Copy("gptq-w4-sym");
  const auto set = [&](int in_config, int in_file) {
    SetQuantization("bits", in_file);
    json config = json::parse(ReadBytes(Model() + "/config.json"));
    config["quantization_config"]["bits"] = in_config;
    folder_.Write("model/config.json", config.dump());
  };
  set(8, 4);
  EXPECT_THAT(ExpectGoldenLogits(),
              Contains(AllOf(HasSubstr("quantize_config.json counts"),
                             HasSubstr("config.json"),
                             HasSubstr("otherwise: bits = 8"))));
  set(4, 8);
  const auto session = Session::Open(Model(), SessionOptions());
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(std::string(session.status().message()),
              AllOf(HasSubstr("bits = 8"),
                    HasSubstr("quantize_config.json, but config.json says "
                              "bits = 4")));
}

}  // namespace
}  // namespace quire
