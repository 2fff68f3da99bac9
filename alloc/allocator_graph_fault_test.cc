// What can go wrong with graphs and their pools: calls that make no sense,
// memory that is not there, captures that fail, drivers that refuse.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "alloc/testing/allocator_graph_fixture.h"
#include "alloc/testing/expect_status.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/driver_call.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorGraphFaultTest : public AllocatorGraphFixture {};

TEST_F(AllocatorGraphFaultTest, RefusesWhatMakesNoSense) {
  const StreamId stream = MakeStream();
  EXPECT_STATUS(kInvalidArgument, "owner",
                allocator_->CreateGraphPool(OwnerId(kMaxOwners)).status());
  const GraphPoolId pool = CreatePool();
  EXPECT_STATUS(kNotFound, "graph pool 77",
                allocator_->BeginGraphCapture(GraphPoolId(77), stream));
  EXPECT_STATUS(kNotFound, "graph pool 0",
                allocator_->ReleaseGraphPool(GraphPoolId(), {}));
  EXPECT_STATUS(kInvalidArgument, "without a stream",
                allocator_->BeginGraphCapture(pool, StreamId()));
  EXPECT_STATUS(kNotFound, "",
                allocator_->BeginGraphCapture(pool, StreamId(12345)));
  EXPECT_STATUS(kFailedPrecondition, "not captured",
                allocator_->EndGraphCapture(stream));
  Begin(pool, stream);
  EXPECT_STATUS(kFailedPrecondition, "captured already",
                allocator_->BeginGraphCapture(pool, stream));
  EXPECT_STATUS(kFailedPrecondition, "captured already",
                allocator_->BeginGraphCapture(CreatePool(), stream));
  EXPECT_STATUS(kFailedPrecondition, "1 captures",
                allocator_->ReleaseGraphPool(pool, {}));
  const GraphPoolId other = CreatePool();
  EXPECT_STATUS(kFailedPrecondition, "is captured",
                allocator_->ReleaseGraphPool(other, {&stream, 1}));
  const StreamId none;
  EXPECT_STATUS(kInvalidArgument, "",
                allocator_->ReleaseGraphPool(other, {&none, 1}));
  End(stream);
  EXPECT_STATUS(kFailedPrecondition, "not captured",
                allocator_->EndGraphCapture(stream));
  Release(pool);
  EXPECT_STATUS(kNotFound, "graph pool",
                allocator_->ReleaseGraphPool(pool, {}));
}

TEST_F(AllocatorGraphFaultTest, AnOwnerWithAPoolCannotSleep) {
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok()) << section.status();
  const GraphPoolId pool = CreatePool(kOwner);
  EXPECT_STATUS(kFailedPrecondition, absl::StrCat("graph pool ", pool.value()),
                allocator_->Sleep(*section, kOwner).status());
  Release(pool);
  EXPECT_TRUE(allocator_->Sleep(*section, kOwner).ok());
  EXPECT_STATUS(kFailedPrecondition, "asleep",
                allocator_->CreateGraphPool(kOwner).status());
  EXPECT_TRUE(allocator_->Wake(kOwner).ok());
}

// Owners come and go between sleep and waking, and the stream stays captured.
TEST_F(AllocatorGraphFaultTest, SleepLeavesTheCachesOfACapturedStreamStopped) {
  const StreamId stream = MakeStream();
  const DeviceAddress cached = Allocate(700, stream);
  Free(cached, stream);
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok()) << section.status();
  EXPECT_TRUE(allocator_->Sleep(*section, kOwner).ok());
  EXPECT_TRUE(allocator_->Wake(kOwner).ok());
  const uint64_t before = Statistics().graph_pool_bytes;
  Allocate(700, stream);
  EXPECT_GT(Statistics().graph_pool_bytes, before);
  End(stream);
  Release(pool);
}

TEST_F(AllocatorGraphFaultTest, ACaptureThatFindsNoMemoryGoesOn) {
  const StreamId stream = MakeStream();
  const DeviceAddress most = AllocatePages(kLimitPages - 4);
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const DeviceAddress range = AllocatePages(4, stream);
  AllocateOptions options;
  options.stream = stream;
  ExpectOutOfMemory(kPageBytes, options);
  Free(range, stream);
  // The range that is there serves what is shorter, and stays whole.
  EXPECT_EQ(AllocatePages(1, stream), range);
  EXPECT_EQ(Statistics().graph_pool_bytes, 4 * kPageBytes);
  End(stream);
  Free(most);
  Free(range, stream);
  Release(pool, {stream});
}

