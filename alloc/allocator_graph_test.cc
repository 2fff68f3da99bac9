// What was allocated for a graph stays where it is until the graph is gone.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_graph_fixture.h"
#include "alloc/testing/expect_status.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

class AllocatorGraphTest : public AllocatorGraphFixture {};

TEST_F(AllocatorGraphTest, WhatWasFreedInACaptureIsNobodysButThePools) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const auto graph = Use(stream);
  EXPECT_FALSE(Overlap(graph, TakeAll()));
  EXPECT_FALSE(Overlap(graph, TakeAll(other)));
  End(stream);
  const uint64_t pinned = Statistics().graph_pool_bytes;
  EXPECT_GE(pinned, 4 * kPageBytes);
  EXPECT_FALSE(Overlap(graph, TakeAll(stream)));
  EXPECT_FALSE(Overlap(graph, TakeAll(other)));
  EXPECT_FALSE(Overlap(graph, TakeAll()));
  allocator_->Trim();
  memory_->Trim(PageCount(0));
  // The others' has gone, and nothing of the pool's.
  EXPECT_EQ(Statistics().graph_pool_bytes, pinned);
  EXPECT_EQ(Statistics().mapped_bytes, pinned);
  Release(pool);
  EXPECT_EQ(Statistics().graph_pool_bytes, 0u);
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

TEST_F(AllocatorGraphTest, ThePagesOfAGraphStayUnderItsAddresses) {
  const StreamId stream = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const auto graph = Use(stream);
  End(stream);
  if (!faulty_->device_memory_is_host_memory()) GTEST_SKIP();
  for (const auto& [address, size] : graph) {
    *address.host_pointer<volatile uint64_t>() = address.value();
  }
  TakeAll();
  allocator_->Trim();
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok()) << section.status();
  EXPECT_TRUE(allocator_->Mesh(*section).ok());
  auto pass = allocator_->BeginRelocation(*section);
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_THAT(pass->moves(), ::testing::IsEmpty());
  pass->End();
  memory_->Trim(PageCount(0));
  // A graph writes as it is launched.
  for (const auto& [address, size] : graph) {
    EXPECT_EQ(*address.host_pointer<volatile uint64_t>(), address.value());
  }
  Release(pool);
}

TEST_F(AllocatorGraphTest, ACaptureHasItsOwnMemoryBackAtOnce) {
  const StreamId stream = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  for (const uint64_t size : {uint64_t{700}, uint64_t{26000}, 3 * kPageBytes}) {
    const DeviceAddress first = Allocate(size, stream);
    const uint64_t mapped = Statistics().mapped_bytes;
    Free(first, stream);
    for (int i = 0; i < 5; ++i) {
      const DeviceAddress again = Allocate(size, stream);
      if (size > kPageBytes) {
        EXPECT_EQ(again, first);
      }
      Free(again, stream);
    }
    EXPECT_EQ(Statistics().mapped_bytes, mapped) << size;
  }
  End(stream);
  Release(pool);
}

TEST_F(AllocatorGraphTest, ACaptureTakesNothingThatOthersFreed) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  const auto before = Use(stream);
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  EXPECT_FALSE(Overlap(before, Use(stream)));
  End(stream);
  // After the capture the stream has its own again, from the thread's cache.
  const DeviceAddress own = Allocate(300, stream);
  EXPECT_FALSE(Overlap({{own, 300}}, Use(StreamId())));
  Release(pool);
}

TEST_F(AllocatorGraphTest, AnyOwnersMemoryIsOfThePoolAndItsOwners) {
  const StreamId stream = MakeStream();
  const GraphPoolId pool = CreatePool(kOwner);
  Begin(pool, stream);
  AllocateOptions options;
  options.stream = stream;
  for (const uint64_t size : {uint64_t{700}, 2 * kPageBytes}) {
    const auto address = allocator_->Allocate(Bytes(size), options);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(allocator_->Find(*address)->owner, kOwner);
    EXPECT_EQ(Statistics().mapped_bytes, Statistics().graph_pool_bytes);
    Free(*address, stream);
  }
  EXPECT_GT(memory_->GetOwnerStatistics(kOwner).live, Bytes(0));
  End(stream);
  Release(pool);
  EXPECT_EQ(memory_->GetOwnerStatistics(kOwner).live, Bytes(0));
}

