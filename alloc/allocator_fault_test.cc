// Every driver call that an operation makes is made to fail, of each kind the
// first, then the second and so on, with every code that a driver may give. A
// failed operation changes nothing that a caller can see, the next one
// succeeds, and nothing is left behind at the end.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/fault_sweep.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/driver_call.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

namespace quire {
namespace {

// All that a policy may decide.
class TrimAndMesh final : public CompactionPolicy {
 public:
  std::vector<CompactionLevel> Decide(
      const CompactionFacts& /*facts*/) override {
    return {CompactionLevel::kTrim, CompactionLevel::kMesh};
  }
};

class AllocatorFaultTest
    : public AllocatorFixture,
      public ::testing::WithParamInterface<absl::StatusCode> {
 protected:
  ~AllocatorFaultTest() override { TearDownStack(); }

  void TearDownStack() {
    allocator_.reset();
    memory_.reset();
  }
  void MakeStack() {
    TearDownStack();
    MakeMemory(Options());
    DeviceAllocatorOptions options;
    options.fence_batch = Bytes(0);
    MakeAllocator(options);
  }

  // Runs `operation` on a fresh allocator that `prepare` has brought into a
  // state, failing its n-th driver call of each kind, for every n.
  void FailEachCall(const std::function<void()>& prepare,
                    const std::function<absl::Status()>& operation) {
    AllocatorStatistics before;
    FailEachDriverCall(
        faulty_.get(), GetParam(),
        [&] {
          MakeStack();
          prepare();
          before = Statistics();
        },
        operation,
        [&](const absl::Status& status, bool /*failed*/) {
          CheckOutcome(before, status, operation);
        });
  }

  void CheckOutcome(const AllocatorStatistics& before,
                    const absl::Status& status,
                    const std::function<absl::Status()>& operation) {
    ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    if (!status.ok()) {
      const AllocatorStatistics after = Statistics();
      EXPECT_EQ(after.requested_bytes, before.requested_bytes);
      EXPECT_EQ(after.live_bytes, before.live_bytes);
      EXPECT_EQ(after.live_allocations, before.live_allocations);
      EXPECT_EQ(after.total_allocations, before.total_allocations);
      EXPECT_EQ(after.total_frees, before.total_frees);
      EXPECT_EQ(operation(), absl::OkStatus()) << "after " << status;
      ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    }
    TearDownStack();
    // Only the streams of the test are left.
    ASSERT_EQ(driver_->Leaks().size(), streams_.size())
        << ::testing::PrintToString(driver_->Leaks());
  }

  std::vector<Pattern> Sparse(bool movable);
  std::vector<Pattern> OneOf(int of, int slots, uint64_t slot, bool movable);
  std::vector<Pattern> LiveAndFreed(StreamId stream);
  static void ExpectHeld(const std::vector<Pattern>& live);

  absl::Status TryAllocate(uint64_t size, StreamId stream = StreamId()) {
    AllocateOptions options;
    options.stream = stream;
    return allocator_->Allocate(Bytes(size), options).status();
  }
};

TEST_P(AllocatorFaultTest, FirstAllocations) {
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{100}, uint64_t{26 * 1024}, kPageBytes,
        5 * kPageBytes, kLimitPages * kPageBytes}) {
    FailEachCall([] {}, [&] { return TryAllocate(size); });
  }
}

TEST_P(AllocatorFaultTest, AllocationsThatMakeOthersGiveUpWhatTheyCached) {
  FailEachCall(
      [&] {
        std::vector<DeviceAddress> freed;
        for (int i = 0; i < 7; ++i) freed.push_back(AllocatePages(3));
        for (int i = 0; i < 200; ++i) freed.push_back(Allocate(1024));
        for (const DeviceAddress address : freed) Free(address);
      },
      [&] { return TryAllocate((kLimitPages - 3) * kPageBytes); });
}

TEST_P(AllocatorFaultTest, AllocationsThatTakeWhatCooled) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  FailEachCall(
      [&] {
        std::vector<DeviceAddress> freed;
        for (int i = 0; i < 7; ++i) freed.push_back(AllocatePages(3, a));
        for (int i = 0; i < 200; ++i) freed.push_back(Allocate(1024, a));
        for (size_t i = 0; i < freed.size(); ++i) {
          if (i % 3 == 0) {
            EXPECT_EQ(allocator_->RecordStream(freed[i], b), absl::OkStatus());
          }
          Free(freed[i], i % 2 == 0 ? a : b);
        }
        EXPECT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
        EXPECT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
      },
      [&] { return TryAllocate((kLimitPages - 3) * kPageBytes, b); });
}

