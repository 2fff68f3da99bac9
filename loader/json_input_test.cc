#include "loader/json_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::string Delivered(const std::string& text) {
  const MemoryFile file(text);
  JsonInput input(file, 0, text.size());
  std::string out;
  for (auto it = input.begin(); it != input.end(); ++it) out += *it;
  EXPECT_TRUE(input.status().ok()) << input.status();
  return out;
}

TEST(JsonInputTest, SpaceOutsideStringsShrinksAndTokensStayApart) {
  EXPECT_EQ(Delivered("1 \t\n 2"), "1 2");
  EXPECT_EQ(Delivered("{  \"a  b\\\"  c\"  :  1  }  "),
            "{ \"a  b\\\"  c\" : 1 } ");
  EXPECT_EQ(Delivered(R"(["\\"   ,   "\\\""  ])"), R"(["\\" , "\\\"" ])");
}

TEST(JsonInputTest, TextBeyondOneBufferIsDeliveredWhole) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + ",";
  EXPECT_EQ(Delivered(text), text);
}

TEST(JsonInputTest, EndlessTokensEndTheInputWithAnError) {
  for (const std::string& text :
       {"\"" + std::string(JsonInput::kMaxRun + 1, 'x') + "\"",
        std::string(JsonInput::kMaxRun + 1, '['),
        std::string(JsonInput::kMaxRun + 1, '1')}) {
    const MemoryFile file(text);
    JsonInput input(file, 0, text.size());
    uint64_t delivered = 0;
    for (auto it = input.begin(); it != input.end(); ++it) ++delivered;
    EXPECT_LE(delivered, JsonInput::kMaxRun);
    EXPECT_THAT(input.status().message(), HasSubstr("longer than"));
  }
}

TEST(JsonInputTest, AFileThatBecameShorterIsAnError) {
  const MemoryFile file("{\"a\":", "short", Bytes(100));
  JsonInput input(file, 0, 100);
  EXPECT_TRUE(input.begin() == input.end());
  EXPECT_TRUE(absl::IsDataLoss(input.status()));
}

}  // namespace
}  // namespace quire
