// What an allocation and a free that the thread's cache serves do without:
// driver calls and memory of the host.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/failing_new.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/internal_checks.h"

namespace quire {
namespace {

class AllocatorHitTest : public AllocatorFixture,
                         public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr std::array<uint64_t, 5> kSizes = {1, 256, 700, 4096, 16384};

  void SetUp() override {
    if (kInternalChecks) {
      GTEST_SKIP() << "checking builds look at everything after each hit";
    }
  }

  AllocatorHitTest() {
    allocator_.reset();
    memory_.reset();
    DeviceMemoryOptions options = Options();
    if (GetParam()) options.trace = &trace_;
    MakeMemory(options);
    DeviceAllocatorOptions allocator_options;
    allocator_options.trace = options.trace;
    // By default it is a small part of this small memory.
    allocator_options.thread_cache = MiB(1);
    MakeAllocator(allocator_options);
    streams_of_hits_ = {StreamId(), MakeStream(), MakeStream()};
  }

  // One of each size on each stream, freed on the stream that it is for.
  absl::Status AllocateAndFree() {
    for (const StreamId stream : streams_of_hits_) {
      for (const uint64_t size : kSizes) {
        const auto address =
            allocator_->Allocate(Bytes(size), {.stream = stream});
        if (!address.ok()) return address.status();
        const absl::Status status = allocator_->Free(*address, stream);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // Until every cache has what it needs: a miss takes from others, now and
  // then.
  absl::Status WarmUp() {
    for (int i = 0; i < 8; ++i) {
      const absl::Status status = AllocateAndFree();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  EventTrace trace_{64};
  std::array<StreamId, 3> streams_of_hits_;
};

TEST_P(AllocatorHitTest, MakesNoDriverCallAndTakesNoHostMemory) {
  ASSERT_EQ(WarmUp(), absl::OkStatus());
  const uint64_t calls = DriverCalls();
  FailingNew::FailAfter(0);
  const absl::Status status = AllocateAndFree();
  const bool asked_for_memory = FailingNew::Stop();
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_FALSE(asked_for_memory);
  EXPECT_EQ(DriverCalls(), calls);
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorHitTest, ::testing::Bool(),
                         [](const auto& test) -> std::string {
                           return test.param ? "Traced" : "Untraced";
                         });

}  // namespace
}  // namespace quire
