// What golden files cannot show: errors, and the edges of the interface.

#include "quire/model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json AddedToken(int id, const std::string& content, bool special) {
  return {{"id", id},          {"content", content}, {"single_word", false},
          {"lstrip", false},   {"rstrip", false},    {"normalized", false},
          {"special", special}};
}

// "a", "b" and "ab" of one merge, a special token and an added one.
json SmallTokenizer() {
  return {{"version", "1.0"},
          {"added_tokens",
           {AddedToken(3, "<s>", true), AddedToken(4, "[x]", false)}},
          {"decoder", {{"type", "Fuse"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}}},
            {"merges", {"a b"}}}}};
}

std::unique_ptr<Tokenizer> Make(const json& description) {
  auto tokenizer = Tokenizer::FromTokenizerJson(description, "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(Tokenizer, FindsTokensAndKnowsWhichAreSpecial) {
  const auto tokenizer = Make(SmallTokenizer());
  EXPECT_EQ(tokenizer->vocab_size(), 5u);
  EXPECT_EQ(tokenizer->Find("ab"), 2);
  EXPECT_EQ(tokenizer->Find("<s>"), 3);
  EXPECT_EQ(tokenizer->Find("[x]"), 4);
  EXPECT_EQ(tokenizer->Find("c"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(3));
  EXPECT_FALSE(tokenizer->IsSpecial(4));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST(Tokenizer, SkipsSpecialTokensWhereAsked) {
  const auto tokenizer = Make(SmallTokenizer());
  const std::vector<TokenId> tokens = tokenizer->Encode("<s>ab[x]");
  EXPECT_THAT(tokens, ElementsAre(3, 2, 4));
  EXPECT_EQ(*tokenizer->Decode(tokens), "<s>ab[x]");
  EXPECT_EQ(*tokenizer->Decode(tokens, /*skip_special_tokens=*/true), "ab[x]");
  TextStream stream(tokenizer.get(), /*skip_special_tokens=*/true);
  EXPECT_EQ(stream.Push(3), "");
  EXPECT_EQ(stream.Push(2), "ab");
  EXPECT_EQ(stream.Push(12345), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Tokenizer, AddsWhatThePostProcessorSays) {
  json description = SmallTokenizer();
  description["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "S"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "E"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"S", {{"id", "S"}, {"ids", {3}}, {"tokens", {"<s>"}}}},
        {"E", {{"id", "E"}, {"ids", {4, 3}}, {"tokens", {"x", "y"}}}}}}};
  const auto tokenizer = Make(description);
  EXPECT_THAT(tokenizer->Encode("ab"), ElementsAre(3, 2, 4, 3));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre(3, 4, 3));
  EXPECT_THAT(tokenizer->Encode("ab", false), ElementsAre(2));
  EXPECT_THAT(tokenizer->Encode("", false), IsEmpty());
}

TEST(Tokenizer, RepairsWhatIsNotUtf8) {
  json description = SmallTokenizer();
  description["model"]["vocab"]["\uFFFD"] = 5;
  const auto tokenizer = Make(description);
  EXPECT_THAT(tokenizer->Encode("a\xC3"
                                "b\xFF"),
              ElementsAre(0, 5, 1, 5));
}

TEST(Tokenizer, NamesIdsThatDoNotExist) {
  const auto tokenizer = Make(SmallTokenizer());
  for (const TokenId id : {TokenId{-1}, TokenId{5}, TokenId{1 << 30}}) {
    const auto text = tokenizer->Decode(std::vector<TokenId>{0, id});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()),
                AllOf(HasSubstr("token 1"), HasSubstr(std::to_string(id))));
  }
}

struct BadJson {
  const char* pointer;  // of the value that is replaced; created if missing
  json value;
  absl::StatusCode code;
  const char* message;
};

