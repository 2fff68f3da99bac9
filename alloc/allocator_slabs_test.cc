// How much memory a heap takes for what it holds: short slabs first, and a few
// pages to spare where allocations are put together from pieces all the time.

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"

namespace quire {
namespace {

class AllocatorSlabsTest : public AllocatorFixture {
 protected:
  // No memory is touched, so large devices cost nothing.
  void MakeDevice(Bytes page, uint64_t pages) {
    allocator_.reset();
    HostDriverOptions driver = DriverOptions();
    driver.memory_per_device = Bytes(pages * page.value());
    MakeDriver(driver);
    DeviceMemoryOptions memory = Options();
    memory.page_size = page;
    memory.limit = driver.memory_per_device;
    memory.address_space = Bytes(64 * pages * page.value());
    MakeMemory(memory);
    MakeAllocator();
  }

  // `bytes` of each class in slots of 1, 2 and 4 KiB.
  std::vector<DeviceAddress> FillThreeClasses(uint64_t bytes) {
    std::vector<DeviceAddress> live;
    for (const uint64_t size : {1 << 10, 2 << 10, 4 << 10}) {
      for (uint64_t held = 0; held < bytes; held += size) {
        live.push_back(Allocate(size));
      }
    }
    return live;
  }
};

constexpr Bytes kTwoMiB = MiB(2);

TEST_F(AllocatorSlabsTest, ClassesOfOneThreadSharePages) {
  MakeDevice(kTwoMiB, 32);
  const std::vector<DeviceAddress> live = FillThreeClasses(256 << 10);
  EXPECT_EQ(Statistics().mapped_bytes, kTwoMiB.value());
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(AllocatorSlabsTest, ClassesOfSeveralThreadsHaveOneShortSlabEach) {
  MakeDevice(kTwoMiB, 32);
  std::thread([this] { Free(Allocate(512)); }).join();
  const std::vector<DeviceAddress> live = FillThreeClasses(256 << 10);
  EXPECT_EQ(Statistics().mapped_bytes, 4 * kTwoMiB.value());
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(AllocatorSlabsTest, SlabsBecomePagesAsTheirClassGrows) {
  MakeDevice(kTwoMiB, 32);
  std::vector<DeviceAddress> live;
  for (int i = 0; i < 16 << 10; ++i) live.push_back(Allocate(1 << 10));
  // 16 MiB: the short ones have 1 MiB together, so that the last page has as
  // much to spare.
  EXPECT_EQ(Statistics().mapped_bytes, 9 * kTwoMiB.value());
  EXPECT_EQ(Statistics().slab_count, 5u + 8u);
  for (const DeviceAddress address : live) Free(address);
}

// Pages that lie apart are put together for sizes that never come back: the
// heap takes one page in 512 more, once, and no more however long that lasts.
TEST_F(AllocatorSlabsTest, PiecesThatAreAlwaysPutTogetherGetPagesToSpareOnce) {
  constexpr uint64_t kPages = 512;
  MakeDevice(kPage, 4 * kPages);
  std::vector<DeviceAddress> pages;
  for (uint64_t i = 0; i < kPages; ++i) pages.push_back(AllocatePages(1));
  ASSERT_EQ(Statistics().mapped_bytes, kPages * kPageBytes);
  for (uint64_t i = 0; i < kPages; i += 2) Free(pages[i]);
  uint64_t size = 2 * kPageBytes;
  const auto put_together = [&](int times) {
    for (int i = 0; i < times; ++i) Free(Allocate(size += kPageBytes));
  };
  put_together(24);
  EXPECT_EQ(Statistics().mapped_bytes, kPages * kPageBytes);
  put_together(60);
  EXPECT_EQ(Statistics().mapped_bytes, (kPages + 1) * kPageBytes);
  for (uint64_t i = 1; i < kPages; i += 2) Free(pages[i]);
}

// Where memory is short, nobody takes any to spare.
TEST_F(AllocatorSlabsTest, NothingIsToSpareWhereMemoryIsShort) {
  constexpr uint64_t kPages = 512;
  MakeDevice(kPage, kPages + 2);
  std::vector<DeviceAddress> pages;
  for (uint64_t i = 0; i < kPages; ++i) pages.push_back(AllocatePages(1));
  for (uint64_t i = 0; i < kPages; i += 2) Free(pages[i]);
  for (uint64_t size = 3; size < 90; ++size) Free(AllocatePages(size));
  EXPECT_EQ(Statistics().mapped_bytes, kPages * kPageBytes);
  for (uint64_t i = 1; i < kPages; i += 2) Free(pages[i]);
}

}  // namespace
}  // namespace quire
