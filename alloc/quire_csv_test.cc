#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& contents) {
  const auto trace = ReadQuireCsv(contents);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument)
      << contents;
  return std::string(trace.status().message());
}

// As events from PyTorch were once converted.
TEST(QuireCsvTest, ReadsLettersAndMicroseconds) {
  const auto trace = ReadQuireCsv(
      "t_us,op,id,bytes,stream\n"
      "0,p,0,40960000,0\n"
      "0,s,0,20971520,7\n"
      "12,a,1,2097152,7\n"
      "353,f,1,2097152,7\n"
      "354,a,1,512,0\n"
      "355,d,0,20971520,7\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(CheckAllocationTrace(*trace), absl::OkStatus());
  ASSERT_EQ(trace->events.size(), 6u);
  EXPECT_EQ(trace->events[0].action, AllocationAction::kLive);
  EXPECT_EQ(trace->events[1].action, AllocationAction::kReserve);
  EXPECT_EQ(trace->events[2].action, AllocationAction::kAllocate);
  EXPECT_EQ(trace->events[2].nanoseconds, 12'000u);
  EXPECT_EQ(trace->events[2].stream, 7u);
  EXPECT_EQ(trace->events[3].allocation, trace->events[2].allocation);
  // An id that is used again is another allocation.
  EXPECT_NE(trace->events[4].allocation, trace->events[2].allocation);
  EXPECT_EQ(trace->events[5].action, AllocationAction::kRelease);
}

// As operators of models were recorded.
TEST(QuireCsvTest, ReadsWordsAndPhases) {
  const auto trace = ReadQuireCsv(
      "seq,phase,op,id,bytes,stream\n"
      "0,load,mark,0,0,0\n"
      "1,load,alloc,0,118272,0\n"
      "2,run1,mark,0,0,0\n"
      "3,run1,mark,2,513,0\n"
      "4,run1,free,0,118272,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto label = [&](size_t event) {
    return trace->labels[trace->events[event].label];
  };
  EXPECT_EQ(label(0), "load");
  EXPECT_EQ(label(1), "");  // phases are not owners
  EXPECT_EQ(label(2), "run1");
  EXPECT_EQ(label(3), "run1 2");
  EXPECT_EQ(trace->events[4].action, AllocationAction::kFree);
}

TEST(QuireCsvTest, WhatIsWrittenIsReadAsItWas) {
  const std::string text =
      "t_ns,thread,op,id,bytes,alignment,stream,owner,phase\n"
      "0,0,live,0,100,0,0,,\n"
      "5,1,mark,0,0,0,0,,\"load, first\"\n"
      "6,1,alloc,1,200,4096,3,weights,\n"
      "7,2,record,1,0,0,4,,\n"
      "8,2,fail,0,18446744073709551615,0,4,kv,\n"
      "9,2,reserve,0,2097152,0,4,,\n"
      "10,2,release,0,2097152,0,4,,\n"
      "11,2,free,1,200,0,4,weights,\n"
      "12,2,free,0,100,0,0,,\n";
  const auto trace = ReadQuireCsv(text);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(WriteQuireCsv(*trace), text);
  EXPECT_EQ(trace->events[2].alignment, Bytes(4096));
  EXPECT_EQ(trace->events[2].thread, 1u);
  EXPECT_EQ(trace->labels[trace->events[2].label], "weights");
}

TEST(QuireCsvTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(ErrorOf("op,id\n"), HasSubstr("no column \"bytes\""));
  EXPECT_THAT(ErrorOf("op,id,bytes,steam\n"), HasSubstr("column 4"));
  EXPECT_THAT(ErrorOf("op,id,bytes,t_us,t_ns\n"), HasSubstr("both"));
  const std::string header = "t_us,op,id,bytes,alignment\n";
  EXPECT_THAT(ErrorOf(header + "0,z,0,1,0\n"),
              HasSubstr("line 2, column \"op\": \"z\" is no operation"));
  EXPECT_THAT(ErrorOf(header + "0,a,x,1,0\n"), HasSubstr("column \"id\""));
  EXPECT_THAT(ErrorOf(header + "0,a,0,-1,0\n"), HasSubstr("column \"bytes\""));
  EXPECT_THAT(ErrorOf(header + "0,a,0,1,3\n"), HasSubstr("power of two"));
  EXPECT_THAT(ErrorOf(header + "18446744073709551615,a,0,1,0\n"),
              HasSubstr("column \"t_us\""));
  EXPECT_THAT(ErrorOf(header + "0,a,5,1,0\n0,a,5,1,0\n"),
              HasSubstr("line 3: allocation 5 is live already"));
  EXPECT_THAT(ErrorOf(header + "0,f,5,1,0\n"),
              HasSubstr("line 2: allocation 5 is not live"));
  EXPECT_THAT(ErrorOf(header + "0,a,5,1,0\n0,p,6,1,0\n"),
              HasSubstr("line 3, column \"op\""));
}

TEST(QuireCsvTest, FormatsAreToldApart) {
  EXPECT_TRUE(ReadAllocationTrace("op,id,bytes\na,1,2\n").ok());
  EXPECT_TRUE(ReadAllocationTrace("Thread,Time,Action,Pointer,Size,Stream\n"
                                  "1,14:21:19.998533,allocate,0x30,256,0x2\n")
                  .ok());
  EXPECT_TRUE(
      ReadAllocationTrace("Thread,Time,Action,Pointer,Size,Stream\n").ok());
  EXPECT_FALSE(ReadAllocationTrace("").ok());
  for (const char* old : {"(dp0\nS'segments'\n", "}q\x00U\x08segments"}) {
    EXPECT_THAT(std::string(ReadAllocationTrace(old).status().message()),
                HasSubstr("pickle of protocol 0 or 1"));
  }
  EXPECT_THAT(std::string(ReadAllocationTrace("\x80\x04").status().message()),
              HasSubstr("pickle"));
}

}  // namespace
}  // namespace quire
