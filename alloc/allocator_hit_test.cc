// What an allocation and a free that the thread's cache serves do without:
// driver calls, memory of the host, and the allocator's lock.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/failing_new.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/internal_checks.h"

namespace quire {
namespace {

// Once told to, keeps whoever records an event until it is let go.
class StallingDriver : public FaultyDriver {
 public:
  using FaultyDriver::FaultyDriver;

  // Until the next caller is here.
  void AwaitCaller() { arrived_.get_future().wait(); }
  void Stall() { stalls_ = true; }
  void LetGo() { let_go_.set_value(); }
  // Nobody let it go: who should have waited for it.
  bool gave_up() const { return gave_up_; }

  absl::Status RecordEvent(EventId event, StreamId stream) override {
    if (stalls_.exchange(false)) {
      arrived_.set_value();
      gave_up_ = let_go_.get_future().wait_for(std::chrono::seconds(30)) !=
                 std::future_status::ready;
    }
    return FaultyDriver::RecordEvent(event, stream);
  }

 private:
  std::atomic<bool> stalls_{false};
  std::atomic<bool> gave_up_{false};
  std::promise<void> arrived_;
  std::promise<void> let_go_;
};

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
    auto stalling = std::make_unique<StallingDriver>(driver_.get());
    stalling_ = stalling.get();
    faulty_ = std::move(stalling);
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
  StallingDriver* stalling_ = nullptr;
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

// RecordStream of a stream that it does not know asks the driver for an event,
// with the lock, which it keeps meanwhile.
TEST_P(AllocatorHitTest, TakesNoLock) {
  const DeviceAddress address = Allocate(700, streams_of_hits_[1]);
  const StreamId unknown = MakeStream();
  ASSERT_EQ(WarmUp(), absl::OkStatus());
  stalling_->Stall();
  std::thread holder([&] {
    EXPECT_EQ(allocator_->RecordStream(address, unknown), absl::OkStatus());
  });
  stalling_->AwaitCaller();
  const absl::Status status = AllocateAndFree();
  EXPECT_FALSE(stalling_->gave_up());
  stalling_->LetGo();
  holder.join();
  EXPECT_EQ(status, absl::OkStatus());
  Free(address, streams_of_hits_[1]);
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorHitTest, ::testing::Bool(),
                         [](const auto& test) -> std::string {
                           return test.param ? "Traced" : "Untraced";
                         });

}  // namespace
}  // namespace quire
