#include "loader/module_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

using ::testing::HasSubstr;

bool Matches(const std::string& pattern, const std::string& module) {
  const auto compiled = ModulePattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  const auto matches = compiled->Matches(module);
  EXPECT_TRUE(matches.ok()) << matches.status();
  return *matches;
}

// The expectations are those of Python's re.match.
TEST(ModulePatternTest, MatchesFromTheStartButNotToTheEnd) {
  EXPECT_TRUE(Matches("model\\.layers\\.1", "model.layers.1.mlp"));
  EXPECT_TRUE(Matches("model\\.layers\\.1", "model.layers.10.mlp"));
  EXPECT_FALSE(Matches("layers\\.1", "model.layers.1.mlp"));
  EXPECT_TRUE(Matches(".*layers\\.1\\.", "model.layers.1.mlp"));
  EXPECT_FALSE(Matches("model\\.layers\\.1$", "model.layers.1.mlp"));
  EXPECT_TRUE(Matches("", "anything"));
  EXPECT_TRUE(Matches("a|model", "model.x"));
  EXPECT_FALSE(Matches("(?:a|odel)", "model.x"));
  EXPECT_TRUE(Matches("model\\.layers\\.(?:0|[2-4])\\..*_proj",
                      "model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(Matches("(?!.*lm_head)model", "lm_head"));
  EXPECT_TRUE(Matches("^(?!.*mlp).*", "model.layers.0.self_attn"));
  EXPECT_FALSE(Matches("^(?!.*mlp).*", "model.layers.0.mlp"));
  EXPECT_TRUE(Matches("(?P<layer>model)", "model"));
}

TEST(ModulePatternTest, WrongPatternsAreNamed) {
  for (const char* pattern : {"(", "[a", "*", "a{2,1}", "\\C", "\xff"}) {
    const auto compiled = ModulePattern::Compile(pattern);
    ASSERT_FALSE(compiled.ok()) << pattern;
    EXPECT_THAT(std::string(compiled.status().message()), HasSubstr("pattern"));
  }
  EXPECT_FALSE(ModulePattern::Compile(std::string(5000, 'a')).ok());
}

TEST(ModulePatternTest, EndlessMatchingIsAnError) {
  const auto compiled = ModulePattern::Compile("(a+)+[bc]");
  ASSERT_TRUE(compiled.ok());
  const auto matches = compiled->Matches(std::string(200, 'a'));
  ASSERT_FALSE(matches.ok());
  EXPECT_THAT(std::string(matches.status().message()), HasSubstr("limit"));
}

TEST(ModulePatternTest, FindsPatternsThatMatchOneNameOnly) {
  using Literal = std::optional<std::string>;
  EXPECT_EQ(ModulePattern::LiteralOf("^model\\.layers\\.0\\.mlp$"),
            Literal("model.layers.0.mlp"));
  EXPECT_EQ(ModulePattern::LiteralOf("^lm_head$"), Literal("lm_head"));
  EXPECT_EQ(ModulePattern::LiteralOf("^$"), Literal(""));
  for (const char* pattern :
       {"", "^", "$", "lm_head", "^lm_head", "lm_head$", "^a.b$", "^a|b$",
        "^a*$", "^\\d$", "^a\\$", "^(a)$", "^[a]$", "^a$$"})
    EXPECT_EQ(ModulePattern::LiteralOf(pattern), std::nullopt) << pattern;
}

}  // namespace
}  // namespace quire
