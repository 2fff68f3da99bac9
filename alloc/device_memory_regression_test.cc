// Failures reported against other allocators, as tests of this one. Each names
// the public report that it comes from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using DeviceMemoryRegressionTest = DeviceMemoryFixture;

// pytorch#188008: the access call of the second of several maps failed, and the
// process could not be used afterwards.
TEST_F(DeviceMemoryRegressionTest, Pytorch188008SecondMapFails) {
  AddressRange* const range = Reserve(9);
  for (const uint64_t slot : {2, 5}) ASSERT_TRUE(Commit(range, slot, 1).ok());
  faulty_->FailCall(DriverCall::kMap, 2, absl::StatusCode::kInternal);
  EXPECT_FALSE(Commit(range, 0, 9).ok());
  EXPECT_EQ(Committed(range, 0, 9), 2u);
  ASSERT_TRUE(Commit(range, 0, 9).ok());
  for (uint64_t slot = 0; slot < 9; ++slot) Write(range, slot, slot);
  memory_->ReleaseRange(range, Fence());
}

// pytorch#189504: the only block that fitted waited for an event; the error
// path synchronised and did not search again.
TEST_F(DeviceMemoryRegressionTest, Pytorch189504SearchesAgainAfterWaiting) {
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_TRUE(Decommit(range, 0, kLimitPages, FenceOn(stream)).ok());
  gate.OpenAfter(std::chrono::milliseconds(20));
  AddressRange* const next = Reserve(kLimitPages);
  EXPECT_EQ(Commit(next, 0, kLimitPages), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
  memory_->ReleaseRange(next, Fence());
}

// pytorch#71616: events were looked at in order, so one long stream kept the
// memory of all others from being used again.
TEST_F(DeviceMemoryRegressionTest, Pytorch71616ALongStreamBlocksNoOther) {
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  const StreamId slow = MakeStream();
  Gate slow_gate(driver_.get(), slow);
  // More of them, and earlier, than one decommit looks at.
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(Decommit(range, i, 1, FenceOn(slow)).ok());
  }
  const StreamId fast = MakeStream();
  Gate fast_gate(driver_.get(), fast);
  ASSERT_TRUE(Decommit(range, 8, 8, FenceOn(fast)).ok());
  fast_gate.OpenAfter(std::chrono::milliseconds(10));
  AddressRange* const next = Reserve(8);
  // The slow stream is still held up when this returns.
  EXPECT_EQ(Commit(next, 0, 8), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().cooling.value(), 8 * kPageBytes);
  slow_gate.Open();
  memory_->ReleaseRange(range, Fence());
  memory_->ReleaseRange(next, Fence());
}

