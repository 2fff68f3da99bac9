// Whole tokenizers against what `tokenizers` gave: encoding, decoding, the
// stream, tokenizer.json written anew, and GGUF metadata.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/golden_data.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

using nlohmann::json;

std::unique_ptr<Tokenizer> Make(const json& description) {
  auto tokenizer = Tokenizer::FromTokenizerJson(description, "tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Stream(const Tokenizer& tokenizer,
                   const std::vector<TokenId>& tokens) {
  TextStream stream(&tokenizer);
  std::string text;
  for (const TokenId token : tokens) text += stream.Push(token);
  return text + stream.Finish();
}

void CheckCases(const Tokenizer& tokenizer, const json& cases) {
  ASSERT_FALSE(cases.empty());
  for (const json& c : cases) {
    SCOPED_TRACE(c.dump());
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    const std::string decoded = c["decoded"];
    if (!c["text"].is_null()) {
      EXPECT_EQ(tokenizer.Encode(c["text"].get<std::string>()), ids);
    }
    const auto text = tokenizer.Decode(ids);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, decoded);
    EXPECT_EQ(Stream(tokenizer, ids), decoded);
  }
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  json Description() const {
    return ReadGolden("tokenizers/" + std::string(GetParam()) +
                      "/tokenizer.json");
  }
  json Cases() const {
    return ReadGolden("tokenizers/" + std::string(GetParam()) + "/cases.json");
  }
};

TEST_P(TokenizerGoldenTest, GivesTheSameTokensAndText) {
  const auto tokenizer = Make(Description());
  ASSERT_NE(tokenizer, nullptr);
  CheckCases(*tokenizer, Cases());
}

TEST_P(TokenizerGoldenTest, IsTheSameAfterWritingItAnew) {
  const auto tokenizer = Make(Description());
  ASSERT_NE(tokenizer, nullptr);
  const auto again = Make(json::parse(tokenizer->ToTokenizerJson().dump()));
  ASSERT_NE(again, nullptr);
  CheckCases(*again, Cases());
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldenTest,
                         testing::Values("gpt2", "digits", "llama3", "qwen2",
                                         "o200k", "added", "spm-prepend",
                                         "spm-plain"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

// What a converter to GGUF keeps of a tokenizer.json.
json ToGguf(const json& description, const std::string& pre) {
  json tokens = json::array(), types = json::array();
  for (const auto& [token, id] : description["model"]["vocab"].items()) {
    tokens[id.get<size_t>()] = token;
  }
  for (size_t id = 0; id < tokens.size(); ++id) types.push_back(1);
  for (const json& token : description["added_tokens"]) {
    types[token["id"].get<size_t>()] = 3;
  }
  json merges = json::array();
  for (const json& merge : description["model"]["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " +
                                             merge[1].get<std::string>());
  }
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", pre},
          {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.merges", merges},
          {"tokenizer.ggml.token_type", types}};
}

struct GgufCase {
  const char* name;
  const char* pre;
  bool add_bos;
};

class GgufGoldenTest : public testing::TestWithParam<GgufCase> {};

TEST_P(GgufGoldenTest, IsTheTokenizerThatItWasMadeFrom) {
  const std::string folder = std::string("tokenizers/") + GetParam().name;
  json metadata =
      ToGguf(ReadGolden(folder + "/tokenizer.json"), GetParam().pre);
  if (GetParam().add_bos) {
    metadata["tokenizer.ggml.add_bos_token"] = true;
    metadata["tokenizer.ggml.bos_token_id"] = 0;
  }
  const auto tokenizer = Tokenizer::FromGguf(metadata, "a.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  CheckCases(**tokenizer, ReadGolden(folder + "/cases.json"));
  // As a checkpoint that is written from GGUF has it.
  const auto written =
      Make(json::parse((*tokenizer)->ToTokenizerJson().dump()));
  ASSERT_NE(written, nullptr);
  CheckCases(*written, ReadGolden(folder + "/cases.json"));
}

INSTANTIATE_TEST_SUITE_P(All, GgufGoldenTest,
                         testing::Values(GgufCase{"gpt2", "gpt-2", false},
                                         GgufCase{"digits", "smollm", false},
                                         GgufCase{"qwen2", "qwen2", false},
                                         GgufCase{"llama3", "llama-bpe", true},
                                         GgufCase{"o200k", "gpt-4o", false}),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace quire
