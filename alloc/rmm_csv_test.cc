#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] = "Thread,Time,Action,Pointer,Size,Stream\n";

AllocationTrace Read(const std::string& lines) {
  const auto trace = ReadRmmCsv(kHeader + lines);
  EXPECT_TRUE(trace.ok()) << trace.status();
  if (!trace.ok()) return AllocationTrace();
  EXPECT_EQ(CheckAllocationTrace(*trace), absl::OkStatus());
  return *trace;
}

std::string ErrorOf(const std::string& contents) {
  const auto trace = ReadRmmCsv(contents);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument)
      << contents;
  return std::string(trace.status().message());
}

// Lines as the documentation of Spark's RAPIDS plug-in shows them.
TEST(RmmCsvTest, ReadsWhatRmmLogs) {
  const AllocationTrace trace = Read(
      "1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n"
      "1979932,14:21:20.000000,allocate failure,(nil),99999999999,0x2\n"
      "1980043,14:21:32.661875,free,0x30a000000,256,0x2\n");
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[0].action, AllocationAction::kAllocate);
  EXPECT_EQ(trace.events[0].nanoseconds, 0u);
  EXPECT_EQ(trace.events[0].thread, 1979932u);
  EXPECT_EQ(trace.events[0].stream, 2u);
  EXPECT_EQ(trace.events[0].size, Bytes(256));
  EXPECT_EQ(trace.events[1].action, AllocationAction::kFailure);
  EXPECT_EQ(trace.events[1].size, Bytes(99999999999));
  EXPECT_EQ(trace.events[2].action, AllocationAction::kFree);
  EXPECT_EQ(trace.events[2].nanoseconds, 12'663'342'000u);
}

// rapidsai/rmm#2553: all streams were read as the default stream.
TEST(RmmCsvTest, Rmm2553StreamsAreNotAllTheSame) {
  const AllocationTrace trace = Read(
      "1,00:00:00.000000,allocate,0x100,1,0\n"
      "1,00:00:00.000000,allocate,0x200,1,0x7f8a38001020\n"
      "1,00:00:00.000000,allocate,0x300,1,(nil)\n"
      "1,00:00:00.000000,allocate,0x400,1,2\n");
  EXPECT_EQ(trace.events[0].stream, 0u);
  EXPECT_EQ(trace.events[1].stream, 0x7f8a38001020u);
  EXPECT_EQ(trace.events[2].stream, 0u);
  EXPECT_EQ(trace.events[3].stream, 2u);
}

TEST(RmmCsvTest, PointersAreHexadecimalWithOrWithoutAPrefix) {
  const AllocationTrace trace = Read(
      "1,00:00:00.000000,allocate,0x30a000000,1,0\n"
      "1,00:00:00.000000,free,30a000000,1,0\n");
  EXPECT_EQ(trace.events[0].allocation, trace.events[1].allocation);
}

TEST(RmmCsvTest, ADayIsAddedAtMidnightAndSmallStepsBackAreNone) {
  const AllocationTrace trace = Read(
      "1,23:59:59:900000,allocate,0x100,1,0\n"  // older versions: a colon
      "2,23:59:59:800000,allocate,0x200,1,0\n"
      "1,00:00:00:100000,free,0x100,1,0\n"
      "1,13:00:00:000000,free,0x200,1,0\n");
  EXPECT_EQ(trace.events[1].nanoseconds, 0u);
  EXPECT_EQ(trace.events[2].nanoseconds, 200'000'000u);
  EXPECT_EQ(trace.events[3].nanoseconds, 13 * 3'600'000'000'000 + 100'000'000);
}

TEST(RmmCsvTest, WhatIsFreedAndWasNotAllocatedIsOlderThanTheLog) {
  const AllocationTrace trace = Read(
      "1,00:00:00.000000,allocate,0x100,1,0\n"
      "1,00:00:00.000000,free,0x500,4096,0x9\n");
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[0].action, AllocationAction::kLive);
  EXPECT_EQ(trace.events[0].size, Bytes(4096));
  EXPECT_EQ(trace.events[0].stream, 9u);
}

TEST(RmmCsvTest, NullForNothingMayBeGivenOften) {
  EXPECT_TRUE(Read("1,00:00:00.000000,allocate,(nil),0,0\n"
                   "1,00:00:00.000000,allocate,(nil),0,0\n"
                   "1,00:00:00.000000,free,(nil),0,0\n")
                  .events.empty());
}

TEST(RmmCsvTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(ErrorOf("Thread,Time,Action,Pointer,Size\n"),
              HasSubstr("no column \"Stream\""));
  const auto error_of_line = [](const std::string& line) {
    return ErrorOf(kHeader + line + "\n");
  };
  EXPECT_THAT(error_of_line("x,00:00:00.000000,free,0x1,1,0"),
              HasSubstr("line 2, column \"Thread\""));
  for (const char* time :
       {"24:00:00.000000", "00:60:00.000000", "00:00:00", "1634567890.123456",
        "00:00:61.000000", "00.00:00.000000", ""}) {
    EXPECT_THAT(error_of_line(absl::StrCat("1,", time, ",free,0x1,1,0")),
                HasSubstr("column \"Time\""))
        << time;
  }
  EXPECT_THAT(error_of_line("1,00:00:00.000000,deallocate,0x1,1,0"),
              HasSubstr("column \"Action\""));
  EXPECT_THAT(error_of_line("1,00:00:00.000000,free,0xz,1,0"),
              HasSubstr("column \"Pointer\""));
  EXPECT_THAT(error_of_line("1,00:00:00.000000,free,0x1,1.5,0"),
              HasSubstr("column \"Size\""));
  EXPECT_THAT(error_of_line("1,00:00:00.000000,free,0x1,1,stream"),
              HasSubstr("column \"Stream\""));
  EXPECT_THAT(error_of_line("1,00:00:00.000000,allocate,0x1,1,0\n"
                            "1,00:00:00.000000,allocate,0x1,1,0"),
              HasSubstr("line 3, column \"Pointer\""));
}

TEST(RmmCsvTest, WhatIsWrittenIsWhatRmmWouldHaveLogged) {
  const auto trace = ReadQuireCsv(
      "t_us,thread,op,id,bytes,alignment,stream,owner\n"
      "0,1,live,0,100,0,0,\n"
      "3723000004,1,alloc,1,200,4096,31,kv\n"
      "3723000005,2,record,1,0,0,4,\n"
      "3723000006,2,fail,0,7,0,4,kv\n"
      "3723000007,2,reserve,0,2097152,0,4,\n"
      "3723000008,2,free,1,0,0,31,\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(WriteRmmCsv(*trace),
            "Thread,Time,Action,Pointer,Size,Stream\n"
            "1,00:00:00.000000,allocate,0x100,100,0\n"
            "1,01:02:03.000004,allocate,0x200,200,0x1f\n"
            "2,01:02:03.000006,allocate failure,(nil),7,0x4\n"
            "2,01:02:03.000008,free,0x200,200,0x1f\n");
}

}  // namespace
}  // namespace quire
