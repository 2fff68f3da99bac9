#include "model/tokenizer/stop_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

StopConditions Stops(std::vector<std::string> stops) {
  StopConditions conditions;
  conditions.max_new_tokens = 1000;
  conditions.stop_strings = std::move(stops);
  return conditions;
}

TEST(StopChecker, CountsTokens) {
  StopConditions conditions;
  conditions.max_new_tokens = 2;
  StopChecker checker(conditions);
  EXPECT_FALSE(checker.DoneAtStart());
  EXPECT_EQ(checker.Push(7, "a").reason, StopReason::kNone);
  const StopChecker::Step step = checker.Push(7, "b");
  EXPECT_EQ(step.reason, StopReason::kLength);
  EXPECT_EQ(step.text, "b");
  conditions.max_new_tokens = 0;
  EXPECT_TRUE(StopChecker(conditions).DoneAtStart());
}

TEST(StopChecker, StopsAtAnyEosAndDoesNotShowIt) {
  StopConditions conditions = Stops({"end"});
  conditions.eos_ids = {3, 5};
  StopChecker checker(conditions);
  EXPECT_EQ(checker.Push(4, "a en").text, "a ");
  const StopChecker::Step step = checker.Push(5, "</s>");
  EXPECT_EQ(step.reason, StopReason::kEos);
  EXPECT_EQ(step.text, "en");
}

TEST(StopChecker, HoldsBackWhatAStopStringMayContinue) {
  StopChecker checker(Stops({"stop!", "\n\nUser"}));
  EXPECT_EQ(checker.Push(1, "do not st").text, "do not ");
  EXPECT_EQ(checker.Push(1, "op").text, "");
  EXPECT_EQ(checker.Push(1, "s\n").text, "stops");
  EXPECT_EQ(checker.Push(1, "\nU").text, "");
  EXPECT_EQ(checker.Push(1, "p\n\n").text, "\n\nUp");
  const StopChecker::Step step = checker.Push(1, "User: hi");
  EXPECT_EQ(step.reason, StopReason::kStopString);
  EXPECT_EQ(step.text, "");
}

TEST(StopChecker, ShowsTheRestAtTheEnd) {
  StopChecker checker(Stops({"stop"}));
  EXPECT_EQ(checker.Push(1, "sto").text, "");
  StopChecker::Step step = checker.Finish("o");
  EXPECT_EQ(step.text, "stoo");
  EXPECT_EQ(step.reason, StopReason::kNone);
  StopChecker other(Stops({"stop"}));
  EXPECT_EQ(other.Push(1, "a sto").text, "a ");
  step = other.Finish("p");
  EXPECT_EQ(step.text, "");
  EXPECT_EQ(step.reason, StopReason::kStopString);
}

// What is shown of `text`, and whether it stopped, byte by byte: a stop string
// ends the text as soon as its last byte is there; the longest counts.
std::pair<std::string, bool> Naive(const std::string& text,
                                   const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopChecker, GivesTheSameHoweverTokensCutTheText) {
  std::mt19937 random(11);
  const auto text_of = [&random](size_t most) {
    std::string text;
    for (size_t n = random() % most; n > 0; --n) text += "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (int i = 0; i < 3; ++i) stops.push_back(text_of(6) + "a");
    const std::string text = text_of(30);
    const auto [expected, expected_stop] = Naive(text, stops);
    StopChecker checker(Stops(stops));
    std::string shown;
    bool stopped = false;
    for (size_t i = 0; i < text.size() && !stopped;) {
      const size_t length = 1 + random() % 4;
      const StopChecker::Step step = checker.Push(1, text.substr(i, length));
      shown += step.text;
      stopped = step.reason == StopReason::kStopString;
      // Never more than what is right.
      ASSERT_TRUE(expected.starts_with(shown)) << text;
      i += length;
    }
    if (!stopped) shown += checker.Finish("").text;
    ASSERT_EQ(shown, expected) << text;
    ASSERT_EQ(stopped, expected_stop) << text;
  }
}

TEST(StopConditions, NamesWhatIsOutOfRange) {
  StopConditions conditions;
  EXPECT_TRUE(conditions.Validate().ok());
  conditions.max_new_tokens = -1;
  EXPECT_THAT(std::string(conditions.Validate().message()),
              HasSubstr("max_new_tokens is -1"));
  conditions = Stops({"a", ""});
  EXPECT_THAT(std::string(conditions.Validate().message()),
              HasSubstr("stop string 1"));
}

class EosTokenIdsTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<TokenId>> Ids(const json& config,
                                           const json& generation,
                                           const json& tokenizer_config,
                                           const json& gguf) {
    const json description = {{"model",
                               {{"type", "BPE"},
                                {"vocab", {{"</s>", 2}, {"<|im_end|>", 7}}},
                                {"merges", json::array()}}}};
    const auto tokenizer = Tokenizer::FromTokenizerJson(description, "t.json");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return EosTokenIds("folder", config, generation, tokenizer_config, gguf, tokenizer->get());
  }
  const json none_ = json::object();
};

TEST_F(EosTokenIdsTest, JoinsWhatTheFilesSay) {
  EXPECT_THAT(*Ids(none_, none_, none_, none_), IsEmpty());
  EXPECT_THAT(*Ids({{"eos_token_id", 5}}, {{"eos_token_id", {9, 5, 3}}},
                   {{"eos_token", "</s>"}}, none_),
              ElementsAre(2, 3, 5, 9));
  EXPECT_THAT(*Ids({{"eos_token_id", nullptr}}, none_,
                   {{"eos_token", {{"content", "<|im_end|>"}}}}, none_),
              ElementsAre(7));
  EXPECT_THAT(*Ids(none_, none_, {{"eos_token", "unknown"}},
                   {{"tokenizer.ggml.eos_token_id", 4},
                    {"tokenizer.ggml.eot_token_id", 6}}),
              ElementsAre(4, 6));
}

TEST_F(EosTokenIdsTest, NamesTheFieldThatIsWrong) {
  const auto message = [](const absl::StatusOr<std::vector<TokenId>>& ids) {
    return std::string(ids.status().message());
  };
  EXPECT_THAT(message(Ids({{"eos_token_id", "x"}}, none_, none_, none_)),
              HasSubstr("folder/config.json: eos_token_id"));
  EXPECT_THAT(message(Ids(none_, {{"eos_token_id", {1, -1}}}, none_, none_)),
              HasSubstr("folder/generation_config.json: eos_token_id[1]"));
  EXPECT_THAT(message(Ids(none_, none_, none_,
                          {{"tokenizer.ggml.eos_token_id", "x"}})),
              HasSubstr("folder: tokenizer.ggml.eos_token_id"));
  EXPECT_THAT(message(Ids(none_, none_, {{"eos_token", 1}}, none_)),
              HasSubstr("folder/tokenizer_config.json: eos_token"));
}

}  // namespace
}  // namespace quire
