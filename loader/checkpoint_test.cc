#include "quire/loader/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "quire/loader/tensor_pieces.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// One-byte tensors with these names.
std::string Shard(const std::vector<std::string>& names) {
  std::string header = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) header += ",";
    header += Entry(names[i], "U8", "[1]", Offsets(i, i + 1));
  }
  header += "}";
  return Safetensors(header, names.size());
}

std::string Index(const std::map<std::string, std::string>& weight_map) {
  nlohmann::json index;
  index["metadata"]["total_size"] = weight_map.size();
  index["weight_map"] = weight_map;
  return index.dump();
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    folder_.Write("config.json", "{\"model_type\":\"llama\"}");
  }

  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& name = "") {
    return Checkpoint::Open(name.empty() ? folder_.path() : folder_.File(name));
  }
  // Of a checkpoint that must open.
  std::unique_ptr<Checkpoint> Opened(const std::string& name = "") {
    auto checkpoint = Open(name);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  std::string Error(const std::string& name = "") {
    const auto checkpoint = Open(name);
    const std::string message(checkpoint.status().message());
    EXPECT_FALSE(checkpoint.ok());
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
  static std::vector<std::string> Names(const Checkpoint& checkpoint) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : checkpoint.tensors())
      names.push_back(tensor.name);
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, OpensAFolderWithOneFile) {
  folder_.Write("model.safetensors", Shard({"b", "a"}));
  folder_.Write("generation_config.json", "{\"eos_token_id\":[1,2]}");
  const auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), CheckpointFormat::kSafetensors);
  EXPECT_EQ(checkpoint->folder(), folder_.path());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("b", "a"));
  EXPECT_EQ(checkpoint->total_size(), Bytes(2));
  EXPECT_EQ(checkpoint->config()["model_type"], "llama");
  EXPECT_EQ(checkpoint->generation_config()["eos_token_id"][1], 2);
  EXPECT_EQ(checkpoint->quantization_config(), nlohmann::json::object());
  EXPECT_EQ(checkpoint->gguf_metadata(), nlohmann::json::object());
  EXPECT_THAT(checkpoint->warnings(), IsEmpty());
  EXPECT_EQ(checkpoint->Find("a"), &checkpoint->tensors()[1]);
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
  EXPECT_EQ(checkpoint->Find(""), nullptr);
}

TEST_F(CheckpointTest, OpensASingleFileWithOrWithoutAConfigBesideIt) {
  folder_.Write("any name.safetensors", Shard({"a"}));
  folder_.Write("other.safetensors", Shard({"a"}));
  const auto with = Opened("any name.safetensors");
  ASSERT_NE(with, nullptr);
  EXPECT_EQ(with->config()["model_type"], "llama");
  EXPECT_EQ(with->files().size(), 1u);
  std::filesystem::remove(folder_.File("config.json"));
  EXPECT_EQ(Opened("other.safetensors")->config(), nlohmann::json::object());
}

