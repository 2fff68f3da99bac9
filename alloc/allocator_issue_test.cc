// Faults of other allocators, reported in public, as tests of this one. Each is
// named after the project and the number of the report.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

class AllocatorIssueTest : public AllocatorFixture {
 protected:
  // A pool of another size and page size over a device without memory.
  void MakeLargePool(Bytes limit, Bytes page_size) {
    allocator_.reset();
    memory_.reset();
    HostDriverOptions driver;
    driver.memory_per_device = limit;
    driver.granularity = page_size;
    driver.backing = HostDriverOptions::Backing::kNone;
    MakeDriver(driver);
    DeviceMemoryOptions options;
    options.page_size = page_size;
    MakeMemory(options);
    MakeAllocator();
  }
};

// Merging the free lists of streams lost the event of the one merged, and a
// third stream was given memory that the first still used.
TEST_F(AllocatorIssueTest, Rmm2489MemoryThatMovesBetweenListsKeepsItsFence) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  const StreamId c = MakeStream();
  const DeviceAddress mine = AllocatePages(kLimitPages - 4, a);
  const DeviceAddress other = AllocatePages(4, c);
  Gate gate(driver_.get(), a);
  const Pattern late = {mine, (kLimitPages - 4) * kPageBytes, 1};
  std::atomic<bool> held{false};
  ASSERT_EQ(driver_->LaunchHostFunction(a,
                                        [&] {
                                          late.Write();
                                          held = late.Holds();
                                        }),
            absl::OkStatus());
  Free(mine, a);
  // Now b wants it, and the pool takes it back while a may still write to it.
  DeviceAddress second;
  std::thread waiter([&] { second = AllocatePages(kLimitPages - 8, b); });
  std::this_thread::sleep_for(milliseconds(5));
  Free(other, c);
  const DeviceAddress third = AllocatePages(4, c);
  EXPECT_EQ(third, other);
  const Pattern of_third = {third, 4 * kPageBytes, 2};
  of_third.Write();
  gate.Open();
  waiter.join();
  EXPECT_TRUE(held);
  const Pattern of_second = {second, (kLimitPages - 8) * kPageBytes, 3};
  of_second.Write();
  ASSERT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
  EXPECT_TRUE(of_second.Holds());
  EXPECT_TRUE(of_third.Holds());
}

// size + alignment - 256 wrapped round for alignments below 256.
TEST_F(AllocatorIssueTest, Rmm2002SmallAlignmentsDoNotWrapTheSize) {
  for (uint64_t alignment = 1; alignment <= 512; alignment *= 2) {
    AllocateOptions options;
    options.alignment = Bytes(alignment);
    for (uint64_t below = 0; below < 520; ++below) {
      ExpectOutOfMemory(UINT64_MAX - below, options);
    }
    for (uint64_t size = 0; size < 520; ++size) {
      const auto address = allocator_->Allocate(Bytes(size), options);
      ASSERT_TRUE(address.ok()) << address.status();
      EXPECT_GE(allocator_->Find(*address)->allocated.value(), size);
      Free(*address);
    }
  }
}

// Two live pointers of size 0 were the same key of a table.
TEST_F(AllocatorIssueTest, Rmm2312TwoEmptyAllocationsLiveSideBySide) {
  const StreamId stream = MakeStream();
  const DeviceAddress first = Allocate(0, stream);
  const DeviceAddress second = Allocate(0, stream);
  EXPECT_NE(first, second);
  Free(first, stream);
  Free(second, stream);
  EXPECT_EQ(allocator_->Free(first).code(),
            absl::StatusCode::kFailedPrecondition);
}

// A pool that had begun small could not serve its own maximum.
TEST_F(AllocatorIssueTest, Rmm1957APoolServesItsMaximumAfterSmallRequests) {
  Free(Allocate(256));
  Free(AllocatePages(1));
  Free(AllocatePages(kLimitPages / 2));
  Free(AllocatePages(kLimitPages));
}

// Sizes between the same two powers of two led past the end of a list.
TEST_F(AllocatorIssueTest, Vma231ASizeBetweenTwoFreedOnes) {
  for (const uint64_t unit : {uint64_t{1}, kPageBytes / 64, kPageBytes}) {
    if (720 * unit > kLimitPages * kPageBytes) break;
    const DeviceAddress first = Allocate(576 * unit);
    const DeviceAddress second = Allocate(648 * unit);
    Free(first);
    const DeviceAddress third = Allocate(720 * unit);
    EXPECT_TRUE(third.value() >= second.value() + 648 * unit ||
                third.value() + 720 * unit <= second.value());
    Free(second);
    Free(third);
  }
}

