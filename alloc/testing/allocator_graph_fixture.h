// An allocator over a driver that plays the part of one with captures: it notes
// each call that CUDA forbids on a captured stream, or that would become a part
// of the graph.

#ifndef QUIRE_ALLOC_TESTING_ALLOCATOR_GRAPH_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_ALLOCATOR_GRAPH_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/mutex.h"

namespace quire {

// Names streams that are captured; passes everything on.
class CapturingDriver : public FaultyDriver {
 public:
  explicit CapturingDriver(Driver* driver) : FaultyDriver(driver) {}

  void BeginCapture(StreamId stream) {
    MutexLock lock(&mutex_);
    captured_.insert(stream);
  }
  void EndCapture(StreamId stream) {
    MutexLock lock(&mutex_);
    captured_.erase(stream);
  }
  std::vector<std::string> violations() const {
    MutexLock lock(&mutex_);
    return violations_;
  }

  absl::Status RecordEvent(EventId event, StreamId stream) override {
    Note("RecordEvent", stream);
    return FaultyDriver::RecordEvent(event, stream);
  }
  absl::Status WaitEvent(StreamId stream, EventId event) override {
    Note("WaitEvent", stream);
    return FaultyDriver::WaitEvent(stream, event);
  }
  absl::Status SynchronizeStream(StreamId stream) override {
    Note("SynchronizeStream", stream);
    return FaultyDriver::SynchronizeStream(stream);
  }
  absl::Status CopyOnDevice(DeviceAddress destination, DeviceAddress source,
                            Bytes size, StreamId stream) override {
    Note("CopyOnDevice", stream);
    return FaultyDriver::CopyOnDevice(destination, source, size, stream);
  }

 private:
  void Note(const char* call, StreamId stream) {
    MutexLock lock(&mutex_);
    if (!captured_.contains(stream)) return;
    violations_.push_back(absl::StrFormat("%s(%u)", call, stream.value()));
  }

  mutable Mutex mutex_;
  std::set<StreamId> captured_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

class AllocatorGraphFixture : public AllocatorFixture {
 protected:
  AllocatorGraphFixture() { MakeStack({}); }
  ~AllocatorGraphFixture() override {
    EXPECT_THAT(driver().violations(), ::testing::IsEmpty());
  }

  void MakeStack(const DeviceAllocatorOptions& options) {
    allocator_.reset();
    memory_.reset();
    faulty_ = std::make_unique<CapturingDriver>(driver_.get());
    MakeMemory(Options());
    MakeAllocator(options);
  }
  CapturingDriver& driver() { return static_cast<CapturingDriver&>(*faulty_); }

  GraphPoolId CreatePool(OwnerId owner = kUnnamedOwner) {
    const auto pool = allocator_->CreateGraphPool(owner);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return pool.value_or(GraphPoolId());
  }
  void Begin(GraphPoolId pool, StreamId stream) {
    EXPECT_EQ(allocator_->BeginGraphCapture(pool, stream), absl::OkStatus());
    driver().BeginCapture(stream);
  }
  void End(StreamId stream) {
    driver().EndCapture(stream);
    EXPECT_EQ(allocator_->EndGraphCapture(stream), absl::OkStatus());
  }
  void Release(GraphPoolId pool, std::vector<StreamId> streams = {}) {
    EXPECT_EQ(allocator_->ReleaseGraphPool(pool, streams), absl::OkStatus());
  }
  // So many allocations of each of some sizes, all freed again on the stream.
  std::map<DeviceAddress, uint64_t> Use(StreamId stream) {
    std::map<DeviceAddress, uint64_t> used;
    for (const uint64_t size :
         {uint64_t{300}, uint64_t{5000}, uint64_t{20000}, 2 * kPageBytes + 5}) {
      for (int i = 0; i < 2; ++i) used[Allocate(size, stream)] = size;
    }
    for (const auto& [address, size] : used) Free(address, stream);
    return used;
  }
  // Everything that can be had, by whomever: freed again.
  std::map<DeviceAddress, uint64_t> TakeAll(StreamId stream = StreamId()) {
    std::map<DeviceAddress, uint64_t> all;
    for (const uint64_t size :
         {4 * kPageBytes, kPageBytes, uint64_t{5000}, uint64_t{300}}) {
      for (;;) {
        AllocateOptions options;
        options.stream = stream;
        const auto address = allocator_->Allocate(Bytes(size), options);
        if (!address.ok()) break;
        all[*address] = size;
      }
    }
    for (const auto& [address, size] : all) Free(address, stream);
    return all;
  }
  static bool Overlap(const std::map<DeviceAddress, uint64_t>& a,
                      const std::map<DeviceAddress, uint64_t>& b) {
    for (const auto& [first, first_size] : a) {
      for (const auto& [second, second_size] : b) {
        if (first.value() < second.value() + second_size &&
            second.value() < first.value() + first_size) {
          return true;
        }
      }
    }
    return false;
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_ALLOCATOR_GRAPH_FIXTURE_H_
