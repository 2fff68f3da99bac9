// Programs that come back to what they had call the driver no more, though
// their memory is full, or lies in pieces.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/allocator_fixture.h"

namespace quire {
namespace {

// Pages as a GPU has them, without memory: a class begins with a slab of less.
class AllocatorSteadyTest : public AllocatorFixture {
 protected:
  static constexpr uint64_t kPages = 64;
  static constexpr uint64_t kBytesOfPage = uint64_t{2} << 20;
  static constexpr uint64_t kSmall = 2048;

  AllocatorSteadyTest() {
    allocator_.reset();
    memory_.reset();
    HostDriverOptions driver;
    driver.memory_per_device = Bytes(kPages * kBytesOfPage);
    driver.granularity = Bytes(kBytesOfPage);
    driver.backing = HostDriverOptions::Backing::kNone;
    MakeDriver(driver);
    DeviceMemoryOptions options;
    options.page_size = Bytes(kBytesOfPage);
    MakeMemory(options);
    MakeAllocator();
  }

  DeviceAddress AllocateLarge(uint64_t pages, StreamId stream = StreamId()) {
    return Allocate(pages * kBytesOfPage, stream);
  }
};

// Every page is the heap's, so that limits allow it no other.
TEST_F(AllocatorSteadyTest, SlabsAreMadeOfPagesThatTheHeapHas) {
  const StreamId stream = MakeStream();
  Free(AllocateLarge(kPages, stream), stream);
  Free(Allocate(kSmall, stream), stream);
  const uint64_t calls = DriverCalls();
  for (int i = 0; i < 100; ++i) Free(Allocate(kSmall, stream), stream);
  EXPECT_EQ(DriverCalls(), calls);
}

// A class whose slab large requests took, and that came back each time.
TEST_F(AllocatorSteadyTest, LargeRequestsLeaveSmallSlabsThatComeBack) {
  std::vector<DeviceAddress> large;
  for (int i = 0; i < 4; ++i) {
    Free(Allocate(kSmall));
    large.push_back(AllocateLarge(kPages / 8));
  }
  const uint64_t calls = DriverCalls();
  Free(Allocate(kSmall));
  EXPECT_EQ(DriverCalls(), calls);
  for (const DeviceAddress address : large) Free(address);
}

TEST_F(AllocatorSteadyTest, WhoIsShortOfMemoryGetsSmallSlabsToo) {
  for (uint64_t size = 256; size <= 65536; size *= 2) Free(Allocate(size));
  Free(AllocateLarge(kPages));
  for (uint64_t size = 256; size <= 65536; size *= 2) Free(Allocate(size));
  allocator_->Trim();
  const DeviceMemoryStatistics left = memory_->GetStatistics();
  EXPECT_EQ(left.cached, left.in_use);
}

// Pages in part use, of which requests of three fifths of a page would make
// more, beside many that nobody uses.
TEST_F(AllocatorSteadyTest, PagesInPartUseCostNoCallsWhileOthersAreIdle) {
  constexpr uint64_t kFifth = kBytesOfPage / 5 / 512 * 512;
  std::vector<DeviceAddress> all;
  for (int i = 0; i < 16; ++i) all.push_back(Allocate(6 * kFifth));
  const DeviceAddress ample = AllocateLarge(kPages / 2);
  for (size_t i = 0; i < all.size(); i += 2) Free(all[i]);
  Free(ample);
  const uint64_t calls = DriverCalls();
  std::vector<DeviceAddress> more;
  for (int i = 0; i < 8; ++i) more.push_back(Allocate(3 * kFifth));
  EXPECT_EQ(DriverCalls(), calls);
  for (const DeviceAddress address : more) Free(address);
  for (size_t i = 1; i < all.size(); i += 2) Free(all[i]);
}

// The run that fits best would be left with a part of a page; the end of a
// longer one fills a page that is in use in part.
TEST_F(AllocatorSteadyTest, PagesInPartUseAreFilledWhereThatTakesNoCall) {
  constexpr uint64_t kQuarter = kBytesOfPage / 4;
  const DeviceAddress longer = Allocate(33 * kQuarter);
  const DeviceAddress beside = Allocate(35 * kQuarter);
  const DeviceAddress best_fit = Allocate(24 * kQuarter);
  const DeviceAddress last = Allocate(36 * kQuarter);
  Free(longer);
  Free(best_fit);
  const uint64_t calls = DriverCalls();
  const DeviceAddress filling = Allocate(21 * kQuarter);
  EXPECT_EQ(DriverCalls(), calls);
  EXPECT_EQ(filling.value(), longer.value() + 12 * kQuarter);
  memory_->Trim(PageCount(0));
  // 92 quarters are live.
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(23 * kBytesOfPage));
  for (const DeviceAddress address : {beside, last, filling}) Free(address);
}

}  // namespace
}  // namespace quire
