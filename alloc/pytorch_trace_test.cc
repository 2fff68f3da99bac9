#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "alloc/testing/pickle_text.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using namespace pickle_text;  // NOLINT: a vocabulary for tests
using ::testing::HasSubstr;

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string Event(const std::string& action, int64_t address, int64_t size,
                  int64_t stream = 0, int64_t time = 0) {
  return Dict({{"action", Text(action)},
               {"addr", Number(address)},
               {"size", Number(size)},
               {"stream", Number(stream)},
               {"time_us", Number(time)},
               {"frames", List({})}});
}
std::string Block(const std::string& state, int64_t size, int64_t requested,
                  Fields more = {}) {
  more.push_back({"state", Text(state)});
  more.push_back({"size", Number(size)});
  more.push_back({"requested_size", Number(requested)});
  return Dict(more);
}
std::string Segment(int64_t device, int64_t address, int64_t stream,
                    const std::vector<std::string>& blocks) {
  return Dict({{"device", Number(device)},
               {"address", Number(address)},
               {"stream", Number(stream)},
               {"blocks", List(blocks)}});
}
std::string Snapshot(const std::vector<std::string>& devices,
                     const std::vector<std::string>& segments = {}) {
  return Pickle(
      Dict({{"segments", List(segments)}, {"device_traces", List(devices)}}));
}

AllocationTrace Read(const std::string& pickle,
                     const PyTorchTraceOptions& options = {}) {
  const auto trace = ReadPyTorchSnapshot(pickle, options);
  EXPECT_TRUE(trace.ok()) << trace.status();
  if (!trace.ok()) return AllocationTrace();
  EXPECT_EQ(CheckAllocationTrace(*trace), absl::OkStatus());
  return *trace;
}
std::string ErrorOf(const std::string& pickle,
                    const PyTorchTraceOptions& options = {}) {
  const auto trace = ReadPyTorchSnapshot(pickle, options);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(trace.status().message());
}

TEST(PyTorchTraceTest, AllocationsEndWhenTheirFreeIsCompleted) {
  const AllocationTrace trace = Read(Snapshot({List({
      Event("segment_alloc", 0x1000, 2097152, 5, 1000),
      Event("alloc", 0x1000, 300, 5, 1001),
      Event("free_requested", 0x1000, 300, 5, 1002),
      Event("alloc", 0x2000, 400, 6, 1003),
      Event("free_completed", 0x1000, 300, 5, 1004),
      Event("alloc", 0x1000, 500, 5, 1005),
      Event("oom", 123, 1 << 30, 5, 1006),
      Event("segment_unmap", 0x1000, 2097152, 5, 1007),
      Event("snapshot", 0, 0, 0, 1008),
      Event("of a later version", 0, 0, 0, 1009),
  })}));
  std::vector<AllocationAction> actions;
  for (const AllocationEvent& event : trace.events) {
    actions.push_back(event.action);
  }
  using enum AllocationAction;
  EXPECT_THAT(actions,
              ::testing::ElementsAre(kReserve, kAllocate, kAllocate, kFree,
                                     kAllocate, kFailure, kRelease));
  EXPECT_EQ(trace.events[1].size, Bytes(300));
  EXPECT_EQ(trace.events[1].stream, 5u);
  EXPECT_EQ(trace.events[1].nanoseconds, 1000u);
  EXPECT_EQ(trace.events[3].allocation, trace.events[1].allocation);
  EXPECT_EQ(trace.events[5].size, Bytes(1 << 30));
}

TEST(PyTorchTraceTest, WhatNoEventMadeIsOlderThanTheRecording) {
  const AllocationTrace trace = Read(Snapshot(
      {List({
          Event("alloc", 0x7000, 100),
          Event("free_completed", 0x9000, 200),
      })},
      {Segment(0, 0x1000, 8,
               {Block("inactive", 0x1000, 0),
                Block("active_allocated", 0x1000, 0xfff),
                Block("active_pending_free", 0x1000, 0x400),
                Block("active_allocated", 0x1000, 0x700,
                      {{"address", Number(0x4000)}})}),
       Segment(0, 0x7000, 0, {Block("active_allocated", 0x1000, 100)}),
       Segment(1, 0x1000, 0, {Block("active_allocated", 0x9000, 1)})}));
  std::vector<uint64_t> older;
  for (const AllocationEvent& event : trace.events) {
    if (event.action != AllocationAction::kLive) continue;
    older.push_back(event.size.value());
  }
  EXPECT_THAT(older, ::testing::UnorderedElementsAre(200, 0xfff, 0x400, 0x700));
  EXPECT_EQ(trace.events.size(), older.size() + 2);
  EXPECT_EQ(trace.events[1].stream, 8u);
}

