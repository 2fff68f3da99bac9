#include "quire/alloc/trace_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class TraceReplayTest : public AllocatorFixture {
 protected:
  TraceReplayResult Replay(const std::string& csv,
                           const TraceReplayOptions& options = {}) {
    const auto trace = ReadQuireCsv("thread,op,id,bytes,stream,owner\n" + csv);
    EXPECT_TRUE(trace.ok()) << trace.status();
    if (!trace.ok()) return {};
    const auto result =
        ReplayTrace(*trace, memory_.get(), allocator_.get(), options);
    EXPECT_TRUE(result.ok()) << result.status();
    ExpectNothingLeft();
    return result.value_or(TraceReplayResult());
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(Statistics().live_allocations, 0u);
    EXPECT_EQ(Statistics().requested_bytes, 0u);
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  }
  uint64_t Calls(const TraceReplayResult& result, const std::string& name) {
    for (const auto& [call, count] : result.driver_calls) {
      if (call == name) return count;
    }
    return 0;
  }
};

TEST_F(TraceReplayTest, MeasuresWhatTheTraceAsksFor) {
  const TraceReplayResult result = Replay(
      "0,live,0,1000,0,\n"
      "0,mark,0,0,0,\n"
      "0,alloc,1,2000,0,\n"
      "0,alloc,2,3000,0,\n"
      "0,free,0,0,0,\n"
      "0,alloc,3,500,0,\n"
      "0,free,2,0,0,\n");
  EXPECT_EQ(result.allocations, 4u);
  EXPECT_EQ(result.frees, 2u);
  EXPECT_EQ(result.failures, 0u);
  EXPECT_EQ(result.operations, 5u);  // neither the older one nor the mark
  EXPECT_EQ(result.peak_requested, Bytes(6000));
  EXPECT_GE(result.peak_mapped, Bytes(6000));
  EXPECT_GE(result.peak_in_use, result.peak_mapped);
  EXPECT_GT(Calls(result, "CreatePage"), 0u);
  EXPECT_EQ(Calls(result, "CreateStream"), 0u);
}

TEST_F(TraceReplayTest, MappedMemoryIsThatOfThePool) {
  const TraceReplayResult result =
      Replay("0,alloc,0," + std::to_string(10 * kPageBytes) + ",0,\n");
  EXPECT_EQ(result.peak_mapped, Bytes(10 * kPageBytes));
  EXPECT_EQ(Calls(result, "CreatePage"), 10u);
  TraceReplayOptions options;
  options.measure_peak = false;
  EXPECT_EQ(Replay("0,alloc,0,1,0,\n", options).peak_mapped, Bytes(0));
}

TEST_F(TraceReplayTest, EachStreamOfTheTraceIsOneOfTheDriver) {
  const uint64_t before = driver_->GetCallStatistics().CountOf("CreateStream");
  Replay(
      "0,alloc,0,1000,0,\n"
      "0,alloc,1,1000,140230,\n"
      "0,record,1,0,9,\n"
      "0,free,1,0,0,\n"
      "0,free,0,0,140230,\n");
  const DriverCallStatistics calls = driver_->GetCallStatistics();
  EXPECT_EQ(calls.CountOf("CreateStream") - before, 3u);
  EXPECT_EQ(calls.CountOf("DestroyStream"), 3u);
}

TEST_F(TraceReplayTest, LackOfMemoryIsPartOfTheResult) {
  const std::string too_much = std::to_string(MiB(1).value() << 20);
  const TraceReplayResult result = Replay("0,alloc,0," + too_much + ",0,\n" +
                                          "0,alloc,1,1000,0,\n"
                                          "0,record,0,0,5,\n"
                                          "0,free,0,0,0,\n"
                                          "0,alloc,2," +
                                          too_much + ",0,\n");
  EXPECT_EQ(result.failures, 2u);
  EXPECT_EQ(result.allocations, 1u);
  EXPECT_EQ(result.frees, 0u);
  EXPECT_EQ(result.peak_requested, Bytes(1000));
  EXPECT_TRUE(OutOfMemoryVerdict::FromStatus(result.first_failure).has_value());
}

TEST_F(TraceReplayTest, FailuresOfTheRecordingAreTriedWhereAskedFor) {
  const std::string csv =
      "0,fail,0,1000,0,\n"
      "0,fail,0," +
      std::to_string(uint64_t{1} << 60) + ",0,\n";
  EXPECT_EQ(Replay(csv).operations, 0u);
  TraceReplayOptions options;
  options.try_failures = true;
  const TraceReplayResult result = Replay(csv, options);
  EXPECT_EQ(result.failures_served, 1u);
  EXPECT_EQ(result.failures, 0u);
}