// kvcached#437: churn of large allocations ended in an unmap with an invalid
// argument.
TEST_F(DeviceMemoryRegressionTest, Kvcached437LargeChurn) {
  std::mt19937 random(437);
  const StreamId stream = MakeStream();
  struct Sequence {
    AddressRange* range;
    uint64_t length;
  };
  std::vector<Sequence> sequences;
  uint64_t live = 0;
  for (int step = 0; step < 1500; ++step) {
    const uint64_t pages = 1 + random() % 12;
    while (live + pages > kLimitPages || sequences.size() >= 6) {
      const size_t victim = random() % sequences.size();
      live -= sequences[victim].length;
      memory_->ReleaseRange(sequences[victim].range,
                            random() % 2 == 0 ? Fence() : FenceOn(stream));
      sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    AddressRange* const range = Reserve(16);
    // Page by page, so that one range consists of many mappings.
    for (uint64_t i = 0; i < pages; ++i) {
      ASSERT_EQ(Commit(range, i, 1), absl::OkStatus());
    }
    live += pages;
    sequences.push_back({range, pages});
  }
  for (const Sequence& sequence : sequences) {
    memory_->ReleaseRange(sequence.range, Fence());
  }
  EXPECT_EQ(memory_->Health(), absl::OkStatus());
}

// kvcached#412: a batch of maps failed midway and stayed half done.
TEST_F(DeviceMemoryRegressionTest, Kvcached412ABatchIsAllOrNothing) {
  AddressRange* const range = Reserve(20);
  for (uint64_t slot = 1; slot < 20; slot += 2) {
    ASSERT_TRUE(Commit(range, slot, 1).ok());
    Write(range, slot, slot);
  }
  for (uint64_t n = 1; n <= 10; ++n) {
    faulty_->FailCall(DriverCall::kMap, n, absl::StatusCode::kInternal);
    EXPECT_FALSE(Commit(range, 0, 20).ok());
    for (uint64_t slot = 0; slot < 20; ++slot) {
      EXPECT_EQ(Committed(range, slot, 1), slot % 2);
      if (slot % 2 == 1) {
        EXPECT_EQ(Read(range, slot), slot);
      }
    }
  }
  memory_->ReleaseRange(range, Fence());
}

// vllm#45565: the error of one call was reported by the next, valid one.
TEST_F(DeviceMemoryRegressionTest, Vllm45565AnErrorDoesNotStick) {
  AddressRange* const range = Reserve(4);
  EXPECT_FALSE(Commit(range, 3, 2).ok());
  faulty_->FailCall(DriverCall::kCreatePage, 1, absl::StatusCode::kUnavailable);
  EXPECT_EQ(Commit(range, 0, 4).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Commit(range, 0, 4), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
}

// surogate#117: handles made before a failure in the middle of a batch were
// never given back.
TEST_F(DeviceMemoryRegressionTest, Surogate117HandlesReturnToTheBaseline) {
  AddressRange* const range = Reserve(12);
  const auto handles = [this] {
    return Calls("CreatePage") - Calls("ReleasePage");
  };
  const uint64_t baseline = handles();
  for (const DriverCall call : {DriverCall::kCreatePage, DriverCall::kMap}) {
    for (uint64_t n = 1; n <= (call == DriverCall::kMap ? 1 : 12); ++n) {
      faulty_->FailCall(call, n, absl::StatusCode::kInternal);
      EXPECT_FALSE(Commit(range, 0, 12).ok());
      EXPECT_EQ(handles(), baseline);
      EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
    }
  }
  memory_->ReleaseRange(range, Fence());
}

// kvcached#364: a request for several pages that failed at a later one kept the
// earlier ones, and what had been set aside for it.
TEST_F(DeviceMemoryRegressionTest, Kvcached364AFailedGrowthLeavesNothingAside) {
  AddressRange* const range = Reserve(12);
  ASSERT_TRUE(Commit(range, 0, 2).ok());
  const Bytes hard(12 * kPageBytes);
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {.hard = hard}).ok());
  const OwnerStatistics before = memory_->GetOwnerStatistics(kOwner);
  const PageCount largest = memory_->CalculateLargestCommit(kOwner);
  EXPECT_EQ(largest, PageCount(10));
  for (uint64_t n = 1; n <= 10; ++n) {
    faulty_->FailCall(DriverCall::kCreatePage, n, absl::StatusCode::kInternal);
    EXPECT_EQ(Commit(range, 2, 10).code(), absl::StatusCode::kInternal);
    faulty_->FailCall(DriverCall::kCreatePage, n, absl::StatusCode::kInternal);
    EXPECT_EQ(memory_
                  ->Gather(kOwner, PageCount(10), PageCount(10), Bytes(0),
                           /*wait=*/true)
                  .code(),
              absl::StatusCode::kInternal);
    faulty_->ClearFaults();
    const OwnerStatistics after = memory_->GetOwnerStatistics(kOwner);
    EXPECT_EQ(after.live, before.live);
    EXPECT_EQ(after.hard_room, before.hard_room);
    EXPECT_EQ(after.allowance, before.allowance);
    EXPECT_EQ(memory_->GetStatistics().in_use.value(), 2 * kPageBytes);
    EXPECT_EQ(memory_->CalculateLargestCommit(kOwner), largest);
  }
  EXPECT_EQ(Commit(range, 2, 10), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
}

// kvcached#372: a map that failed on one of several devices was reported by
// nobody, and the others waited for it.
TEST_F(DeviceMemoryRegressionTest, Kvcached372EachDeviceSaysWhatFailedOnIt) {
  constexpr size_t kDevices = 3;
  HostDriverOptions driver_options = DriverOptions();
  driver_options.device_count = kDevices;
  MakeDriver(driver_options);
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  std::vector<AddressRange*> ranges;
  for (uint32_t i = 0; i < kDevices; ++i) {
    DeviceMemoryOptions options = Options();
    options.device = DeviceId(i);
    memories.push_back(*DeviceMemory::Create(faulty_.get(), &owners_, options));
    ranges.push_back(*memories[i]->ReserveRange(PageCount(4), kOwner));
  }
  for (const DriverCall call : {DriverCall::kCreatePage, DriverCall::kMap}) {
    const uint64_t calls = call == DriverCall::kMap ? kDevices : 4 * kDevices;
    for (uint64_t n = 1; n <= calls; ++n) {
      faulty_->FailCall(call, n, absl::StatusCode::kInternal);
      // One worker a device; which of them meets the fault is chance.
      std::vector<absl::Status> statuses(kDevices);
      std::vector<std::thread> workers;
      for (size_t i = 0; i < kDevices; ++i) {
        workers.emplace_back([&, i] {
          statuses[i] =
              memories[i]->Commit(ranges[i], PageCount(0), PageCount(4));
        });
      }
      for (std::thread& worker : workers) worker.join();
      size_t failed = 0;
      for (size_t i = 0; i < kDevices; ++i) {
        if (!statuses[i].ok()) ++failed;
        EXPECT_EQ(memories[i]
                      ->CommittedPages(ranges[i], PageCount(0), PageCount(4))
                      .value(),
                  statuses[i].ok() ? 4u : 0u);
        EXPECT_TRUE(
            memories[i]
                ->Decommit(ranges[i], PageCount(0), PageCount(4), Fence())
                .ok());
        memories[i]->Trim();
      }
      EXPECT_EQ(failed, 1u);
    }
  }
}

// kvcached#463, vllm#45615: a page was unmapped while a batch that had been
// queued was still to use it. It did not help to wait for those before.
TEST_F(DeviceMemoryRegressionTest,
       Kvcached463AndVllm45615NothingIsUnmappedUnderWork) {
  const std::vector<StreamId> streams = {MakeStream(), MakeStream()};
  for (const bool release : {false, true}) {
    AddressRange* range = Reserve(4);
    ASSERT_TRUE(Commit(range, 0, 4).ok());
    Gate batch(driver_.get(), streams[0]);
    Gate next_batch(driver_.get(), streams[1]);
    std::atomic<int> written{0};
    for (const StreamId stream : streams) {
      ASSERT_TRUE(
          driver_
              ->LaunchHostFunction(stream,
                                   [&written, address = range->address()] {
                                     std::memset(address.host_pointer<char>(),
                                                 1, 4 * kPageBytes);
                                     ++written;
                                   })
              .ok());
    }
    const auto fence = Fence::Record(faulty_.get(), DeviceId(0), streams);
    ASSERT_TRUE(fence.ok()) << fence.status();
    if (release) {
      memory_->ReleaseRange(std::exchange(range, nullptr), *fence);
    } else {
      ASSERT_TRUE(Decommit(range, 0, 4, *fence).ok());
    }
    // Whatever looks for pages now finds others.
    AddressRange* const others = Reserve(kLimitPages);
    const auto look = [&] {
      EXPECT_TRUE(absl::IsResourceExhausted(
          memory_->TryCommit(others, PageCount(0), PageCount(kLimitPages))));
      memory_->Harvest();
      memory_->Trim(PageCount(0));
      return memory_->GetStatistics().cooling.value() / kPageBytes;
    };
    EXPECT_EQ(look(), 4u);
    batch.Open();
    ASSERT_TRUE(driver_->SynchronizeStream(streams[0]).ok());
    EXPECT_EQ(look(), 4u);
    EXPECT_EQ(written, 1);
    next_batch.Open();
    EXPECT_EQ(Commit(others, 0, kLimitPages), absl::OkStatus());
    EXPECT_EQ(written, 2);
    EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(0));
    memory_->ReleaseRange(others, Fence());
    if (range != nullptr) memory_->ReleaseRange(range, Fence());
  }
}