TEST(Tokenizer, NamesFileAndFieldOfWhatIsWrong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;
  const BadJson table[] = {
      {"", 7, kInvalid, "t.json: not a JSON object"},
      {"/version", "2.0", kUnsupported, "version 2.0"},
      {"/model", nullptr, kInvalid, "t.json: model is missing"},
      {"/model/type", "Unigram", kUnsupported, "model: the model Unigram"},
      {"/model/type", 1, kInvalid, "model.type is not a string"},
      {"/model/dropout", 0.1, kUnsupported, "dropout"},
      {"/model/vocab", json::array(), kInvalid, "vocab is not an object"},
      {"/model/vocab/a", "0", kInvalid, "model.vocab: the id of \"a\""},
      {"/model/vocab/a", -1, kInvalid, "the id of \"a\""},
      {"/model/vocab/a", 1.5, kInvalid, "the id of \"a\""},
      {"/model/vocab/a", 1u << 30, kInvalid, "the id of \"a\""},
      {"/model/vocab/a", 1, kInvalid, "both have id 1"},
      {"/model/merges", 3, kInvalid, "merges is not an array"},
      {"/model/merges/0", "a", kInvalid, "model.merges: merge 0, \"a\""},
      {"/model/merges/0", "a b c", kInvalid, "is not two tokens"},
      {"/model/merges/0", {"a"}, kInvalid, "merge 0 is not two tokens"},
      {"/model/merges/0", "a q", kInvalid, "token \"q\" is not in vocab"},
      {"/model/fuse_unk", 1, kInvalid, "model.fuse_unk is not true or false"},
      {"/model/unk_token", "<unk>", kInvalid, "unk_token \"<unk>\""},
      {"/added_tokens", 1, kInvalid, "added_tokens is not an array"},
      {"/added_tokens/0/content", 1, kInvalid,
       "added_tokens[0].content is not a string"},
      {"/added_tokens/1/id", -3, kInvalid, "added_tokens[1].id"},
      {"/normalizer",
       {{"type", "Precompiled"}},
       kUnsupported,
       "normalizer: the normalizer Precompiled"},
      {"/normalizer",
       {{"type", "Prepend"}},
       kInvalid,
       "normalizer.prepend is not a string"},
      {"/normalizer",
       {{"type", "Prepend"}, {"prepend", "\xC3"}},
       kInvalid,
       "normalizer.prepend is not UTF-8"},
      {"/pre_tokenizer",
       {{"type", "UnicodeScripts"}},
       kUnsupported,
       "the pre-tokenizer UnicodeScripts"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Split"}}}}},
       kInvalid,
       "pre_tokenizer.pretokenizers[0]: pattern is missing"},
      {"/pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", "a"}}},
        {"behavior", "Sideways"}},
       kUnsupported,
       "the behavior Sideways"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "ab"}},
       kInvalid,
       "replacement is not a single character"},
      {"/post_processor",
       {{"type", "BertProcessing"}},
       kUnsupported,
       "the post-processor BertProcessing"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "S"}}}}}}},
       kInvalid,
       "special_tokens has no \"S\""},
      {"/decoder",
       {{"type", "WordPiece"}},
       kUnsupported,
       "the decoder WordPiece"},
      {"/decoder",
       {{"type", "Strip"}, {"content", " "}, {"start", -1}},
       kInvalid,
       "decoder.start: not a number"},
  };
  for (const BadJson& bad : table) {
    json description = SmallTokenizer();
    description[json::json_pointer(bad.pointer)] = bad.value;
    const auto tokenizer = Tokenizer::FromTokenizerJson(description, "t.json");
    ASSERT_FALSE(tokenizer.ok()) << bad.message;
    EXPECT_EQ(tokenizer.status().code(), bad.code) << tokenizer.status();
    EXPECT_THAT(std::string(tokenizer.status().message()),
                AllOf(HasSubstr("t.json"), HasSubstr(bad.message)));
  }
}

TEST(Tokenizer, RefusesDeepNesting) {
  json part = {{"type", "NFC"}};
  for (int i = 0; i < 1000; ++i) {
    part = {{"type", "Sequence"}, {"normalizers", {std::move(part)}}};
  }
  json description = SmallTokenizer();
  description["normalizer"] = std::move(part);
  EXPECT_EQ(Tokenizer::FromTokenizerJson(description, "t.json").status().code(),
            absl::StatusCode::kUnimplemented);
}

json SmallGguf() {
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", "gpt-2"},
          {"tokenizer.ggml.tokens", {"a", "b", "ab", "<s>", "<u>", "</s>"}},
          {"tokenizer.ggml.token_type", {1, 1, 1, 3, 4, 3}},
          {"tokenizer.ggml.merges", {"a b"}}};
}

