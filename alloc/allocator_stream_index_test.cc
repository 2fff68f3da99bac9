// Programs that make a stream for each request, and many of them.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"

namespace quire {
namespace {

class AllocatorStreamIndexTest : public AllocatorFixture {
 protected:
  // More than any record has indices for.
  static constexpr int kManyStreams = 200;

  // Each has memory, and leaves some that only it has had back.
  void UseAndDestroyStreams(int count) {
    for (int i = 0; i < count; ++i) {
      const auto stream = driver_->CreateStream(DeviceId(0));
      ASSERT_TRUE(stream.ok()) << stream.status();
      for (const uint64_t size : {256, 4096}) {
        Free(Allocate(size, *stream), *stream);
        Free(Allocate(size, *stream), *stream);
      }
      ASSERT_EQ(driver_->DestroyStream(*stream), absl::OkStatus());
    }
  }
  StreamId StreamOf(DeviceAddress address) {
    const auto info = allocator_->Find(address);
    EXPECT_TRUE(info.has_value());
    return info ? info->stream : StreamId();
  }
};

TEST_F(AllocatorStreamIndexTest, StreamsThatAreGoneAreInNobodysWay) {
  UseAndDestroyStreams(kManyStreams);
  const StreamId stream = MakeStream();
  const auto go_round = [&] {
    for (const uint64_t size : {256, 4096}) {
      Free(Allocate(size, stream), stream);
    }
  };
  for (int i = 0; i < 10; ++i) go_round();
  const uint64_t calls = DriverCalls();
  for (int i = 0; i < 1000; ++i) go_round();
  EXPECT_EQ(DriverCalls(), calls);
}

// Nor do they cost more, the more there were, where memory goes from one stream
// to another.
TEST_F(AllocatorStreamIndexTest, NobodyWaitsForThemOneByOne) {
  const auto calls_of_a_pass = [&] {
    const StreamId from = MakeStream();
    const StreamId to = MakeStream();
    const auto pass_on = [&] {
      Free(Allocate(4096, from), from);
      Free(Allocate(4096, from), to);
    };
    for (int i = 0; i < 10; ++i) pass_on();
    const uint64_t calls = DriverCalls();
    for (int i = 0; i < 10; ++i) pass_on();
    return DriverCalls() - calls;
  };
  const uint64_t first = calls_of_a_pass();
  UseAndDestroyStreams(kManyStreams);
  EXPECT_LE(calls_of_a_pass(), 2 * first);
}

TEST_F(AllocatorStreamIndexTest, LiveBlocksSayForWhichStreamTheyWere) {
  const auto gone = driver_->CreateStream(DeviceId(0));
  ASSERT_TRUE(gone.ok());
  const DeviceAddress block = Allocate(4096, *gone);
  ASSERT_EQ(driver_->DestroyStream(*gone), absl::OkStatus());
  UseAndDestroyStreams(kManyStreams);
  const StreamId stream = MakeStream();
  const DeviceAddress other = Allocate(4096, stream);
  EXPECT_EQ(StreamOf(block), *gone);
  EXPECT_EQ(StreamOf(other), stream);
  Free(block);
  Free(other, stream);
}

// What a stream that has the index of another one still uses is nobody's.
TEST_F(AllocatorStreamIndexTest, WhoHasAnIndexAgainIsWaitedFor) {
  UseAndDestroyStreams(kManyStreams);
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  for (const uint64_t size : {256, 4096}) {
    Gate gate(driver_.get(), stream);
    const DeviceAddress block = Allocate(size, stream);
    Free(block, stream);
    const DeviceAddress again = Allocate(size, stream);
    ASSERT_EQ(again, block);
    Free(again, other);
    ASSERT_EQ(driver_->SynchronizeStream(other), absl::OkStatus());
    std::vector<DeviceAddress> all;
    for (int i = 0; i < 40; ++i) {
      all.push_back(Allocate(size));
      EXPECT_NE(all.back(), block);
    }
    for (const DeviceAddress address : all) Free(address);
    gate.Open();
    ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  }
}

// A stream and an owner each have a cache of their own.
TEST_F(AllocatorStreamIndexTest, AThreadMayServeManyAtOnce) {
  std::vector<StreamId> streams;
  for (int i = 0; i < 24; ++i) streams.push_back(MakeStream());
  const auto go_round = [&] {
    for (const StreamId stream : streams) {
      Free(Allocate(512, stream), stream);
    }
  };
  for (int i = 0; i < 10; ++i) go_round();
  const uint64_t calls = DriverCalls();
  for (int i = 0; i < 100; ++i) go_round();
  EXPECT_EQ(DriverCalls(), calls);
}

}  // namespace
}  // namespace quire
