#include "quire/alloc/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace quire {
namespace {

// As the standard writes a code point (Unicode 15, table 3-6).
std::string Encode(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto next = [&](int shift) { return byte(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), next(0)};
  if (c < 0x10000) return {byte(0xe0 | c >> 12), next(6), next(0)};
  return {byte(0xf0 | c >> 18), next(12), next(6), next(0)};
}

TEST(Utf8Test, EveryCodePointIsReadAsItIsWritten) {
  for (uint32_t c = 0; c < 0x200000; ++c) {
    const std::string text = Encode(c) + "a";
    const Utf8Character read = FirstUtf8Character(text);
    const bool exists = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    ASSERT_EQ(read.size, exists ? text.size() - 1 : 0) << std::hex << c;
    if (exists) {
      ASSERT_EQ(read.code_point, c);
    }
  }
}

// Table 3-7: what may follow a first byte.
TEST(Utf8Test, OnlyWhatTheTableHasIsACharacter) {
  for (uint32_t first = 0x80; first < 0x100; ++first) {
    for (uint32_t second = 0; second < 0x100; ++second) {
      const bool follows = second >= 0x80 && second <= 0xbf;
      size_t size = 0;
      if (first >= 0xc2 && first <= 0xdf && follows) size = 2;
      if (first >= 0xe0 && first <= 0xef && follows) size = 3;
      if (first == 0xe0 && second < 0xa0) size = 0;
      if (first == 0xed && second > 0x9f) size = 0;
      if (first >= 0xf0 && first <= 0xf4 && follows) size = 4;
      if (first == 0xf0 && second < 0x90) size = 0;
      if (first == 0xf4 && second > 0x8f) size = 0;
      std::string text = {static_cast<char>(first), static_cast<char>(second)};
      if (size > 2) text.append(size - 2, '\x80');
      ASSERT_EQ(FirstUtf8Character(text).size, size)
          << std::hex << first << " " << second;
      // Cut off, it is none.
      text.pop_back();
      ASSERT_EQ(FirstUtf8Character(text).size, 0u);
    }
  }
}

TEST(Utf8Test, WhatIsNoCharacterIsReplacedByteByByte) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_EQ(ValidUtf8(""), "");
  const std::string valid = "a\xe6\xa8\xa1\xf0\x9f\x98\x80";
  EXPECT_TRUE(IsValidUtf8(valid));
  EXPECT_EQ(ValidUtf8(valid), valid);
  EXPECT_FALSE(IsValidUtf8("ok\xe6\xa8"));
  EXPECT_EQ(ValidUtf8("ok\xe6\xa8"), "ok\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(ValidUtf8(std::string_view("\xff\0b", 3)),
            std::string("\xef\xbf\xbd\0b", 5));
}

}  // namespace
}  // namespace quire
