#include "model/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Bpe> Make(Bpe::Vocabulary vocabulary, const Bpe::Merges& merges,
                          BpeOptions options = {}) {
  auto bpe = Bpe::Create(std::move(options), std::move(vocabulary), merges);
  EXPECT_TRUE(bpe.ok()) << bpe.status();
  return bpe.ok() ? *std::move(bpe) : nullptr;
}

std::vector<TokenId> Encode(const Bpe& bpe, const std::string& word) {
  std::vector<TokenId> tokens;
  bpe.Encode(word, &tokens);
  return tokens;
}

// The definition: of all adjacent pairs merge the one of the lowest rank, of
// equal ones the leftmost, until there is none.
std::vector<std::string> NaiveMerge(
    std::vector<std::string> parts,
    const std::map<std::pair<std::string, std::string>, size_t>& ranks) {
  while (true) {
    size_t best = parts.size();
    size_t best_rank = ranks.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find({parts[i], parts[i + 1]});
      if (it != ranks.end() && it->second < best_rank) {
        best = i;
        best_rank = it->second;
      }
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, MergesAsTheDefinitionSays) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "\u00E9"};
    Bpe::Merges merges;
    std::map<std::pair<std::string, std::string>, size_t> ranks;
    while (merges.size() < 40) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 12) continue;
      if (!ranks.emplace(std::pair(left, right), merges.size()).second)
        continue;
      merges.emplace_back(left, right);
      if (std::find(tokens.begin(), tokens.end(), left + right) ==
          tokens.end()) {
        tokens.push_back(left + right);
      }
    }
    Bpe::Vocabulary vocabulary;
    std::map<std::string, TokenId> ids;
    for (const std::string& token : tokens) {
      ids[token] = static_cast<TokenId>(ids.size());
      vocabulary.emplace_back(token, ids[token]);
    }
    const auto bpe = Make(vocabulary, merges);
    ASSERT_NE(bpe, nullptr);
    for (int i = 0; i < 100; ++i) {
      std::vector<std::string> characters;
      std::string word;
      for (size_t n = random() % 30; n > 0; --n) {
        characters.push_back(tokens[random() % 4]);
        word += characters.back();
      }
      std::vector<TokenId> expected;
      for (const std::string& part : NaiveMerge(characters, ranks)) {
        expected.push_back(ids.at(part));
      }
      ASSERT_EQ(Encode(*bpe, word), expected) << word;
    }
  }
}

TEST(Bpe, MergesAMillionLettersInLittleTime) {
  Bpe::Vocabulary vocabulary;
  Bpe::Merges merges;
  std::string token = "a";
  for (TokenId id = 0; id < 11; ++id) {
    vocabulary.emplace_back(token, id);
    if (id < 10) merges.emplace_back(token, token);
    token += token;
  }
  const auto bpe = Make(vocabulary, merges);
  ASSERT_NE(bpe, nullptr);
  const std::vector<TokenId> tokens = Encode(*bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(tokens, std::vector<TokenId>(1024, 10));
}

TEST(Bpe, HandlesWhatIsNotInTheVocabulary) {
  const Bpe::Vocabulary vocabulary = {
      {"<unk>", 0}, {"a", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}};
  // Dropped without an unk_token.
  EXPECT_THAT(Encode(*Make(vocabulary, {}), "axxa"), ElementsAre(1, 1));
  BpeOptions options;
  options.unk_token = "<unk>";
  EXPECT_THAT(Encode(*Make(vocabulary, {}, options), "axxa"),
              ElementsAre(1, 0, 0, 1));
  options.fuse_unk = true;
  EXPECT_THAT(Encode(*Make(vocabulary, {}, options), "axxa"),
              ElementsAre(1, 0, 1));
  options.byte_fallback = true;
  EXPECT_THAT(Encode(*Make(vocabulary, {}, options), "a\u00E9"),
              ElementsAre(1, 2, 3));
  // `tokenizers` puts an unknown token behind the bytes that follow it.
  EXPECT_THAT(Encode(*Make(vocabulary, {}, options), "x\u00E9a"),
              ElementsAre(2, 3, 0, 1));
}

TEST(Bpe, FindsWholeWordsWithIgnoreMerges) {
  const Bpe::Vocabulary vocabulary = {
      {"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}};
  const Bpe::Merges merges = {{"a", "b"}};
  BpeOptions options;
  EXPECT_THAT(Encode(*Make(vocabulary, merges, options), "aba"),
              ElementsAre(2, 0));
  options.ignore_merges = true;
  EXPECT_THAT(Encode(*Make(vocabulary, merges, options), "aba"),
              ElementsAre(3));
}

TEST(Bpe, DecoratesCharactersInsideAndAtTheEnd) {
  BpeOptions options;
  options.continuing_subword_prefix = "##";
  options.end_of_word_suffix = "$";
  // The merge drops the prefix of its right side.
  const auto bpe =
      Make({{"a", 0}, {"##b", 1}, {"ab", 2}, {"##c$", 3}, {"a$", 4}},
           {{"a", "##b"}}, options);
  ASSERT_NE(bpe, nullptr);
  EXPECT_THAT(Encode(*bpe, "abc"), ElementsAre(2, 3));
  EXPECT_THAT(Encode(*bpe, "a"), ElementsAre(4));
}

TEST(Bpe, NamesWhatIsWrong) {
  BpeOptions no_unk;
  no_unk.unk_token = "<unk>";
  const struct {
    Bpe::Vocabulary vocabulary;
    Bpe::Merges merges;
    BpeOptions options;
    const char* message;
  } table[] = {
      {{{"a", -1}}, {}, {}, "\"a\" has id -1"},
      {{{"a", kMaxTokenId + 1}}, {}, {}, "\"a\" has id 16777216"},
      {{{"a", 3}, {"b", 3}}, {}, {}, "\"a\" and \"b\" both have id 3"},
      {{{"a", 3}, {"a", 4}}, {}, {}, "\"a\" has the ids 3 and 4"},
      {{{"a", 0}}, {{"a", "b"}}, {}, "merges[0] (\"a\", \"b\"): token \"b\""},
      {{{"a", 0}}, {{"a", "a"}}, {}, "token \"aa\" is not in vocab"},
      {{{"a", 0}}, {}, no_unk, "unk_token \"<unk>\" is not in vocab"},
  };
  for (const auto& row : table) {
    const auto bpe = Bpe::Create(row.options, row.vocabulary, row.merges);
    ASSERT_FALSE(bpe.ok()) << row.message;
    EXPECT_THAT(std::string(bpe.status().message()), HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace quire
