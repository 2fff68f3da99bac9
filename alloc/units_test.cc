#include "quire/alloc/units.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(UnitsTest, AdditionThatDoesNotFitHasNoValue) {
  EXPECT_EQ(CheckedAdd(Bytes(2), Bytes(3)), Bytes(5));
  EXPECT_EQ(CheckedAdd(Bytes(kMax), Bytes(0)), Bytes(kMax));
  EXPECT_EQ(CheckedAdd(Bytes(kMax), Bytes(1)), std::nullopt);
  EXPECT_EQ(CheckedAdd(DeviceAddress(kMax), Bytes(1)), std::nullopt);
}

TEST(UnitsTest, SubtractionBelowZeroHasNoValue) {
  EXPECT_EQ(CheckedSubtract(Bytes(3), Bytes(3)), Bytes(0));
  EXPECT_EQ(CheckedSubtract(Bytes(3), Bytes(4)), std::nullopt);
}

TEST(UnitsTest, SaturatingFiguresStayAtTheEndsOfTheRange) {
  EXPECT_EQ(SaturatingAdd(2, 3), 5u);
  EXPECT_EQ(SaturatingAdd(UINT64_MAX - 1, 1), UINT64_MAX);
  EXPECT_EQ(SaturatingAdd(UINT64_MAX - 1, 2), UINT64_MAX);
  EXPECT_EQ(SaturatingSubtract(5, 3), 2u);
  EXPECT_EQ(SaturatingSubtract(3, 3), 0u);
  EXPECT_EQ(SaturatingSubtract(3, 5), 0u);
  EXPECT_EQ(SaturatingAdd(Bytes(UINT64_MAX), Bytes(1)), Bytes(UINT64_MAX));
  EXPECT_EQ(SaturatingSubtract(Bytes(1), Bytes(2)), Bytes(0));
}

TEST(UnitsTest, AlignUpNearTheEndOfTheRangeHasNoValue) {
  EXPECT_EQ(CheckedAlignUp(Bytes(0), Bytes(256)), Bytes(0));
  EXPECT_EQ(CheckedAlignUp(Bytes(1), Bytes(256)), Bytes(256));
  EXPECT_EQ(CheckedAlignUp(Bytes(257), Bytes(256)), Bytes(512));
  EXPECT_EQ(CheckedAlignUp(Bytes(kMax), Bytes(1)), Bytes(kMax));
  EXPECT_EQ(CheckedAlignUp(Bytes(kMax - 254), Bytes(256)), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(Bytes(kMax), Bytes(256)), std::nullopt);
}

TEST(UnitsTest, PagesForNeverOverflows) {
  EXPECT_EQ(PagesFor(Bytes(0), MiB(2)), PageCount(0));
  EXPECT_EQ(PagesFor(Bytes(1), MiB(2)), PageCount(1));
  EXPECT_EQ(PagesFor(MiB(2), MiB(2)), PageCount(1));
  EXPECT_EQ(PagesFor(Bytes(kMax), MiB(2)), PageCount(uint64_t{1} << 43));
  EXPECT_EQ(CheckedBytes(PageCount(uint64_t{1} << 43), MiB(2)), std::nullopt);
}

TEST(UnitsTest, ParsesBinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("4096"), Bytes(4096));
  EXPECT_EQ(ParseBytes("8GiB"), GiB(8));
  EXPECT_EQ(ParseBytes(" 64 MiB "), MiB(64));
  EXPECT_EQ(ParseBytes("2m"), MiB(2));
  EXPECT_EQ(ParseBytes("1.5GB"), Bytes(1500000000));
  EXPECT_EQ(ParseBytes("0.5KiB"), Bytes(512));
  EXPECT_EQ(ParseBytes("1EiB"), Bytes(uint64_t{1} << 60));
  EXPECT_EQ(ParseBytes("15E"), Bytes(uint64_t{15} << 60));
  EXPECT_EQ(ParseBytes("1EB"), Bytes(1'000'000'000'000'000'000));
  EXPECT_EQ(ParseBytes("16EiB"), std::nullopt);
}

TEST(UnitsTest, RejectsWhatIsNoSize) {
  for (const char* text : {"", " ", "GiB", "-1", "1.", ".5", "1 2", "3XB",
                           "18446744073709551616", "16384PiB 1", "99999999PiB"})
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
}

TEST(UnitsTest, FormatsWithTwoDigits) {
  EXPECT_EQ(FormatBytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(FormatBytes(KiB(1)), "1.00 KiB");
  EXPECT_EQ(FormatBytes(Bytes(1610612736)), "1.50 GiB");
  EXPECT_EQ(FormatBytes(Bytes(kMax)), "16.00 EiB");
}

}  // namespace
}  // namespace quire
