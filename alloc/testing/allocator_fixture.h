// A DeviceAllocator over a small DeviceMemory.

#ifndef QUIRE_ALLOC_TESTING_ALLOCATOR_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_ALLOCATOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/verdict.h"

namespace quire {

class AllocatorFixture : public DeviceMemoryFixture {
 protected:
  AllocatorFixture() { MakeAllocator(); }
  ~AllocatorFixture() override {
    if (allocator_ == nullptr) return;
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    allocator_.reset();
  }

  void MakeAllocator(const DeviceAllocatorOptions& options = {}) {
    allocator_.reset();
    allocator_ = DeviceAllocator::Create(memory_.get(), options);
  }

  DeviceAddress Allocate(uint64_t size, StreamId stream = StreamId()) {
    AllocateOptions options;
    options.stream = stream;
    const auto address = allocator_->Allocate(Bytes(size), options);
    EXPECT_TRUE(address.ok()) << size << " bytes: " << address.status();
    return address.value_or(DeviceAddress());
  }
  DeviceAddress AllocatePages(uint64_t pages, StreamId stream = StreamId()) {
    return Allocate(pages * kPageBytes, stream);
  }
  void Free(DeviceAddress address, StreamId stream = StreamId()) {
    EXPECT_EQ(allocator_->Free(address, stream), absl::OkStatus());
  }
  AllocatorStatistics Statistics() { return allocator_->GetStatistics(); }
  uint64_t DriverCalls() { return driver_->GetCallStatistics().total_count(); }

  // The verdict on a request that cannot be served.
  OutOfMemoryVerdict ExpectOutOfMemory(uint64_t size,
                                       const AllocateOptions& options = {}) {
    const auto address = allocator_->Allocate(Bytes(size), options);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kResourceExhausted)
        << size << " bytes: " << address.status();
    const auto verdict = OutOfMemoryVerdict::FromStatus(address.status());
    EXPECT_TRUE(verdict.has_value()) << address.status();
    if (!verdict) return {};
    EXPECT_EQ(verdict->requested, Bytes(size));
    return *verdict;
  }

  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_ALLOCATOR_FIXTURE_H_