// A free range of 699050 units refused 664908 of them (here a tenth of both);
// with room for two allocations none was served.
TEST_F(AllocatorIssueTest, OffsetAllocator14And3NearlyAllIsServed) {
  MakeLargePool(Bytes(69905 * kPageBytes), kPage);
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(69905 * kPageBytes));
  Free(AllocatePages(66490));
  Free(AllocatePages(69905));
  MakeLargePool(MiB(4), MiB(2));
  const DeviceAddress first = Allocate(MiB(2).value());
  const DeviceAddress second = Allocate(MiB(2).value());
  ExpectOutOfMemory(1);
  Free(first);
  Free(second);
}

// Usage above the limit made what is left wrap to 18 exabytes; a free that was
// never counted was debited; another device's account was.
TEST_F(AllocatorIssueTest, HamiCore200And257And310NothingWrapsOrIsMisbooked) {
  HostDriverOptions two = DriverOptions();
  two.device_count = 2;
  allocator_.reset();
  MakeDriver(two);
  MakeMemory(Options());
  MakeAllocator();
  DeviceMemoryOptions other_options = Options();
  other_options.device = DeviceId(1);
  auto other_memory =
      *DeviceMemory::Create(driver_.get(), &owners_, other_options);
  auto other = DeviceAllocator::Create(other_memory.get());
  const DeviceAddress all = AllocatePages(kLimitPages);
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(0));
  EXPECT_EQ(memory_->GetStatistics().growable, Bytes(0));
  EXPECT_EQ(other->GetLargestPossible(), Options().limit);
  EXPECT_EQ(other->Free(all).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other->GetStatistics().live_bytes, 0u);
  EXPECT_EQ(Statistics().live_bytes, kLimitPages * kPageBytes);
  Free(all);
  other.reset();
  other_memory.reset();
}