// kvcached#465: pages were made, and addresses mapped anew, beside kernels that
// ran. What was prepared is made before, and what is taken up again has stayed
// where it was.
TEST_F(DeviceMemoryRegressionTest, Kvcached465NothingIsRemappedBesideWork) {
  ASSERT_TRUE(memory_->Prepare(PageCount(6)).ok());
  AddressRange* const range = Reserve(6);
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  const uint64_t created = Calls("CreatePage");
  const uint64_t mapped = Calls("Map");
  ASSERT_TRUE(Commit(range, 0, 6).ok());
  EXPECT_EQ(Calls("CreatePage"), created);
  EXPECT_EQ(Calls("Map"), mapped + 1);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Decommit(range, 2, 4, FenceOn(stream)).ok());
    ASSERT_TRUE(Commit(range, 1, 5).ok());
  }
  EXPECT_EQ(Calls("CreatePage"), created);
  EXPECT_EQ(Calls("Map"), mapped + 1);
  EXPECT_EQ(Calls("Unmap"), 0u);
  gate.Open();
  memory_->ReleaseRange(range, Fence());
}

// Megatron-LM#6956, vattention#15: sizes were multiples of one granularity
// where another was asked for, and pages of other sizes than a few ended the
// process.
TEST_F(DeviceMemoryRegressionTest,
       MegatronLm6956AndVAttention15PagesAreOfAnySizeThatTheDeviceHas) {
  for (const Bytes granularity : {KiB(64), KiB(256), MiB(2)}) {
    HostDriverOptions driver_options;
    driver_options.granularity = granularity;
    driver_options.memory_per_device = MiB(256);
    driver_options.backing = HostDriverOptions::Backing::kNone;
    MakeDriver(driver_options);
    for (uint64_t page = 1; page <= MiB(64).value(); page *= 2) {
      for (const uint64_t size : {page, page * 3}) {
        SCOPED_TRACE(size);
        DeviceMemoryOptions options;
        options.page_size = Bytes(size);
        options.address_space = MiB(512);
        auto memory = DeviceMemory::Create(faulty_.get(), &owners_, options);
        const bool possible = size == page && page >= granularity.value();
        EXPECT_EQ(memory.status().code(),
                  possible ? absl::StatusCode::kOk
                           : absl::StatusCode::kInvalidArgument)
            << memory.status();
        if (!memory.ok()) {
          EXPECT_THAT(std::string(memory.status().message()),
                      ::testing::HasSubstr(std::to_string(size)));
          continue;
        }
        // Where others bind the memory by pages of their own, of no more than
        // this size, both ends are theirs.
        const auto range = (*memory)->ReserveRange(PageCount(3), kOwner);
        ASSERT_TRUE(range.ok()) << range.status();
        EXPECT_EQ((*range)->address().value() % size, 0u);
        EXPECT_EQ((*memory)->Commit(*range, PageCount(0), PageCount(3)),
                  absl::OkStatus());
        EXPECT_EQ((*memory)->GetStatistics().live.value(), 3 * size);
      }
    }
  }
}