TEST_F(CheckpointTest, RefusesWhatIsNoCheckpoint) {
  EXPECT_THAT(Error("absent"), HasSubstr("absent"));
  EXPECT_TRUE(absl::IsNotFound(Open("absent").status()));
  EXPECT_THAT(Error("config.json"), HasSubstr("neither a folder nor"));
  folder_.Write("no.gguf", "something else");
  EXPECT_THAT(Error("no.gguf"), HasSubstr("does not begin with \"GGUF\""));
  ASSERT_EQ(mkfifo(folder_.File("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(Error("pipe.safetensors"), HasSubstr("not a regular file"));
}

TEST_F(CheckpointTest, AFolderWithoutWeightsSaysWhatItHolds) {
  EXPECT_THAT(Error(), HasSubstr("no model.safetensors"));
  folder_.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Error(),
              HasSubstr("pytorch_model.bin is of a format that is not"));
  folder_.Write("adapter_model.safetensors", Shard({"a"}));
  EXPECT_THAT(Error(), HasSubstr("--adapter"));
  folder_.Write("m.gguf", "x");
  EXPECT_THAT(Error(), HasSubstr("for m.gguf give the file itself"));
  std::filesystem::create_directory(folder_.File("model.safetensors"));
  EXPECT_THAT(Error(), HasSubstr("no model.safetensors"));
}

TEST_F(CheckpointTest, AFolderNeedsItsConfig) {
  folder_.Write("model.safetensors", Shard({"a"}));
  std::filesystem::remove(folder_.File("config.json"));
  EXPECT_THAT(Error(), HasSubstr("config.json"));
  folder_.Write("config.json", "[1]");
  EXPECT_THAT(Error(), HasSubstr("config.json: the file does not hold"));
  folder_.Write("config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("config.json: byte 1"));
  folder_.Write("config.json", "{}");
  folder_.Write("generation_config.json", "x");
  EXPECT_THAT(Error(), HasSubstr("generation_config.json: byte 0"));
}

TEST_F(CheckpointTest, RepeatedFieldsInAConfigAreAWarning) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write("config.json", "{\"a\":1,\"a\":2}");
  EXPECT_THAT(Opened()->warnings(),
              ElementsAre(HasSubstr("\"a\" occurs twice")));
}

TEST_F(CheckpointTest, QuantizationConfigsAreTakenInOrder) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write(
      "config.json",
      R"({"quantization_config":{"bits":2,"dynamic":{"z":{},"a":{}}}})");
  auto checkpoint = Opened();
  EXPECT_EQ(checkpoint->quantization_config()["bits"], 2);
  EXPECT_EQ(checkpoint->quantization_config_path(),
            folder_.File("config.json"));
  EXPECT_THAT(checkpoint->dynamic_patterns(), ElementsAre("z", "a"));
  folder_.Write("quant_config.json", R"({"bits":3,"dynamic":{"y":{},"b":{}}})");
  checkpoint = Opened();
  EXPECT_EQ(checkpoint->quantization_config()["bits"], 3);
  EXPECT_THAT(checkpoint->dynamic_patterns(), ElementsAre("y", "b"));
  folder_.Write("quantize_config.json", R"({"bits":8})");
  checkpoint = Opened();
  EXPECT_EQ(checkpoint->quantization_config()["bits"], 8);
  EXPECT_EQ(checkpoint->quantization_config_path(),
            folder_.File("quantize_config.json"));
  EXPECT_THAT(checkpoint->dynamic_patterns(), IsEmpty());
}

TEST_F(CheckpointTest, AFolderOfGgufFilesIsToldHowToGiveThem) {
  std::filesystem::remove(folder_.File("config.json"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("config.json: there is no such file"),
                             Not(HasSubstr("GGUF"))));
  folder_.Write("b.gguf", "GGUF");
  folder_.Write("a.gguf", "GGUF");
  EXPECT_THAT(Error(), HasSubstr("by its own path: " + folder_.File("a.gguf")));
}

TEST_F(CheckpointTest, AQuantizationConfigMustBeAnObject) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write("config.json", R"({"quantization_config":[1]})");
  EXPECT_THAT(Error(), HasSubstr("\"quantization_config\" is not an object"));
  folder_.Write("config.json", R"({"quantization_config":null})");
  EXPECT_THAT(Opened()->quantization_config_path(), IsEmpty());
}

// ---- Shards -----------------------------------------------------------------

TEST_F(CheckpointTest, ShardsAreReadInTheOrderOfTheirNames) {
  folder_.Write("model-00002-of-00002.safetensors", Shard({"a"}));
  folder_.Write("model-00001-of-00002.safetensors", Shard({"c", "b"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "model-00002-of-00002.safetensors"},
                       {"b", "model-00001-of-00002.safetensors"},
                       {"c", "model-00001-of-00002.safetensors"}}));
  const auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(Names(*checkpoint), ElementsAre("c", "b", "a"));
  EXPECT_EQ(checkpoint->files()[checkpoint->Find("a")->file].path,
            folder_.File("model-00002-of-00002.safetensors"));
  EXPECT_THAT(checkpoint->warnings(), IsEmpty());
}