TEST_F(TraceReplayTest, OwnersAreRegisteredByName) {
  OwnerRegistry owners;
  TraceReplayOptions options;
  options.owners = &owners;
  Replay("0,alloc,0,1000,0,weights\n0,alloc,1,1000,0,kv\n", options);
  EXPECT_THAT(owners.Names(),
              ::testing::ElementsAre("unnamed", "weights", "kv"));
}

TEST_F(TraceReplayTest, ATraceThatCannotBePlayedIsRefused) {
  AllocationTrace trace;
  trace.events.resize(1);
  trace.events[0].action = AllocationAction::kFree;
  const auto result = ReplayTrace(trace, memory_.get(), allocator_.get());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("event 0"));
}

// Random traces over streams and threads: what is served does not depend on
// who plays it, and a plain sum says what the peak is.
TEST_F(TraceReplayTest, ThreadsPlayTheSameTrace) {
  std::mt19937_64 random(3);
  std::string csv;
  std::map<uint64_t, uint64_t> live;
  uint64_t requested = 0;
  uint64_t peak = 0;
  for (uint64_t id = 0; id < 400; ++id) {
    const uint64_t size = 1 + random() % 20000;
    csv += std::to_string(random() % 3) + ",alloc," + std::to_string(id) + "," +
           std::to_string(size) + "," + std::to_string(random() % 4) + ",\n";
    live[id] = size;
    requested += size;
    peak = std::max(peak, requested);
    while (live.size() > 20) {
      const auto victim = std::next(
          live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      csv += std::to_string(random() % 3) + ",free," +
             std::to_string(victim->first) + ",0," +
             std::to_string(random() % 4) + ",\n";
      requested -= victim->second;
      live.erase(victim);
    }
  }
  for (const bool use_threads : {false, true}) {
    MakeAllocator();
    TraceReplayOptions options;
    options.use_threads = use_threads;
    const TraceReplayResult result = Replay(csv, options);
    EXPECT_EQ(result.allocations, 400u);
    EXPECT_EQ(result.frees, 380u);
    EXPECT_EQ(result.peak_requested, Bytes(peak));
  }
}

// Traces of real programs, where they are at hand. Their peaks of requested
// bytes are published with them.
TEST(TraceReplayOfRealProgramsTest, PeaksAreThePublishedOnes) {
  const std::filesystem::path traces =
      std::filesystem::path(QUIRE_SOURCE_DIR).parent_path() /
      "shared/traces/model-ops";
  std::ifstream totals(traces / "totals.csv");
  if (!totals) GTEST_SKIP() << "no traces at " << traces;
  std::string line;
  std::getline(totals, line);  // workload,events,weight_bytes,peak_bytes,...
  size_t played = 0;
  while (std::getline(totals, line)) {
    std::istringstream fields(line);
    std::string name, events, weights, peak;
    std::getline(fields, name, ',');
    std::getline(fields, events, ',');
    std::getline(fields, weights, ',');
    std::getline(fields, peak, ',');
    std::ifstream file(traces / (name + ".csv"));
    std::ostringstream contents;
    contents << file.rdbuf();
    const auto trace = ReadAllocationTrace(contents.str());
    ASSERT_TRUE(trace.ok()) << name << ": " << trace.status();
    EXPECT_EQ(trace->events.size(), std::stoull(events)) << name;

    HostDriverOptions device;
    device.memory_per_device = GiB(80);
    device.backing = HostDriverOptions::Backing::kNone;
    const auto driver = HostDriver::Create(device);
    ASSERT_TRUE(driver.ok()) << driver.status();
    OwnerRegistry owners;
    const auto memory = DeviceMemory::Create(driver->get(), &owners, {});
    ASSERT_TRUE(memory.ok()) << memory.status();
    const auto allocator = DeviceAllocator::Create(memory->get());
    const auto result = ReplayTrace(*trace, memory->get(), allocator.get());
    ASSERT_TRUE(result.ok()) << name << ": " << result.status();
    EXPECT_EQ(result->peak_requested, Bytes(std::stoull(peak))) << name;
    EXPECT_EQ(result->failures, 0u) << name;
    EXPECT_EQ(allocator->GetStatistics().requested_bytes, 0u) << name;
    EXPECT_EQ(allocator->CheckInvariants(), absl::OkStatus());
    ++played;
  }
  EXPECT_GT(played, 0u);
}

}  // namespace
}  // namespace quire