// ---- What outlives the capture ----------------------------------------------

TEST_F(AllocatorGraphTest, WhatIsLiveIsFreedLikeAllElseAndStaysThePools) {
  const StreamId stream = MakeStream();
  const StreamId reader = MakeStream();
  const GraphPoolId pool = CreatePool();
  for (const uint64_t size : {uint64_t{5000}, 3 * kPageBytes}) {
    Begin(pool, stream);
    const DeviceAddress output = Allocate(size, stream);
    End(stream);
    EXPECT_EQ(allocator_->Find(output)->requested, Bytes(size));
    {
      Gate gate(driver_.get(), reader);
      Free(output, reader);
      EXPECT_STATUS(kFailedPrecondition, "", allocator_->Free(output, reader));
      // Another capture does not get it before the reader is done.
      Begin(pool, stream);
      EXPECT_NE(Allocate(size, stream), output);
      End(stream);
    }
    ASSERT_EQ(driver_->SynchronizeStream(reader), absl::OkStatus());
    EXPECT_FALSE(Overlap({{output, size}}, TakeAll(reader)));
    Begin(pool, stream);
    std::set<DeviceAddress> of_pool;
    while (!of_pool.contains(output) && of_pool.size() < 1000) {
      of_pool.insert(Allocate(size, stream));
    }
    EXPECT_TRUE(of_pool.contains(output));
    for (const DeviceAddress address : of_pool) Free(address);
    End(stream);
  }
  Release(pool);
}

TEST_F(AllocatorGraphTest, WhatIsLiveOutlivesThePool) {
  const StreamId stream = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const DeviceAddress small = Allocate(5000, stream);
  const DeviceAddress large = Allocate(3 * kPageBytes, stream);
  const auto gone = Use(stream);
  End(stream);
  {
    Gate gate(driver_.get(), stream);
    Release(pool, {stream});
    EXPECT_EQ(Statistics().graph_pool_bytes, 0u);
    EXPECT_EQ(Statistics().live_allocations, 2u);
    EXPECT_EQ(allocator_->Find(large)->requested, Bytes(3 * kPageBytes));
    EXPECT_FALSE(
        Overlap({{small, 5000}, {large, 3 * kPageBytes}}, Use(StreamId())));
    // The graph may still be running and using it.
    Free(small);
    Free(large);
    EXPECT_GE(Statistics().cooling_bytes, 3 * kPageBytes);
    allocator_->Trim();
    EXPECT_GE(Statistics().mapped_bytes, 3 * kPageBytes);
  }
  Free(AllocatePages(kLimitPages));
  allocator_->Trim();
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
  EXPECT_EQ(Statistics().total_allocations, Statistics().total_frees);
}

TEST_F(AllocatorGraphTest, AReleaseWaitsForTheStreams) {
  const StreamId stream = MakeStream();
  const StreamId launches = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const DeviceAddress all = AllocatePages(kLimitPages, stream);
  Free(all, stream);
  End(stream);
  Gate gate(driver_.get(), launches);
  Release(pool, {launches});
  EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(kLimitPages * kPageBytes));
  gate.OpenAfter(milliseconds(10));
  Free(AllocatePages(kLimitPages));
}

