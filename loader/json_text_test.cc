#include "quire/loader/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Message(std::string_view text) {
  const auto value = ParseJsonText(text, "t.json");
  EXPECT_FALSE(value.ok()) << text;
  if (value.ok()) return "";
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

std::string Nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(JsonTextTest, AnyValueIsRead) {
  EXPECT_EQ(*ParseJsonText(R"( {"a": [1, "\u0000]\"["]} )", "t.json"),
            nlohmann::json::parse(R"({"a": [1, "\u0000]\"["]})"));
  EXPECT_EQ(*ParseJsonText("7", "t.json"), 7);
}

TEST(JsonTextTest, ErrorsNameTheFileAndTheByte) {
  EXPECT_THAT(Message("{\"a\": nul}"),
              AllOf(HasSubstr("t.json: byte 9:"), HasSubstr("no valid JSON")));
  EXPECT_THAT(Message(""), HasSubstr("t.json: byte 0:"));
  EXPECT_THAT(Message("[1] x"), HasSubstr("byte 4:"));
  EXPECT_THAT(Message("[1e999]"), HasSubstr("t.json: no valid JSON"));
  EXPECT_THAT(Message("\"\xff\""), HasSubstr("byte 1:"));
}

// The parser takes a NUL byte for the end, and would not see what follows.
TEST(JsonTextTest, ANulByteIsNoEnd) {
  EXPECT_THAT(Message(std::string_view("{}\0{", 4)),
              HasSubstr("byte 2: no valid JSON: a NUL byte"));
  EXPECT_THAT(Message(std::string_view("[\"a\\\0\"]", 7)),
              HasSubstr("byte 4: no valid JSON: a NUL byte"));
}

TEST(JsonTextTest, AByteOrderMarkIsRefused) {
  EXPECT_THAT(Message("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
}

// What is written out again would recurse.
TEST(JsonTextTest, DepthIsBounded) {
  EXPECT_TRUE(ParseJsonText(Nested(kMaxJsonDepth), "t.json").ok());
  EXPECT_THAT(Message(Nested(kMaxJsonDepth + 1)),
              HasSubstr("byte 128: no valid JSON: nested deeper than 128"));
  EXPECT_THAT(Message(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
  // Brackets in strings are no depth.
  EXPECT_TRUE(
      ParseJsonText("\"" + std::string(1000, '[') + "\"", "t.json").ok());
}

TEST(JsonTextTest, AFileIsReadByItsPath) {
  const TemporaryFolder folder;
  EXPECT_EQ(*ReadJsonText(folder.Write("a.json", "[1]")),
            nlohmann::json::array({1}));
  EXPECT_EQ(ReadJsonText(folder.File("b.json")).status().code(),
            absl::StatusCode::kNotFound);
  const std::string bad = folder.Write("c.json", "[");
  EXPECT_THAT(std::string(ReadJsonText(bad).status().message()),
              HasSubstr(bad));
}

}  // namespace
}  // namespace quire
