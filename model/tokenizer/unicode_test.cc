#include "model/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/byte_level.h"

namespace quire {
namespace {

constexpr char kMark[] = "\xEF\xBF\xBD";

std::string Marks(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += kMark;
  return text;
}

// Tables 3-8 to 3-11 of the Unicode Standard, "Use of U+FFFD in UTF-8
// Conversion", and what Rust documents of from_utf8_lossy.
TEST(Utf8, ReplacesMaximalSubparts) {
  const struct {
    std::string bytes;
    std::string repaired;
  } table[] = {
      {"", ""},
      {"a\u00E9\u20AC\U0001F600", "a\u00E9\u20AC\U0001F600"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
       "A",
       Marks(8) + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
       "A",
       Marks(8) + "A"},
      {"\xF4\x91\x92\x93\xFF"
       "A\x80\xBF"
       "B",
       Marks(5) + "A" + Marks(2) + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       Marks(4) + "A"},
      {"Hello \xF0\x90\x80World", absl::StrCat("Hello ", Marks(1), "World")},
      {"a\xF0\x9F\x98", absl::StrCat("a", Marks(1))},
      {"a\xE2\x82", absl::StrCat("a", Marks(1))},
      {"\xC3", Marks(1)},
  };
  for (const auto& [bytes, repaired] : table) {
    EXPECT_EQ(RepairUtf8(bytes), repaired) << repaired;
    EXPECT_EQ(IsUtf8(bytes), bytes == repaired) << repaired;
  }
}

TEST(Utf8, TellsCutFromInvalid) {
  EXPECT_EQ(NextUtf8("\xE2\x82", 0).kind, Utf8Step::kCut);
  EXPECT_EQ(NextUtf8("\xE2\x82", 0).length, 2u);
  EXPECT_EQ(NextUtf8("\xE2\x82x", 0).kind, Utf8Step::kInvalid);
  EXPECT_EQ(NextUtf8("\xE2\x82x", 0).length, 2u);
  EXPECT_EQ(NextUtf8("\x80", 0).kind, Utf8Step::kInvalid);
  EXPECT_EQ(NextUtf8("\xF5", 0).kind, Utf8Step::kInvalid);
}

TEST(Utf8, EncodesAndDecodesEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "x";
    AppendUtf8(c, &text);
    ASSERT_TRUE(IsUtf8(text)) << static_cast<uint32_t>(c);
    const DecodedCharacter decoded = DecodeUtf8(text, 1);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.length, text.size() - 1);
    ASSERT_EQ(PreviousCharacter(text, text.size()), 1u);
  }
}

// Counted by asking tokenizers 0.23.3 about every code point.
TEST(CharacterClasses, HaveAsManyMembersAsThoseOfTokenizers) {
  int word = 0, space = 0, numeric = 0, punctuation = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    word += IsWord(c);
    space += IsWhitespace(c);
    numeric += IsNumeric(c);
    punctuation += IsPunctuation(c);
  }
  EXPECT_EQ(word, 144667);
  EXPECT_EQ(space, 25);
  EXPECT_EQ(numeric, 1924);
  EXPECT_EQ(punctuation, 726);
}

TEST(SubstituteForRegex, KeepsLengthsAndLeavesOrdinaryTextAlone) {
  std::string out = "unchanged";
  EXPECT_FALSE(SubstituteForRegex("Gr\u00FC\u00DFe \u4E2D \U0001F600", &out));
  EXPECT_EQ(out, "unchanged");
  // Unicode 15.1, 16, and the separator that PCRE2 takes for a space.
  const std::string text = "a\U0002EBF0\U000105C0\u1C89\u180Ez";
  ASSERT_TRUE(SubstituteForRegex(text, &out));
  EXPECT_EQ(out.size(), text.size());
  EXPECT_TRUE(IsUtf8(out));
  EXPECT_TRUE(out.starts_with('a') && out.ends_with('z'));
  EXPECT_EQ(out.find("\u180E"), std::string::npos);
}

TEST(ByteLevel, IsOneToOne) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string text = BytesToByteLevel(all);
  EXPECT_TRUE(IsUtf8(text));
  EXPECT_EQ(ByteLevelToBytes(text), all);
  // GPT-2's best known ones.
  EXPECT_EQ(BytesToByteLevel(" \n\t"), "\u0120\u010A\u0109");
  EXPECT_EQ(ByteLevelToBytes("a b"), std::nullopt);
  EXPECT_EQ(ByteLevelToBytes("\u4E2D"), std::nullopt);
}

}  // namespace
}  // namespace quire