// kvcached#377: where less was free than was to be left to others, the
// difference went below zero, and was taken for room.
TEST_F(DeviceMemoryRegressionTest,
       Kvcached377HeadroomBeyondWhatIsFreeIsNoRoom) {
  DeviceMemoryOptions options = Options();
  options.limit = Bytes(kDevicePages * kPageBytes);
  for (const Bytes headroom :
       {Bytes(8 * kPageBytes), Bytes(2 * kDevicePages * kPageBytes),
        Bytes(UINT64_MAX)}) {
    SCOPED_TRACE(headroom.value());
    const bool starts = headroom.value() == 8 * kPageBytes;
    options.headroom = headroom;
    MakeMemory(options);
    AddressRange* const range = Reserve(kDevicePages);
    if (starts) {
      ASSERT_EQ(Commit(range, 0, 16), absl::OkStatus());
    }
    // Others leave less than the headroom.
    std::vector<PageHandle> foreign;
    while (driver_->GetMemoryInfo(DeviceId(0))->free.value() > 2 * kPageBytes) {
      foreign.push_back(*driver_->CreatePage(DeviceId(0), kPage));
    }
    EXPECT_EQ(memory_->CalculateLargestCommit(kOwner), PageCount(0));
    const absl::Status status = Commit(range, 16, 1);
    const auto verdict = OutOfMemoryVerdict::FromStatus(status);
    ASSERT_TRUE(verdict.has_value()) << status;
    EXPECT_EQ(verdict->free, Bytes(0));
    EXPECT_EQ(verdict->largest_possible, Bytes(0));
    EXPECT_FALSE(memory_->Prepare(PageCount(1)).ok());
    for (const PageHandle page : foreign) {
      ASSERT_EQ(driver_->ReleasePage(page), absl::OkStatus());
    }
    memory_->ReleaseRange(range, Fence());
  }
}