TEST(PyTorchTraceTest, OneDeviceIsRead) {
  const std::string first = List({Event("alloc", 1, 11)});
  const std::string second = List({Event("alloc", 1, 22)});
  EXPECT_EQ(Read(Snapshot({List({}), second})).events[0].size, Bytes(22));
  EXPECT_THAT(ErrorOf(Snapshot({first, second})),
              HasSubstr("has events of devices 0, 1: choose one"));
  PyTorchTraceOptions options;
  options.device = DeviceId(1);
  EXPECT_EQ(Read(Snapshot({first, second}), options).events[0].size, Bytes(22));
  options.device = DeviceId(2);
  EXPECT_THAT(ErrorOf(Snapshot({first, second}), options),
              HasSubstr("has events of devices 0, 1, and none of device 2"));
  options.device = DeviceId(-1);
  EXPECT_THAT(ErrorOf(Snapshot({first, second}), options), HasSubstr("-1"));
  EXPECT_THAT(ErrorOf(Snapshot({List({}), List({})})), HasSubstr("no events"));
  options.device = DeviceId(0);
  EXPECT_THAT(ErrorOf(Snapshot({List({}), second}), options),
              HasSubstr("has events of device 1, and none of device 0"));
}

TEST(PyTorchTraceTest, OtherFormatsAreOfOneDevice) {
  PyTorchTraceOptions options;
  options.device = DeviceId(0);
  for (const char* contents :
       {"op,id,bytes\na,1,2\n", "Thread,Time,Action,Pointer,Size,Stream\n",
        "{}"}) {
    const auto trace = ReadAllocationTrace(contents, options);
    EXPECT_THAT(std::string(trace.status().message()),
                HasSubstr("device 0 cannot be chosen"))
        << contents;
  }
}

// What has a place in the format comes back; bench/convert_trace_test.py has
// Python's pickle read it.
TEST(PyTorchTraceTest, WhatIsWrittenIsReadAgain) {
  const auto trace = ReadQuireCsv(
      "t_us,op,id,bytes,stream\n"
      "0,p,0,0,3\n"     // older, and live at the end
      "0,p,1,1000,4\n"  // older, and freed
      "5,s,0,2097152,3\n"
      "5,a,2,300,3\n"
      "6,r,2,0,4\n"
      "7,x,0,1099511627776,3\n"
      "8,f,1,0,4\n"
      "9,f,2,0,7\n"
      "9,a,3,513,9\n"
      "10,d,0,2097152,3\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto pickle = WritePyTorchSnapshot(*trace);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const AllocationTrace again = Read(*pickle);
  std::vector<std::string> told;
  for (const AllocationEvent& event : again.events) {
    std::ostringstream text;
    text << AllocationActionName(event.action) << " " << event.size.value()
         << " " << event.stream << " " << event.nanoseconds;
    told.push_back(text.str());
  }
  EXPECT_THAT(std::vector<std::string>(told.begin(), told.begin() + 2),
              ::testing::UnorderedElementsAre("live 0 3 0", "live 1000 4 0"));
  EXPECT_THAT(
      std::vector<std::string>(told.begin() + 2, told.end()),
      ::testing::ElementsAre("reserve 2097152 3 0", "allocate 300 3 0",
                             "failure 1099511627776 3 2000", "free 1000 4 3000",
                             "free 300 7 4000", "allocate 513 9 4000",
                             "release 2097152 3 5000"));
}

TEST(PyTorchTraceTest, NumbersThatPyTorchDoesNotHaveAreNotWritten) {
  for (const char* row :
       {"a,1,9223372036854775808,0", "a,1,1,9223372036854775808",
        "a,1,9223372036854775000,0"}) {
    const auto trace = ReadQuireCsv("op,id,bytes,stream\na,0,9000000000,0\n" +
                                    std::string(row) + "\n");
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_THAT(std::string(WritePyTorchSnapshot(*trace).status().message()),
                HasSubstr("event 1 (allocate): "))
        << row;
  }
}

TEST(PyTorchTraceTest, ErrorsNameThePath) {
  EXPECT_THAT(ErrorOf(Pickle(Number(1))), HasSubstr("snapshot is no dict"));
  EXPECT_THAT(ErrorOf(Pickle(Dict({}))), HasSubstr("\"device_traces\""));
  EXPECT_THAT(ErrorOf(Pickle(Dict({{"device_traces", Number(1)}}))),
              HasSubstr("snapshot.device_traces is no list"));
  const auto error_of_event = [](const std::string& event) {
    return ErrorOf(Snapshot({List({Event("alloc", 1, 1), event})}));
  };
  EXPECT_THAT(error_of_event(Number(3)),
              HasSubstr("snapshot.device_traces[0][1] is no dict"));
  EXPECT_THAT(error_of_event(Event("alloc", 2, -5)),
              HasSubstr("device_traces[0][1].size is no number"));
  EXPECT_THAT(error_of_event(Event("alloc", 1, 5)),
              HasSubstr("[1] allocates what is allocated"));
  EXPECT_THAT(error_of_event(Dict({{"action", Text("alloc")}})),
              HasSubstr("has no \"size\""));
  EXPECT_THAT(error_of_event(Dict({{"action", Number(1)}})),
              HasSubstr("action is no text"));
  EXPECT_THAT(
      ErrorOf(Snapshot({List({Event("alloc", 1, 1)})},
                       {Segment(0, 1, 0, {Block("active_allocated", -1, 1)})})),
      HasSubstr("snapshot.segments[0].blocks[0].size"));
}

}  // namespace
}  // namespace quire
