#include "quire/alloc/fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/run_in_child.h"

namespace quire {
namespace {

using FenceTest = DeviceMemoryFixture;

TEST_F(FenceTest, AFenceThatWasNeverRecordedIsComplete) {
  EXPECT_EQ(*Fence().IsComplete(), true);
  EXPECT_EQ(Fence().Wait(), absl::OkStatus());
  EXPECT_TRUE(Fence().streams().empty());
  EXPECT_EQ(*Fence::Record(driver_.get(), DeviceId(0), {}), Fence());
}

TEST_F(FenceTest, CompletesWhenEveryStreamHasPassedIt) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  Gate gate_a(driver_.get(), a);
  Gate gate_b(driver_.get(), b);
  const std::vector<StreamId> streams = {a, b};
  const auto fence = Fence::Record(driver_.get(), DeviceId(0), streams);
  ASSERT_TRUE(fence.ok()) << fence.status();
  EXPECT_THAT(fence->streams(), ::testing::ElementsAre(a, b));
  EXPECT_EQ(*fence->IsComplete(), false);
  gate_a.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(a).ok());
  EXPECT_EQ(*fence->IsComplete(), false);
  gate_b.Open();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  EXPECT_EQ(*fence->IsComplete(), true);
}

TEST_F(FenceTest, LaterWorkIsNotWaitedFor) {
  const StreamId stream = MakeStream();
  const Fence fence = FenceOn(stream);
  Gate gate(driver_.get(), stream);
  EXPECT_EQ(fence.Wait(), absl::OkStatus());
}

TEST_F(FenceTest, AForkedChildLeavesTheEventsToTheParent) {
  const StreamId stream = MakeStream();
  Fence done = FenceOn(stream);
  ASSERT_EQ(done.Wait(), absl::OkStatus());
  Fence fence = FenceOn(stream);
  EXPECT_EQ(RunInChild([&] {
              const uint64_t calls = faulty_->calls();
              if (!done.IsComplete().value_or(false)) return 1;
              if (!done.Wait().ok()) return 2;
              if (!absl::IsFailedPrecondition(fence.IsComplete().status())) {
                return 3;
              }
              if (!absl::IsFailedPrecondition(fence.Wait())) return 4;
              done = Fence();
              fence = Fence();
              return faulty_->calls() == calls ? 0 : 5;
            }),
            0);
  EXPECT_EQ(fence.Wait(), absl::OkStatus());
  fence = Fence();
  done = Fence();
  EXPECT_EQ(Calls("DestroyEvent"), Calls("CreateEvent"));
}

TEST_F(FenceTest, CopiesShareTheEventsAndTheLastOneGivesThemBack) {
  const StreamId stream = MakeStream();
  Fence copy;
  {
    const Fence fence = FenceOn(stream);
    copy = fence;
    EXPECT_EQ(copy, fence);
    EXPECT_FALSE(copy == FenceOn(stream));
  }
  EXPECT_EQ(copy.Wait(), absl::OkStatus());
  EXPECT_EQ(Calls("DestroyEvent") + 1, Calls("CreateEvent"));
  copy = Fence();
  EXPECT_EQ(Calls("DestroyEvent"), Calls("CreateEvent"));
}

TEST_F(FenceTest, ACompleteFenceAsksTheDriverNoMore) {
  const Fence fence = FenceOn(MakeStream());
  ASSERT_TRUE(fence.Wait().ok());
  const uint64_t queries = Calls("QueryEvent");
  EXPECT_EQ(*fence.IsComplete(), true);
  EXPECT_EQ(Calls("QueryEvent"), queries);
}

TEST_F(FenceTest, TheNullStreamIsRefusedAndNoEventStaysBehind) {
  const std::vector<StreamId> streams = {MakeStream(), StreamId()};
  EXPECT_EQ(Fence::Record(driver_.get(), DeviceId(0), streams).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Calls("DestroyEvent"), Calls("CreateEvent"));
}

}  // namespace
}  // namespace quire