TEST_F(CheckpointTest, AnAbsentShardIsNamed) {
  folder_.Write("one.safetensors", Shard({"a"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  EXPECT_THAT(Error(), HasSubstr("1 of 2 shards are absent: two.safetensors"));
}

TEST_F(CheckpointTest, AShardWithoutItsTensorIsNamed) {
  folder_.Write("one.safetensors", Shard({"a"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "one.safetensors"}, {"b", "one.safetensors"}}));
  EXPECT_THAT(Error(), HasSubstr("one.safetensors: tensor \"b\" is not in this "
                                 "file"));
}

TEST_F(CheckpointTest, TensorsComeOnlyFromTheShardThatTheIndexNames) {
  folder_.Write("one.safetensors", Shard({"a", "stray"}));
  folder_.Write("two.safetensors", Shard({"a", "b"}));
  folder_.Write("three.safetensors", Shard({"a"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "two.safetensors"},
                       {"b", "two.safetensors"},
                       {"stray", "one.safetensors"}}));
  auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->files()[checkpoint->Find("a")->file].path,
            folder_.File("two.safetensors"));
  EXPECT_THAT(checkpoint->warnings(),
              ElementsAre(HasSubstr("three.safetensors"),
                          HasSubstr("mapped to another shard")));
}

TEST_F(CheckpointTest, UnlistedTensorsAreLeftOutWithAWarning) {
  folder_.Write("one.safetensors", Shard({"a", "x", "y"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "one.safetensors"}}));
  const auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a"));
  EXPECT_EQ(checkpoint->Find("x"), nullptr);
  EXPECT_THAT(checkpoint->warnings(),
              ElementsAre(HasSubstr("2 tensors are not listed")));
}

TEST_F(CheckpointTest, AWrongTotalSizeIsAWarning) {
  folder_.Write("one.safetensors", Shard({"a"}));
  folder_.Write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":99},"weight_map":{"a":"one.safetensors"}})");
  EXPECT_THAT(Opened()->warnings(), ElementsAre(HasSubstr("total_size is 99")));
}

TEST_F(CheckpointTest, AStaleIndexBesideASingleFileIsAWarning) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write("model.safetensors.index.json",
                Index({{"b", "model-00001-of-00002.safetensors"}}));
  const auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a"));
  EXPECT_THAT(checkpoint->warnings(), ElementsAre(HasSubstr("stale")));
}

TEST_F(CheckpointTest, ShardNamesMustStayInTheFolder) {
  folder_.Write("one.safetensors", Shard({"a"}));
  for (const std::string name :
       {"../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors",
        "..", ".", "", "sub\\\\one.safetensors", "C:one.safetensors",
        ".hidden.safetensors", "one.safetensors\\u0000", "one.bin",
        "./one.safetensors"}) {
    folder_.Write("model.safetensors.index.json",
                  "{\"weight_map\":{\"a\":\"" + name + "\"}}");
    EXPECT_THAT(Error(),
                HasSubstr("index.json: weight_map: the shard of tensor "
                          "\"a\""))
        << name;
  }
}

TEST_F(CheckpointTest, RefusesIndexesOfTheWrongForm) {
  folder_.Write("one.safetensors", Shard({"a"}));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "byte 0: no valid JSON"},
      {"[]", "does not hold a JSON object"},
      {"1", "does not hold a JSON object"},
      {"{}", "no \"weight_map\""},
      {"{\"metadata\":{\"weight_map\":{\"a\":\"one.safetensors\"}}}",
       "no \"weight_map\""},
      {"{\"weight_map\":{}}", "\"weight_map\" is empty"},
      {"{\"weight_map\":[]}", "\"weight_map\" is an array"},
      {"{\"weight_map\":null}", "\"weight_map\" is null"},
      {"{\"weight_map\":{\"a\":1}}", "is a number"},
      {"{\"weight_map\":{\"a\":{}}}", "is an object"},
      {"{\"weight_map\":{\"a\":[]}}", "is an array"},
      {"{\"weight_map\":{},\"weight_map\":{}}", "\"weight_map\" occurs twice"},
      {"{\"weight_map\":{\"a\":\"one.safetensors\",\"\\u0061\":"
       "\"one.safetensors\"}}",
       "tensor \"a\" occurs twice"},
      {"{\"x\":" + std::string(200, '[') + std::string(200, ']') + "}",
       "nested deeper"},
      {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
  };
  for (const auto& [text, message] : cases) {
    folder_.Write("model.safetensors.index.json", text);
    EXPECT_THAT(Error(), HasSubstr(message)) << text;
  }
}