// A capture that failed left its pool behind, with all memory in it.
TEST_F(AllocatorGraphFaultTest, PyTorch190348AFailedCaptureLeaksNoPool) {
  const StreamId stream = MakeStream();
  for (int i = 0; i < 20; ++i) {
    const GraphPoolId pool = CreatePool();
    Begin(pool, stream);
    Use(stream);
    const DeviceAddress large = AllocatePages(kLimitPages / 2, stream);
    const DeviceAddress small = Allocate(300, stream);
    // The driver says that the capture is invalid; the stack unwinds, some of
    // it after the end.
    Free(small, stream);
    End(stream);
    Free(large, stream);
    Release(pool, {stream});
    ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
    allocator_->Trim();
    ASSERT_EQ(Statistics().mapped_bytes, 0u) << i;
    ASSERT_EQ(Statistics().live_allocations, 0u);
  }
  Free(AllocatePages(kLimitPages));
}

TEST_F(AllocatorGraphFaultTest, AnAllocatorMayEndWithPools) {
  const StreamId stream = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  Use(stream);
  Allocate(5000, stream);
  AllocatePages(3, stream);
  End(stream);
  const GraphPoolId released = CreatePool();
  Begin(released, stream);
  AllocatePages(3, stream);
  End(stream);
  Release(released, {stream});
  allocator_.reset();
  EXPECT_EQ(memory_->GetStatistics().mapped, Bytes(0));
}

// ---- Faults -----------------------------------------------------------------

// Every driver call of every operation fails once: nothing changes, and the
// same operation succeeds then.
TEST_F(AllocatorGraphFaultTest, EveryFailureChangesNothing) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  enum Step { kBegin, kSmall, kLarge, kFree, kEnd, kFreeLater, kRelease };
  for (const Step failing :
       {kBegin, kSmall, kLarge, kFree, kEnd, kFreeLater, kRelease}) {
    for (size_t kind = 0; kind < kDriverCallCount; ++kind) {
      const auto call = static_cast<DriverCall>(kind);
      // What the driver does not take back is left to it.
      if (call == DriverCall::kDestroyEvent) continue;
      bool fired = true;
      for (uint64_t n = 1; fired; ++n) {
        SCOPED_TRACE(::testing::Message() << "step " << failing << " "
                                          << DriverCallName(call) << " " << n);
        ASSERT_LT(n, 100u);
        MakeStack({});
        Free(Allocate(700, stream), stream);
        const GraphPoolId pool = CreatePool();
        DeviceAddress small;
        DeviceAddress large;
        DeviceAddress freed;
        const auto allocate = [&](uint64_t size, DeviceAddress* address) {
          AllocateOptions options;
          options.stream = stream;
          const auto allocated = allocator_->Allocate(Bytes(size), options);
          if (allocated.ok()) *address = *allocated;
          return allocated.status();
        };
        fired = false;
        const auto run = [&](Step step, const auto& operation) {
          if (step != failing) {
            EXPECT_EQ(operation(), absl::OkStatus());
            return;
          }
          const AllocatorStatistics before = Statistics();
          const uint64_t fired_before = faulty_->faults_fired();
          faulty_->FailCall(call, n, absl::StatusCode::kInternal);
          const absl::Status status = operation();
          fired = faulty_->faults_fired() > fired_before;
          faulty_->ClearFaults();
          EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
          EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
          if (status.ok()) return;
          EXPECT_TRUE(fired) << status;
          EXPECT_EQ(Statistics().live_bytes, before.live_bytes);
          EXPECT_EQ(Statistics().total_frees, before.total_frees);
          EXPECT_EQ(Statistics().graph_pool_bytes, before.graph_pool_bytes);
          EXPECT_EQ(operation(), absl::OkStatus());
        };
        run(kBegin,
            [&] { return allocator_->BeginGraphCapture(pool, stream); });
        driver().BeginCapture(stream);
        run(kSmall, [&] { return allocate(5000, &small); });
        run(kLarge, [&] { return allocate(3 * kPageBytes, &large); });
        EXPECT_EQ(allocate(2 * kPageBytes, &freed), absl::OkStatus());
        run(kFree, [&] { return allocator_->Free(freed, stream); });
        driver().EndCapture(stream);
        run(kEnd, [&] { return allocator_->EndGraphCapture(stream); });
        run(kFreeLater, [&] { return allocator_->Free(small, other); });
        run(kRelease, [&] {
          return allocator_->ReleaseGraphPool(pool, {&other, 1});
        });
        Free(large, stream);
        ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
        ASSERT_EQ(driver_->SynchronizeStream(other), absl::OkStatus());
        TakeAll();
        allocator_->Trim();
        EXPECT_EQ(Statistics().live_allocations, 0u);
        EXPECT_EQ(Statistics().mapped_bytes, 0u);
        EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
        EXPECT_THAT(driver().violations(), ::testing::IsEmpty());
      }
    }
  }
}

}  // namespace
}  // namespace quire