TEST_P(AllocatorFaultTest, FreesOnStreams) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  for (const uint64_t size : {uint64_t{1000}, 3 * kPageBytes}) {
    for (const bool recorded : {false, true}) {
      DeviceAddress address;
      FailEachCall(
          [&] {
            address = Allocate(size, a);
            if (recorded) {
              EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
            }
          },
          [&] { return allocator_->Free(address, a); });
    }
    DeviceAddress address;
    FailEachCall([&] { address = Allocate(size, a); },
                 [&] { return allocator_->RecordStream(address, b); });
  }
}

TEST_P(AllocatorFaultTest, Trims) {
  const StreamId a = MakeStream();
  FailEachCall(
      [&] {
        std::vector<DeviceAddress> freed;
        for (int i = 0; i < 5; ++i) freed.push_back(AllocatePages(2, a));
        for (int i = 0; i < 5; ++i) freed.push_back(Allocate(1000, a));
        for (const DeviceAddress address : freed) Free(address, a);
        EXPECT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
      },
      [&] {
        allocator_->Trim();
        return absl::OkStatus();
      });
}

TEST_P(AllocatorFaultTest, TheEnd) {
  const StreamId a = MakeStream();
  FailEachCall(
      [&] {
        Allocate(1000, a);
        Free(AllocatePages(2, a), a);
        AllocatePages(4, a);
      },
      [&] {
        allocator_.reset();
        MakeAllocator();
        return absl::OkStatus();
      });
}

// So many slots, of which one in `of` is live.
std::vector<Pattern> AllocatorFaultTest::OneOf(int of, int slots, uint64_t slot,
                                               bool movable) {
  AllocateOptions options;
  options.movable = movable;
  std::vector<DeviceAddress> all;
  for (int i = 0; i < slots; ++i) {
    all.push_back(*allocator_->Allocate(Bytes(slot), options));
  }
  std::vector<Pattern> live;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % static_cast<size_t>(of) == static_cast<size_t>(of) / 2) {
      live.push_back({all[i], slot, i});
      live.back().Write();
    } else {
      Free(all[i]);
    }
  }
  allocator_->Trim();
  return live;
}

// Slabs of 16 slots, one in eight of them live.
std::vector<Pattern> AllocatorFaultTest::Sparse(bool movable) {
  return OneOf(8, 5 * 16, kPageBytes / 16, movable);
}

// For kOwner: slots, a range and the end of another one, beside free ones.
std::vector<Pattern> AllocatorFaultTest::LiveAndFreed(StreamId stream) {
  std::vector<Pattern> live;
  for (uint64_t i = 0; i < 12; ++i) {
    AllocateOptions options;
    options.owner = kOwner;
    options.stream = stream;
    const uint64_t size = i % 3 == 0 ? 700 : i % 3 == 1 ? 9000 : 100000;
    const auto address = allocator_->Allocate(Bytes(size), options);
    EXPECT_TRUE(address.ok()) << address.status();
    if (i % 2 == 0) {
      Free(*address, stream);
    } else {
      live.push_back({*address, size, i});
      live.back().Write();
    }
  }
  return live;
}

void AllocatorFaultTest::ExpectHeld(const std::vector<Pattern>& live) {
  for (const Pattern& pattern : live) EXPECT_TRUE(pattern.Holds());
}

TEST_P(AllocatorFaultTest, Meshes) {
  std::vector<Pattern> live;
  FailEachCall([&] { live = Sparse(/*movable=*/false); },
               [&]() -> absl::Status {
                 auto section = QuiescentSection::Begin(memory_.get(), {});
                 if (!section.ok()) return section.status();
                 MeshOptions options;
                 options.smallest_slot = Bytes(256);
                 const absl::Status status =
                     allocator_->Mesh(*section, options).status();
                 // Where the driver lost a range, it is not there to be read.
                 if (memory_->Health().ok()) ExpectHeld(live);
                 return status;
               });
}

TEST_P(AllocatorFaultTest, Relocations) {
  std::vector<Pattern> live;
  FailEachCall([&] { live = Sparse(/*movable=*/true); },
               [&]() -> absl::Status {
                 auto section = QuiescentSection::Begin(memory_.get(), {});
                 if (!section.ok()) return section.status();
                 auto pass = allocator_->BeginRelocation(*section);
                 if (!pass.ok()) return pass.status();
                 const absl::Status copied = pass->Copy();
                 // Given up where it fails.
                 if (copied.ok()) pass->End();
                 return copied;
               });
}