TEST_F(CheckpointTest, TheNumberOfShardsIsLimited) {
  std::map<std::string, std::string> weight_map;
  for (int i = 0; i <= 10'000; ++i)
    weight_map[std::to_string(i)] = std::to_string(i) + ".safetensors";
  folder_.Write("model.safetensors.index.json", Index(weight_map));
  EXPECT_THAT(Error(), HasSubstr("more than 10000 different shards"));
}

TEST_F(CheckpointTest, WhatAnIndexSaysBesidesTheMapIsSkipped) {
  folder_.Write("one.safetensors", Shard({"a"}));
  folder_.Write("model.safetensors.index.json",
                R"({"x":[1,{"weight_map":2}],"metadata":{"total_size":1.0,
                    "y":[[]]},"weight_map":{"a":"one.safetensors"},"z":null})");
  EXPECT_THAT(Opened()->warnings(), IsEmpty());
}

TEST_F(CheckpointTest, FilesWithoutAnIndexAreReadTogether) {
  folder_.Write("x-00001-of-00002.safetensors", Shard({"a"}));
  folder_.Write("x-00002-of-00002.safetensors", Shard({"b"}));
  EXPECT_THAT(Names(*Opened()), ElementsAre("a", "b"));
}

TEST_F(CheckpointTest, DuplicatesAcrossFilesWithoutAnIndexAreAnError) {
  folder_.Write("x.safetensors", Shard({"a"}));
  folder_.Write("y.safetensors", Shard({"b", "a"}));
  EXPECT_THAT(Error(), HasSubstr("y.safetensors: tensor \"a\" is also in "));
}

TEST_F(CheckpointTest, AnAbsentSiblingIsFoundWithoutAnIndex) {
  folder_.Write("model-00001-of-00003.safetensors", Shard({"a"}));
  folder_.Write("model-00003-of-00003.safetensors", Shard({"b"}));
  EXPECT_THAT(Error(), HasSubstr("model-00002-of-00003.safetensors is absent"));
}

TEST_F(CheckpointTest, FilesBesideASingleModelAreAWarning) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write("consolidated.safetensors", Shard({"b"}));
  const auto checkpoint = Opened();
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a"));
  EXPECT_THAT(checkpoint->warnings(),
              ElementsAre(HasSubstr("consolidated.safetensors")));
}

TEST_F(CheckpointTest, AutoGptqsNamesComeBeforeModel) {
  folder_.Write("model.safetensors", Shard({"a"}));
  folder_.Write("gptq_model-4bit-128g.safetensors", Shard({"q"}));
  EXPECT_THAT(Names(*Opened()), ElementsAre("q"));
  folder_.Write("gptq_model-8bit-32g.safetensors", Shard({"q"}));
  EXPECT_THAT(Error(), HasSubstr("several quantised models"));
}

TEST_F(CheckpointTest, AutoGptqsNamesMayBeSharded) {
  const std::string shard = "gptq_model-4bit-128g-00001-of-00001.safetensors";
  folder_.Write(shard, Shard({"q"}));
  folder_.Write("gptq_model-4bit-128g.safetensors.index.json",
                Index({{"q", shard}}));
  const auto checkpoint = Opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(Names(*checkpoint), ElementsAre("q"));
  EXPECT_THAT(checkpoint->warnings(), IsEmpty());
}

