// Each driver call of making a runtime, of describing it and of playing a trace
// on it fails once.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/fault_sweep.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/trace_formats.h"
#include "quire/alloc/trace_replay.h"

namespace quire {
namespace {

class RuntimeFaultTest
    : public AllocatorFixture,
      public ::testing::WithParamInterface<absl::StatusCode> {
 protected:
  RuntimeFaultTest() {
    HostDriverOptions options = DriverOptions();
    options.device_count = 2;
    allocator_.reset();
    MakeDriver(options);
  }
  absl::StatusOr<std::unique_ptr<Runtime>> CreateRuntime() {
    RuntimeOptions options;
    options.page_size = kPage;
    return Runtime::Create(std::make_unique<FaultyDriver>(faulty_.get()),
                           options);
  }
  void ExpectNothingLeft() {
    EXPECT_THAT(driver_->Leaks(), ::testing::IsEmpty());
  }
};

TEST_P(RuntimeFaultTest, ARuntimeThatIsNotMadeLeavesNothing) {
  FailEachDriverCall(
      faulty_.get(), GetParam(), [] {},
      [&] { return CreateRuntime().status(); },
      [&](const absl::Status& /*status*/, bool /*failed*/) {
        ExpectNothingLeft();
      });
}

// A snapshot says what it can.
TEST_P(RuntimeFaultTest, ASnapshotIsWhole) {
  std::unique_ptr<Runtime> runtime;
  nlohmann::json snapshot;
  FailEachDriverCall(
      faulty_.get(), GetParam(),
      [&] {
        auto created = CreateRuntime();
        ASSERT_TRUE(created.ok()) << created.status();
        runtime = *std::move(created);
        for (const uint64_t size : {uint64_t{700}, 3 * kPageBytes}) {
          EXPECT_TRUE(runtime->allocator()->Allocate(Bytes(size)).ok());
        }
      },
      [&] {
        snapshot = BuildMemorySnapshot(*runtime);
        return absl::OkStatus();
      },
      [&](const absl::Status& /*status*/, bool /*failed*/) {
        EXPECT_EQ(CheckMemorySnapshot(snapshot), absl::OkStatus());
        EXPECT_NE(FormatMemoryReport(snapshot), "");
        EXPECT_TRUE(RenderMemoryHtml(snapshot).ok());
        EXPECT_EQ(runtime->allocator()->GetStatistics().live_allocations, 2u);
        runtime.reset();
        ExpectNothingLeft();
      });
}

TEST_P(RuntimeFaultTest, AReplayFreesWhatItAllocated) {
  const auto trace = ReadQuireCsv(
      "thread,op,id,bytes,stream,owner\n"
      "0,live,0,1000,0,\n"
      "0,alloc,1,2000,7,\n"
      "0,alloc,2,200000,0,\n"
      "0,free,0,0,7,\n"
      "0,alloc,3,150000,7,\n"
      "0,free,2,0,0,\n"
      "0,alloc,4,500000,0,\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto replay = [&] {
    return ReplayTrace(*trace, memory_.get(), allocator_.get());
  };
  absl::StatusOr<TraceReplayResult> result = TraceReplayResult();
  FailEachDriverCall(
      faulty_.get(), GetParam(),
      [&] {
        allocator_.reset();
        MakeMemory(Options());
        MakeAllocator();
      },
      [&] {
        result = replay();
        return result.status();
      },
      [&](const absl::Status& status, bool failed) {
        // What is short is a part of the result.
        if (status.ok() && !failed) {
          EXPECT_EQ(result->failures, 0u);
        }
        ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
        EXPECT_EQ(Statistics().live_allocations, 0u);
        const auto again = replay();
        ASSERT_TRUE(again.ok()) << again.status() << " after " << status;
        EXPECT_EQ(again->failures, 0u);
        allocator_.reset();
        memory_.reset();
        ExpectNothingLeft();
      });
}

INSTANTIATE_TEST_SUITE_P(Codes, RuntimeFaultTest,
                         ::testing::Values(absl::StatusCode::kResourceExhausted,
                                           absl::StatusCode::kInternal));

}  // namespace
}  // namespace quire
