#include "quire/alloc/memory_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory_resource>
#include <numeric>
#include <string>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocation_error.h"

namespace quire {
namespace {

class MemoryResourceTest : public AllocatorFixture {};

TEST_F(MemoryResourceTest, ContainersLiveInDeviceMemory) {
  DeviceMemoryResource resource(allocator_.get(), {.owner = kOwner});
  {
    std::pmr::vector<int> numbers(&resource);
    for (int i = 0; i < 50000; ++i) numbers.push_back(i);
    EXPECT_TRUE(memory_->Contains(
        DeviceAddress(reinterpret_cast<uint64_t>(numbers.data()))));
    EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), int64_t{0}),
              int64_t{50000} * 49999 / 2);
    const auto info = allocator_->Find(
        DeviceAddress(reinterpret_cast<uint64_t>(numbers.data())));
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->owner, kOwner);
  }
  EXPECT_EQ(Statistics().live_allocations, 0u);
}

TEST_F(MemoryResourceTest, AlignmentsAndStreamsAreThoseThatWereAskedFor) {
  const StreamId stream = MakeStream();
  DeviceMemoryResource resource(allocator_.get(), {.stream = stream});
  void* const memory = resource.allocate(100, 4096);
  const DeviceAddress address(reinterpret_cast<uint64_t>(memory));
  EXPECT_EQ(address.value() % 4096, 0u);
  EXPECT_EQ(allocator_->Find(address)->stream, stream);
  Gate gate(driver_.get(), stream);
  resource.deallocate(memory, 100, 4096);
  EXPECT_GT(Statistics().cooling_bytes + Statistics().thread_cached_bytes, 0u);
}

TEST_F(MemoryResourceTest, WhatCannotBeHadIsThrownWithItsVerdict) {
  DeviceMemoryResource resource(allocator_.get());
  try {
    (void)resource.allocate(kLimitPages * kPageBytes + 1);
    FAIL() << "more than there is";
  } catch (const AllocationError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("out of device memory"));
    const auto verdict = OutOfMemoryVerdict::FromStatus(error.status());
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->requested.value(), kLimitPages * kPageBytes + 1);
  }
  // As everywhere else.
  EXPECT_THROW((void)resource.allocate(kLimitPages * kPageBytes + 1),
               std::bad_alloc);
  EXPECT_EQ(Statistics().live_allocations, 0u);
}

TEST_F(MemoryResourceTest, ThoseOfOneAllocatorAndStreamAreEqual) {
  const auto other_allocator = DeviceAllocator::Create(memory_.get());
  const DeviceMemoryResource one(allocator_.get());
  const DeviceMemoryResource same(allocator_.get(), {.owner = kOwner});
  const DeviceMemoryResource on_stream(allocator_.get(),
                                       {.stream = MakeStream()});
  const DeviceMemoryResource other(other_allocator.get());
  EXPECT_TRUE(one == same);
  EXPECT_FALSE(one == on_stream);
  EXPECT_FALSE(one == other);
  EXPECT_FALSE(one == *std::pmr::new_delete_resource());
}

}  // namespace
}  // namespace quire