TEST_F(CheckpointTest, LinksAreFollowed) {
  const std::string blob = folder_.Write("blob", Shard({"a"}));
  std::filesystem::create_symlink(blob, folder_.File("model.safetensors"));
  EXPECT_THAT(Names(*Opened()), ElementsAre("a"));
}

TEST_F(CheckpointTest, ATruncatedLastShardIsNamed) {
  folder_.Write("one.safetensors", Shard({"a"}));
  const std::string whole = Shard({"b", "c"});
  folder_.Write("two.safetensors", whole.substr(0, whole.size() - 1));
  folder_.Write("model.safetensors.index.json",
                Index({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  EXPECT_THAT(Error(), HasSubstr("two.safetensors: the tensors end"));
}

// ---- Reading ----------------------------------------------------------------

TEST_F(CheckpointTest, ReadsASmallTensorWhole) {
  std::string file = Safetensors(Header(Entry("a", "U8", "[2]", "[0,2]"),
                                        Entry("b", "U8", "[3]", "[2,5]")));
  folder_.Write("model.safetensors", file.append("\1\2\3\4\5"));
  const auto checkpoint = Opened();
  std::vector<std::byte> bytes(9);
  ASSERT_TRUE(checkpoint->ReadSmallTensor(*checkpoint->Find("b"), &bytes).ok());
  EXPECT_THAT(bytes, ElementsAre(std::byte{3}, std::byte{4}, std::byte{5}));
  const absl::Status too_large = checkpoint->ReadSmallTensor(
      *checkpoint->Find("b"), &bytes, /*limit=*/Bytes(2));
  EXPECT_THAT(too_large.message(), HasSubstr("tensor \"b\" has 3 bytes"));
}

TEST_F(CheckpointTest, ReadsATensorInPiecesOfWholeUnits) {
  std::string bytes(3 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(i * 7 + i / 251);
  std::string file =
      Safetensors(Header(Entry("a", "U8", "[4]", "[0,4]"),
                         Entry("b", "U8", "[3145728]", "[4,3145732]")));
  folder_.Write("model.safetensors", file.append("abcd").append(bytes));
  const auto checkpoint = Opened();
  for (const uint64_t unit : {1u, 18u, 210u, 5u << 19}) {
    std::string read;
    const absl::Status status =
        ReadInPieces(*checkpoint, *checkpoint->Find("b"), Bytes(unit),
                     [&](std::span<std::byte> piece) {
                       EXPECT_EQ(read.size() % unit, 0u);
                       read.append(reinterpret_cast<const char*>(piece.data()),
                                   piece.size());
                     });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(read, bytes) << unit;
  }
  const absl::Status too_large = ReadInPieces(
      *checkpoint, *checkpoint->Find("b"), MiB(9), [](std::span<std::byte>) {});
  EXPECT_THAT(std::string(too_large.message()),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("\"b\"")));
}

TEST_F(CheckpointTest, AFileThatBecomesShorterIsReported) {
  const std::string path =
      folder_.Write("model.safetensors", Shard({"a", "b"}));
  const auto checkpoint = Opened();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<std::byte> bytes;
  // Whatever is read of it: what is left may be of another file.
  for (const char* const name : {"a", "b"}) {
    const absl::Status status =
        checkpoint->ReadSmallTensor(*checkpoint->Find(name), &bytes);
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("tensor \"", name, "\"")));
  }
  EXPECT_TRUE(absl::IsDataLoss(checkpoint->CheckUnchanged()));
}

TEST_F(CheckpointTest, ElementsIsTheProductOfTheShape) {
  TensorInfo tensor;
  EXPECT_EQ(tensor.elements(), 1u);
  tensor.shape = {2, 3, 5};
  EXPECT_EQ(tensor.elements(), 30u);
  tensor.shape = {2, 0};
  EXPECT_EQ(tensor.elements(), 0u);
}

}  // namespace
}  // namespace quire