TEST_F(AllocatorGraphTest, WhatCallersFreedWaitsForTheReleaseToo) {
  const StreamId stream = MakeStream();
  const StreamId launches = MakeStream();
  const StreamId reader = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const DeviceAddress output = AllocatePages(3, stream);
  End(stream);
  Gate reading(driver_.get(), reader);
  Free(output, reader);
  Gate launched(driver_.get(), launches);
  Release(pool, {launches});
  reading.Open();
  ASSERT_EQ(driver_->SynchronizeStream(reader), absl::OkStatus());
  allocator_->Trim();
  EXPECT_GE(Statistics().mapped_bytes, 3 * kPageBytes);
  launched.Open();
  ASSERT_EQ(driver_->SynchronizeStream(launches), absl::OkStatus());
  allocator_->Trim();
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

// ---- Several captures -------------------------------------------------------

TEST_F(AllocatorGraphTest, GraphsShareWhatThoseBeforeThemFreed) {
  const GraphPoolId pool = CreatePool();
  const StreamId first = MakeStream();
  Begin(pool, first);
  const auto graph = Use(first);
  const DeviceAddress output = Allocate(5000, first);
  End(first);
  const uint64_t pinned = Statistics().graph_pool_bytes;
  const StreamId second = MakeStream();
  Begin(pool, second);
  const auto next = Use(second);
  EXPECT_TRUE(Overlap(graph, next));
  EXPECT_FALSE(Overlap({{output, 5000}}, next));
  End(second);
  EXPECT_EQ(Statistics().graph_pool_bytes, pinned);
  Free(output, first);
  Release(pool, {first, second});
}

TEST_F(AllocatorGraphTest, GraphsOfSmallerShapesFitIntoThoseOfLarger) {
  const GraphPoolId pool = CreatePool();
  const StreamId stream = MakeStream();
  uint64_t largest = 0;
  for (uint64_t batch = 16; batch > 0; --batch) {
    Begin(pool, stream);
    std::vector<DeviceAddress> activations;
    for (const uint64_t width : {uint64_t{9000}, uint64_t{15000}}) {
      activations.push_back(Allocate(batch * width, stream));
    }
    for (const DeviceAddress address : activations) Free(address, stream);
    End(stream);
    if (largest == 0) largest = Statistics().graph_pool_bytes;
  }
  EXPECT_LE(Statistics().graph_pool_bytes, 3 * largest);
  Release(pool);
}

TEST_F(AllocatorGraphTest, PoolsShareNothing) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  const GraphPoolId first = CreatePool();
  const GraphPoolId second = CreatePool();
  Begin(first, a);
  const auto of_first = Use(a);
  End(a);
  Begin(first, a);
  Begin(second, b);
  const auto of_second = Use(b);
  EXPECT_FALSE(Overlap(of_first, of_second));
  End(b);
  Release(second, {b});
  EXPECT_TRUE(Overlap(of_first, Use(a)));
  End(a);
  Release(first, {a});
}

TEST_F(AllocatorGraphTest, AForkedCaptureKeepsItsStreamsApart) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  const GraphPoolId pool = CreatePool();
  Begin(pool, a);
  Begin(pool, b);
  const auto of_a = Use(a);
  EXPECT_FALSE(Overlap(of_a, Use(b)));
  // What both use is neither's before both captures are over.
  const DeviceAddress both = Allocate(3 * kPageBytes, a);
  EXPECT_EQ(allocator_->RecordStream(both, b), absl::OkStatus());
  Free(both, a);
  EXPECT_NE(Allocate(3 * kPageBytes, a), both);
  EXPECT_NE(Allocate(3 * kPageBytes, b), both);
  End(a);
  EXPECT_FALSE(Overlap(of_a, Use(b)));
  End(b);
  ASSERT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
  ASSERT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
  Begin(pool, b);
  EXPECT_EQ(Allocate(3 * kPageBytes, b), both);
  End(b);
  Release(pool, {a, b});
}

// ---- Others, meanwhile ------------------------------------------------------

TEST_F(AllocatorGraphTest, OthersGoOnAsBefore) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  const DeviceAddress slot = Allocate(700, other);
  Free(slot, other);
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  const uint64_t calls = DriverCalls();
  for (int i = 0; i < 100; ++i) Free(Allocate(700, other), other);
  EXPECT_EQ(DriverCalls(), calls);
  End(stream);
  Release(pool);
}