TEST_P(AllocatorFaultTest, WhatAPolicyDecides) {
  std::vector<Pattern> live;
  FailEachCall([&] { live = OneOf(2, 24, KiB(32).value(), /*movable=*/false); },
               [&]() -> absl::Status {
                 auto section = QuiescentSection::Begin(memory_.get(), {});
                 if (!section.ok()) return section.status();
                 TrimAndMesh policy;
                 const auto report = allocator_->Compact(*section, &policy);
                 if (report.ok()) {
                   EXPECT_GT(report->moves, 0u);
                 }
                 if (memory_->Health().ok()) ExpectHeld(live);
                 return report.status();
               });
}

TEST_P(AllocatorFaultTest, SleepAndWake) {
  const StreamId a = MakeStream();
  for (const SleepTarget target : {SleepTarget::kHost, SleepTarget::kDrop}) {
    std::vector<Pattern> live;
    const auto prepare = [&] { live = LiveAndFreed(a); };
    const auto sleep = [&]() -> absl::Status {
      auto section = QuiescentSection::Begin(memory_.get(), {&a, 1});
      if (!section.ok()) return section.status();
      SleepOptions options;
      options.target = target;
      const absl::Status status =
          allocator_->Sleep(*section, kOwner, options).status();
      if (!status.ok() && memory_->Health().ok()) ExpectHeld(live);
      return status;
    };
    FailEachCall(prepare, sleep);
    FailEachCall(
        [&] {
          prepare();
          ASSERT_EQ(sleep(), absl::OkStatus());
        },
        [&] {
          const absl::Status status = allocator_->Wake(kOwner).status();
          if (status.ok() && target != SleepTarget::kDrop) ExpectHeld(live);
          return status;
        });
  }
}

TEST_P(AllocatorFaultTest, AllocationsFromTheCachesOfThreads) {
  const StreamId a = MakeStream();
  FailEachCall(
      [&] {
        MakeAllocator();
        std::vector<DeviceAddress> freed;
        for (int i = 0; i < 300; ++i) freed.push_back(Allocate(1024, a));
        for (int i = 0; i < 5; ++i) {
          freed.push_back(Allocate(kPageBytes * 3 / 2, a));
        }
        for (const DeviceAddress address : freed) Free(address, a);
      },
      [&] {
        // Takes pages of its own with it.
        return TryAllocate(kLimitPages / 2 * kPageBytes + 700, a);
      });
}

// One failed map, then a valid one: errors are not sticky.
TEST_P(AllocatorFaultTest, APassingFailureIsOver) {
  MakeStack();
  faulty_->FailCallsFrom(DriverCall::kMap, 1, GetParam());
  EXPECT_FALSE(TryAllocate(kPageBytes).ok());
  EXPECT_FALSE(TryAllocate(100).ok());
  faulty_->ClearFaults();
  EXPECT_EQ(TryAllocate(kPageBytes), absl::OkStatus());
  EXPECT_EQ(TryAllocate(100), absl::OkStatus());
}

TEST_P(AllocatorFaultTest, EventsThatTheDriverKeepsDoNoHarm) {
  const StreamId a = MakeStream();
  MakeStack();
  faulty_->FailCallsFrom(DriverCall::kDestroyEvent, 1, GetParam());
  for (const uint64_t size : {uint64_t{8192}, 4 * kPageBytes}) {
    for (int i = 0; i < 10; ++i) Free(Allocate(size, a), a);
    ASSERT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
    Free(Allocate(size));
  }
  TearDownStack();
  // The next driver knows nothing of them.
  streams_.clear();
  MakeDriver(DriverOptions());
}

// Memory whose fence the driver cannot speak for is nobody's, and nobody waits
// for it.
TEST_P(AllocatorFaultTest, AnEventThatCannotBeAskedIsNotWaitedFor) {
  const StreamId a = MakeStream();
  for (const uint64_t size : {uint64_t{8192}, 4 * kPageBytes}) {
    MakeStack();
    std::vector<DeviceAddress> all;
    for (uint64_t i = 0; i < kLimitPages * kPageBytes / size; ++i) {
      all.push_back(Allocate(size, a));
    }
    for (const DeviceAddress address : all) Free(address, a);
    faulty_->FailCallsFrom(DriverCall::kQueryEvent, 1, GetParam());
    EXPECT_EQ(TryAllocate(size).code(), absl::StatusCode::kResourceExhausted);
    faulty_->ClearFaults();
    EXPECT_EQ(TryAllocate(size), absl::OkStatus());
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, AllocatorFaultTest,
                         ::testing::Values(absl::StatusCode::kResourceExhausted,
                                           absl::StatusCode::kInternal,
                                           absl::StatusCode::kUnavailable,
                                           absl::StatusCode::kNotFound));

}  // namespace
}  // namespace quire
