#include "alloc/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::vector<std::string>> Rows(std::string_view contents) {
  auto csv = CsvReader::Create(contents);
  EXPECT_TRUE(csv.ok()) << csv.status();
  std::vector<std::vector<std::string>> rows;
  if (!csv.ok()) return rows;
  for (;;) {
    const absl::StatusOr<bool> more = csv->Next();
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) return rows;
    std::vector<std::string> row;
    for (size_t i = 0; i < csv->columns().size(); ++i) {
      row.push_back(csv->Text(i));
    }
    rows.push_back(row);
  }
}

std::string ErrorOf(std::string_view contents) {
  auto csv = CsvReader::Create(contents);
  if (!csv.ok()) return std::string(csv.status().message());
  for (;;) {
    const absl::StatusOr<bool> more = csv->Next();
    if (!more.ok()) return std::string(more.status().message());
    if (!*more) return "no error";
  }
}

TEST(CsvTest, LinesEndInEitherWayOrWithTheFile) {
  EXPECT_THAT(Rows("a,b\r\n1,2\r\n\r\n3,\n\n,4"),
              ElementsAre(ElementsAre("1", "2"), ElementsAre("3", ""),
                          ElementsAre("", "4")));
  EXPECT_TRUE(Rows("a").empty());
}

TEST(CsvTest, QuotedFieldsMayHoldCommasAndQuotes) {
  EXPECT_THAT(Rows("a,b\n\"x,\"\"y\"\"\",\"\"\n"),
              ElementsAre(ElementsAre("x,\"y\"", "")));
}

TEST(CsvTest, WhatCsvFieldWritesIsReadAsItWas) {
  for (const std::string text :
       {"", "plain", "a,b", "\"", "\"\",\"\"", "ends\"", "tab\there"}) {
    EXPECT_THAT(Rows("x,y\n" + CsvField(text) + ",1\n"),
                ElementsAre(ElementsAre(text, "1")));
  }
  EXPECT_EQ(CsvField("two\nlines"), "\"two lines\"");
}

TEST(CsvTest, ErrorsNameTheLine) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no header"));
  EXPECT_THAT(ErrorOf("\n\n"), HasSubstr("no header"));
  EXPECT_THAT(ErrorOf("a,b,a\n"), HasSubstr("line 1: the column \"a\""));
  EXPECT_THAT(ErrorOf("a,b\n1,2\n\n1\n"), HasSubstr("line 4: has 1 fields"));
  EXPECT_THAT(ErrorOf("a\n\"x\n"), HasSubstr("line 2: a quote"));
  EXPECT_THAT(ErrorOf("a\n\"x\"y\n"), HasSubstr("line 2: there is text"));
}

TEST(CsvTest, NumbersAreDigitsAndNothingElse) {
  auto csv = CsvReader::Create(
      "good,large,negative,empty,tail\n"
      "18446744073709551615,18446744073709551616,-1,,12x\n");
  ASSERT_TRUE(csv.ok());
  ASSERT_TRUE(csv->Next().value_or(false));
  EXPECT_EQ(csv->Number(0).value_or(0), UINT64_MAX);
  for (size_t column = 1; column < 5; ++column) {
    EXPECT_THAT(std::string(csv->Number(column).status().message()),
                HasSubstr("line 2, column \"" + csv->columns()[column] + "\""));
  }
}

TEST(CsvTest, ErrorsShowFieldsAsPlainText) {
  const std::string contents = "a\n\x1b[31m" + std::string(100, 'x') + "\n";
  auto csv = CsvReader::Create(contents);
  ASSERT_TRUE(csv.ok());
  ASSERT_TRUE(csv->Next().value_or(false));
  const std::string error(csv->FieldError(0, "is odd").message());
  EXPECT_THAT(error, HasSubstr("\"?[31mxxx"));
  EXPECT_LT(error.size(), 100u);
}

TEST(CsvTest, UnsignedNumbersMayBeHexadecimal) {
  EXPECT_EQ(ParseUnsigned("0x7fA0"), 0x7fa0u);
  EXPECT_EQ(ParseUnsigned("10"), 10u);
  for (const char* bad :
       {"", "0x", "0xg", "-1", " 1", "1 ", "a0", "0x10000000000000000"}) {
    EXPECT_EQ(ParseUnsigned(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace quire