TEST_F(AllocatorGraphTest, WhatElseIsFreedOnTheStreamWaitsForTheEnd) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  for (const Bytes batch : {Bytes(0), MiB(64)}) {
    DeviceAllocatorOptions options;
    options.fence_batch = batch;
    MakeStack(options);
    const DeviceAddress cached = Allocate(300, stream);
    Free(cached, stream);
    const DeviceAddress small = Allocate(5000, stream);
    const DeviceAddress large = AllocatePages(3, stream);
    const DeviceAddress shared = AllocatePages(2, stream);
    const DeviceAddress late = AllocatePages(2, other);
    const GraphPoolId pool = CreatePool();
    Begin(pool, stream);
    Free(small, stream);
    Free(large, stream);
    EXPECT_EQ(allocator_->RecordStream(shared, other), absl::OkStatus());
    Free(shared, stream);
    EXPECT_EQ(allocator_->RecordStream(late, stream), absl::OkStatus());
    Free(late, other);
    const std::map<DeviceAddress, uint64_t> freed = {{small, 5000},
                                                     {large, 3 * kPageBytes},
                                                     {shared, 2 * kPageBytes},
                                                     {late, 2 * kPageBytes}};
    EXPECT_FALSE(Overlap(freed, TakeAll(other)));
    EXPECT_FALSE(Overlap(freed, Use(stream)));
    End(stream);
    ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
    ASSERT_EQ(driver_->SynchronizeStream(other), absl::OkStatus());
    Release(pool);
    allocator_->Trim();
    memory_->Trim(PageCount(0));
    Free(AllocatePages(kLimitPages, other), other);
  }
}

TEST_F(AllocatorGraphTest, WhatOnlyTheEndOfACaptureGivesBackIsNotPromised) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  constexpr uint64_t kFreed = kLimitPages / 2;
  const DeviceAddress large = AllocatePages(kFreed, stream);
  const GraphPoolId pool = CreatePool();
  Begin(pool, stream);
  Free(large, stream);
  EXPECT_EQ(allocator_->GetLargestPossible().value(),
            (kLimitPages - kFreed) * kPageBytes);
  AllocateOptions options;
  options.stream = other;
  const OutOfMemoryVerdict verdict =
      ExpectOutOfMemory((kFreed + 1) * kPageBytes, options);
  EXPECT_EQ(verdict.kind, ShortageKind::kCooling) << verdict.ToString();
  EXPECT_EQ(verdict.cooling.value(), kFreed * kPageBytes);
  EXPECT_EQ(verdict.largest_possible.value(),
            (kLimitPages - kFreed) * kPageBytes);
  ASSERT_EQ(verdict.awaited.size(), 1u);
  EXPECT_EQ(verdict.awaited[0].stream, stream);
  EXPECT_EQ(verdict.awaited[0].cooling.value(), kFreed * kPageBytes);
  Free(AllocatePages(kLimitPages - kFreed, other), other);
  End(stream);
  EXPECT_EQ(allocator_->GetLargestPossible().value(), kLimitPages * kPageBytes);
  Free(AllocatePages(kLimitPages, other), other);
  Release(pool);
}

TEST_F(AllocatorGraphTest, ThreadsOnOtherStreamsRunDuringCaptures) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, stream = MakeStream(), t] {
      std::mt19937 random(t);
      std::vector<DeviceAddress> live;
      AllocateOptions options;
      options.stream = stream;
      while (!stop) {
        if (live.size() < 8) {
          const auto address = allocator_->Allocate(
              Bytes(random() % (kPageBytes / 2) + 1), options);
          if (address.ok()) live.push_back(*address);
        } else {
          const size_t i = random() % live.size();
          EXPECT_EQ(allocator_->Free(live[i], stream), absl::OkStatus());
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      for (const DeviceAddress address : live) {
        EXPECT_EQ(allocator_->Free(address, stream), absl::OkStatus());
      }
    });
  }
  const StreamId stream = MakeStream();
  for (int i = 0; i < 50; ++i) {
    const GraphPoolId pool = CreatePool();
    Begin(pool, stream);
    const DeviceAddress a = Allocate(700, stream);
    const DeviceAddress b = Allocate(kPageBytes + 9, stream);
    Free(a, stream);
    End(stream);
    Free(b, stream);
    Release(pool, {stream});
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(Statistics().live_allocations, 0u);
  EXPECT_EQ(Statistics().graph_pool_bytes, 0u);
}

}  // namespace
}  // namespace quire