TEST(GgufTokenizer, TakesControlAndUserDefinedTokensAsAdded) {
  const auto tokenizer = Tokenizer::FromGguf(SmallGguf(), "m.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("ab<s><u>"), ElementsAre(2, 3, 4));
  EXPECT_TRUE((*tokenizer)->IsSpecial(3));
  EXPECT_FALSE((*tokenizer)->IsSpecial(4));
}

TEST(GgufTokenizer, AddsBosAndEosWhereAsked) {
  json metadata = SmallGguf();
  metadata["tokenizer.ggml.bos_token_id"] = 3;
  metadata["tokenizer.ggml.eos_token_id"] = 5;
  EXPECT_THAT((*Tokenizer::FromGguf(metadata, "m.gguf"))->Encode("ab"),
              ElementsAre(2));
  // Llama 3's tokenizer has one where the file does not say otherwise.
  metadata["tokenizer.ggml.pre"] = "llama-bpe";
  EXPECT_THAT((*Tokenizer::FromGguf(metadata, "m.gguf"))->Encode("ab"),
              ElementsAre(3, 2));
  metadata["tokenizer.ggml.add_bos_token"] = false;
  metadata["tokenizer.ggml.add_eos_token"] = true;
  EXPECT_THAT((*Tokenizer::FromGguf(metadata, "m.gguf"))->Encode("ab"),
              ElementsAre(2, 5));
}

TEST(GgufTokenizer, NamesWhatIsWrong) {
  const struct {
    const char* key;
    json value;
    const char* message;
  } table[] = {
      {"tokenizer.ggml.model", "llama", "tokenizer.ggml.model llama"},
      {"tokenizer.ggml.model", nullptr, "tokenizer.ggml.model is missing"},
      {"tokenizer.ggml.model", 1, "tokenizer.ggml.model is not a string"},
      {"tokenizer.ggml.pre", "no-such", "tokenizer.ggml.pre no-such"},
      {"tokenizer.ggml.tokens", 1, "tokenizer.ggml.tokens is not an array"},
      {"tokenizer.ggml.tokens",
       {"a", 1, "ab", "s", "u", "e"},
       "tokenizer.ggml.tokens[1] is not a string"},
      {"tokenizer.ggml.tokens",
       {"a", "b", "a", "s", "u", "e"},
       "tokenizer.ggml.tokens[2] is \"a\", as is [0]"},
      {"tokenizer.ggml.tokens",
       {"a", "\xFF", "ab", "s", "u", "e"},
       "is not UTF-8"},
      {"tokenizer.ggml.token_type", {1}, "not one number per token"},
      {"tokenizer.ggml.merges", nullptr, "tokenizer.ggml.merges is missing"},
      {"tokenizer.ggml.add_bos_token", true, "bos_token_id is not a number"},
      {"tokenizer.ggml.add_eos_token", "yes", "is not true or false"},
  };
  for (const auto& bad : table) {
    json metadata = SmallGguf();
    metadata[bad.key] = bad.value;
    const auto tokenizer = Tokenizer::FromGguf(metadata, "m.gguf");
    ASSERT_FALSE(tokenizer.ok()) << bad.message;
    EXPECT_THAT(std::string(tokenizer.status().message()),
                AllOf(HasSubstr("m.gguf"), HasSubstr(bad.message)));
  }
}

TEST(TokenizerLoad, ReadsTheFolderAndNamesTheFile) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "tokenizer_load";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "tokenizer.json").string();
  std::ofstream(file) << SmallTokenizer().dump();
  for (const auto& path : {folder, folder / "model.safetensors"}) {
    const auto tokenizer = Tokenizer::Load(path.string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->vocab_size(), 5u);
  }
  std::ofstream(file) << "{\"model\": ";
  EXPECT_THAT(std::string(Tokenizer::Load(folder.string()).status().message()),
              AllOf(HasSubstr(file), HasSubstr("no valid JSON")));
  std::filesystem::remove(file);
  const auto missing = Tokenizer::Load(folder.string());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(file));
}

// Of what is no folder the contents decide, not the name.
TEST(TokenizerLoad, AGgufFileNeedsNoEnding) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "tokenizer_load_gguf";
  std::string bytes = "GGUF";
  const auto number = [&](uint64_t value, int size) {
    for (int i = 0; i < size; ++i)
      bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  };
  const auto text = [&](const std::string& value) {
    number(value.size(), 8);
    bytes += value;
  };
  constexpr uint64_t kString = 8;
  constexpr uint64_t kArray = 9;
  number(3, 4);  // version
  number(0, 8);  // tensors
  number(4, 8);  // fields
  for (const auto& [key, value] :
       {std::pair("tokenizer.ggml.model", "gpt2"),
        std::pair("tokenizer.ggml.pre", "default")}) {
    text(key);
    number(kString, 4);
    text(value);
  }
  for (const auto& [key, values] :
       {std::pair("tokenizer.ggml.tokens",
                  std::vector<std::string>{"a", "b", "ab"}),
        std::pair("tokenizer.ggml.merges", std::vector<std::string>{"a b"})}) {
    text(key);
    number(kArray, 4);
    number(kString, 4);
    number(values.size(), 8);
    for (const std::string& value : values) text(value);
  }
  std::ofstream(file, std::ios::binary) << bytes;
  const auto tokenizer = Tokenizer::Load(file.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("ab"), std::vector<TokenId>{2});
  std::filesystem::remove(file);
  EXPECT_EQ(Tokenizer::Load(file.string()).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire
