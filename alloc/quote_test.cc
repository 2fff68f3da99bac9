#include "quire/alloc/quote.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(QuoteTest, PrintableTextStaysAsItIs) {
  EXPECT_EQ(Quoted("model.layers.0.mlp.down_proj.qweight"),
            "\"model.layers.0.mlp.down_proj.qweight\"");
  EXPECT_EQ(Printable("/data/\xe6\xa8\xa1\xe5\x9e\x8b/a b.json"),
            "/data/\xe6\xa8\xa1\xe5\x9e\x8b/a b.json");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(QuoteTest, NothingMovesTheCursorOrEndsTheLine) {
  EXPECT_EQ(Printable("a\nb\r\t\x1b[2J\x7f"), "a\\nb\\x0d\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
  // C1 controls, line separator, right-to-left override.
  EXPECT_EQ(Printable("\xc2\x9b \xe2\x80\xa8 \xe2\x80\xae"),
            "\\u009b \\u2028 \\u202e");
}

TEST(QuoteTest, BytesThatAreNoUtf8AreEscaped) {
  EXPECT_EQ(Printable("\xff\xc0\x80\xed\xa0\x80"),
            "\\xff\\xc0\\x80\\xed\\xa0\\x80");
  EXPECT_EQ(Printable("ok\xe6\xa8"), "ok\\xe6\\xa8");
}

TEST(QuoteTest, QuotesAndBackslashesCannotEndTheQuotation) {
  EXPECT_EQ(Quoted("a\"b\\"), "\"a\\\"b\\\\\"");
}

TEST(QuoteTest, LongTextIsCut) {
  const std::string quoted = Quoted(std::string(1'000'000, 'x'));
  EXPECT_LT(quoted.size(), 300u);
  EXPECT_EQ(quoted.substr(quoted.size() - 4), "...\"");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
  EXPECT_EQ(Printable("abc", 3), "abc");
}

}  // namespace
}  // namespace quire