// HAMi-core#200: the limit less the usage went below zero, and the result was
// taken for 18 EB of room.
TEST_F(DeviceMemoryRegressionTest, HamiCore200ALimitBelowTheUseLeavesNoRoom) {
  AddressRange* const range = Reserve(20);
  ASSERT_TRUE(Commit(range, 0, 16).ok());
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {.hard = kPage}).ok());
  ASSERT_TRUE(memory_->SetLimit(kPage).ok());
  const OwnerStatistics owner = memory_->GetOwnerStatistics(kOwner);
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  for (const Bytes room : {owner.hard_room, owner.allowance,
                           statistics.growable, statistics.cached}) {
    EXPECT_EQ(room, Bytes(0));
  }
  EXPECT_FALSE(Commit(range, 16, 1).ok());
  EXPECT_EQ(memory_->SetOwnerLimits(kUnnamedOwner, {.reserved_minimum = kPage})
                .code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(memory_->SetOwnerLimits(kOwner, {}).ok());
  EXPECT_FALSE(Commit(range, 16, 1).ok());
  memory_->ReleaseRange(range, Fence());
}

// kvcached#448: addresses were compared with physical capacity.
TEST_F(DeviceMemoryRegressionTest, Kvcached448AddressesAreNoMemory) {
  ASSERT_TRUE(
      memory_->SetOwnerLimits(kOwner, {.hard = Bytes(2 * kPageBytes)}).ok());
  AddressRange* const range = Reserve(kAddressPages / 2);
  ASSERT_TRUE(Commit(range, 0, 1).ok());
  const std::vector<PageHandle> pages(kLimitPages * 3 / 2,
                                      memory_->PageAt(range, PageCount(0)));
  // More slots than the limit has pages, of one page.
  ASSERT_TRUE(memory_->CommitPages(range, PageCount(1), pages).ok());
  EXPECT_EQ(memory_->GetOwnerStatistics(kOwner).hard_room, kPage);
  EXPECT_EQ(memory_->GetStatistics().growable.value(),
            (kLimitPages - 1) * kPageBytes);
  memory_->ReleaseRange(range, Fence());
}

}  // namespace
}  // namespace quire
