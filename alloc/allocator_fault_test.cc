// Every driver call that an operation makes is made to fail, of each kind the
// first, then the second and so on, with every code that a driver may give. A
// failed operation changes nothing that a caller can see, the next one
// succeeds, and nothing is left behind at the end.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/driver_call.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

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
    for (size_t kind = 0; kind < kDriverCallCount; ++kind) {
      const auto call = static_cast<DriverCall>(kind);
      // An event or stream that the driver will not take back can only be left
      // to it; see EventsThatTheDriverKeepsDoNoHarm.
      if (call == DriverCall::kDestroyEvent ||
          call == DriverCall::kDestroyStream) {
        continue;
      }
      for (uint64_t n = 1;; ++n) {
        SCOPED_TRACE(::testing::Message() << DriverCallName(call) << " " << n);
        ASSERT_LT(n, 1000u);
        bool fired = false;
        ASSERT_NO_FATAL_FAILURE(
            FailOneCall(call, n, prepare, operation, &fired));
        if (!fired) break;
      }
    }
  }

  void FailOneCall(DriverCall call, uint64_t n,
                   const std::function<void()>& prepare,
                   const std::function<absl::Status()>& operation,
                   bool* fired) {
    MakeStack();
    prepare();
    const AllocatorStatistics before = Statistics();
    const uint64_t fired_before = faulty_->faults_fired();
    faulty_->FailCall(call, n, GetParam());
    const absl::Status status = operation();
    *fired = faulty_->faults_fired() > fired_before;
    faulty_->ClearFaults();
    ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    if (!status.ok()) {
      EXPECT_TRUE(*fired) << status;
      const AllocatorStatistics after = Statistics();
      EXPECT_EQ(after.requested_bytes, before.requested_bytes);
      EXPECT_EQ(after.live_bytes, before.live_bytes);
      EXPECT_EQ(after.live_allocations, before.live_allocations);
      EXPECT_EQ(after.total_allocations, before.total_allocations);
      EXPECT_EQ(after.total_frees, before.total_frees);
      EXPECT_EQ(operation(), absl::OkStatus()) << "after " << status;
      ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    }
    // One call that failed costs nothing for good.
    memory_->Trim(PageCount(UINT64_MAX));
    EXPECT_EQ(memory_->GetStatistics().quarantined, Bytes(0));
    EXPECT_EQ(memory_->Health(), absl::OkStatus());
    TearDownStack();
    // Only the streams of the test are left.
    ASSERT_EQ(driver_->Leaks().size(), streams_.size())
        << ::testing::PrintToString(driver_->Leaks());
  }

  std::vector<Pattern> Sparse(bool movable);

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

// Slabs of 16 slots, one in eight of them live.
std::vector<Pattern> AllocatorFaultTest::Sparse(bool movable) {
  constexpr uint64_t kSlot = kPageBytes / 16;
  AllocateOptions options;
  options.movable = movable;
  std::vector<DeviceAddress> all;
  for (int i = 0; i < 5 * 16; ++i) {
    all.push_back(*allocator_->Allocate(Bytes(kSlot), options));
  }
  std::vector<Pattern> live;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 8 == 3) {
      live.push_back({all[i], kSlot, i});
      live.back().Write();
    } else {
      Free(all[i]);
    }
  }
  allocator_->Trim();
  return live;
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
                 if (memory_->Health().ok()) {
                   for (const Pattern& pattern : live) {
                     EXPECT_TRUE(pattern.Holds());
                   }
                 }
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