// What is used and what is asked for were added without a look at the sum, so
// that what was far beyond a limit passed it: HAMi-core's `usage + addon`,
// nvshare's `sum + size`.
TEST_F(AllocatorIssueTest, HamiCoreAndNvshareUseAndSizeDoNotWrapTogether) {
  constexpr uint64_t kAllowed = 8;
  ASSERT_EQ(
      memory_->SetOwnerLimits(kOwner, {.hard = Bytes(kAllowed * kPageBytes)}),
      absl::OkStatus());
  AllocateOptions options;
  options.owner = kOwner;
  const auto used = allocator_->Allocate(Bytes(4 * kPageBytes), options);
  ASSERT_TRUE(used.ok()) << used.status();
  const DeviceAddress others = AllocatePages(2);
  for (const uint64_t live :
       {4 * kPageBytes, 6 * kPageBytes, kAllowed * kPageBytes,
        kLimitPages * kPageBytes}) {
    // Added to `live`, these come to about nothing, or to about a page.
    for (const uint64_t sum : {uint64_t{0}, kPageBytes}) {
      for (const uint64_t more : {0, 1, 255, 256, 257}) {
        ExpectOutOfMemory(0 - live + sum + more, options);
        ExpectOutOfMemory(0 - live + sum - more, options);
      }
    }
    const uint64_t pages = live / kPageBytes;
    for (const uint64_t most : {UINT64_MAX, UINT64_MAX / kPageBytes}) {
      for (uint64_t sum = 0; sum < 3; ++sum) {
        const PageCount wanted(most - pages + sum);
        EXPECT_TRUE(absl::IsResourceExhausted(
            memory_->Gather(kOwner, wanted, PageCount(1), Bytes(0), false)));
        EXPECT_TRUE(absl::IsResourceExhausted(
            memory_->ReserveRange(wanted, kOwner).status()));
      }
    }
  }
  // Reservations are summed up, too.
  for (const OwnerId owner : {kOwner, kUnnamedOwner}) {
    for (uint64_t below = 0; below < 3; ++below) {
      EXPECT_EQ(memory_
                    ->SetOwnerLimits(
                        owner, {.reserved_minimum = Bytes(UINT64_MAX - below)})
                    .code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
  // What is left is to be had, and no more.
  const auto rest =
      allocator_->Allocate(Bytes((kAllowed - 4) * kPageBytes), options);
  ASSERT_TRUE(rest.ok()) << rest.status();
  ExpectOutOfMemory(1, options);
  for (const DeviceAddress address : {*used, *rest, others}) Free(address);
}

// A double free gave back a block that was only cached; running out of memory
// crashed.
TEST_F(AllocatorIssueTest, Cub329And705ACachedBlockIsFreedOnce) {
  const DeviceAddress block = AllocatePages(2);
  Free(block);
  EXPECT_EQ(allocator_->Free(block).code(),
            absl::StatusCode::kFailedPrecondition);
  const DeviceAddress again = AllocatePages(2);
  const DeviceAddress another = AllocatePages(2);
  EXPECT_EQ(again, block);
  EXPECT_NE(another, block);
  ExpectOutOfMemory(kLimitPages * kPageBytes);
  Free(again);
  Free(another);
}

// Sizes equal to their alignment were misaligned from 256 to 1024.
TEST_F(AllocatorIssueTest, Mimalloc700SizesEqualToTheirAlignment) {
  for (uint64_t n = 1; n <= 4 * kPageBytes; n *= 2) {
    AllocateOptions options;
    options.alignment = Bytes(n);
    std::vector<DeviceAddress> addresses;
    for (int i = 0; i < 5; ++i) {
      addresses.push_back(*allocator_->Allocate(Bytes(n), options));
      EXPECT_EQ(addresses.back().value() % n, 0u);
    }
    for (const DeviceAddress address : addresses) Free(address);
  }
}

// Rounding up to an alignment overflowed to a small size.
TEST_F(AllocatorIssueTest, Snmalloc752RoundingToAnAlignmentDoesNotOverflow) {
  for (int bit = 8; bit < 64; ++bit) {
    AllocateOptions options;
    options.alignment = Bytes(uint64_t{1} << bit);
    for (const uint64_t size :
         {UINT64_MAX, UINT64_MAX - options.alignment.value() + 1,
          UINT64_MAX - options.alignment.value() + 2}) {
      if (size <= kLimitPages * kPageBytes) continue;
      ExpectOutOfMemory(size, options);
    }
  }
}

// The number of pages was cut to 32 bits.
TEST_F(AllocatorIssueTest, Seastar3467PageCountsAreNotTruncated) {
  for (const uint64_t extra : {0, 1, 5}) {
    ExpectOutOfMemory(((uint64_t{1} << 32) + extra) * kPageBytes);
  }
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

// 91, 45.5 and 2 MiB, of which only the last is kept: what was reserved climbed
// from 220 to 14,060 MiB.
TEST_F(AllocatorIssueTest, PyTorch193400And123548ChurnDoesNotClimb) {
  MakeLargePool(GiB(16), MiB(2));
  std::vector<DeviceAddress> kept;
  for (uint64_t cycle = 1; cycle <= 100; ++cycle) {
    const DeviceAddress large = Allocate(MiB(91).value());
    const DeviceAddress half = Allocate(MiB(91).value() / 2);
    kept.push_back(Allocate(MiB(2).value()));
    Free(large);
    Free(half);
    // 46 pages, 23 pages, and one page for each that was kept.
    EXPECT_EQ(memory_->GetStatistics().in_use.value(),
              (46 + 23 + cycle) * MiB(2).value());
  }
  for (const DeviceAddress address : kept) Free(address);
}

// The only block that fits waits for an event: the search must be done again
// once it has come.
TEST_F(AllocatorIssueTest, PyTorch189504SearchesAgainAfterWaiting) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  const DeviceAddress only = AllocatePages(kLimitPages, a);
  EXPECT_EQ(allocator_->RecordStream(only, b), absl::OkStatus());
  Gate gate(driver_.get(), b);
  Free(only, a);
  gate.OpenAfter(milliseconds(10));
  AllocatePages(kLimitPages, a);
}

// Events were looked at in one queue: a long stream in front held up all.
TEST_F(AllocatorIssueTest, PyTorch71616ALongStreamHoldsUpNobodyElse) {
  const StreamId slow = MakeStream();
  const StreamId quick = MakeStream();
  for (const uint64_t size : {uint64_t{2000}, 2 * kPageBytes}) {
    Gate gate(driver_.get(), slow);  // open only when all is done
    std::vector<DeviceAddress> held;
    std::vector<DeviceAddress> passed;
    for (uint64_t i = 0; i < kLimitPages * kPageBytes / size; ++i) {
      AllocateOptions options;
      options.stream = i % 2 == 0 ? slow : quick;
      const auto address = allocator_->Allocate(Bytes(size), options);
      if (!address.ok()) break;
      (i % 2 == 0 ? held : passed).push_back(*address);
    }
    for (const DeviceAddress address : held) Free(address, slow);
    for (const DeviceAddress address : passed) Free(address, quick);
    for (size_t i = 0; i < passed.size(); ++i) Allocate(size);
    for (const AllocationInfo& info : allocator_->CalculateLiveAllocations()) {
      Free(info.address);
    }
  }
}

// Freed on another stream than it was allocated on, under queued work, with the
// null stream taken for a device's own.
TEST_F(AllocatorIssueTest, PyTorch196258NoStreamIsNeverTakenForOne) {
  const StreamId stream = MakeStream();
  const DeviceAddress block = AllocatePages(2, stream);
  Gate gate(driver_.get(), stream);
  Free(block, stream);
  // "Any stream, now" is not the stream above.
  EXPECT_NE(AllocatePages(2), block);
  EXPECT_EQ(AllocatePages(2, stream), block);
}

}  // namespace
}  // namespace quire
