// The promises of driver.h that every driver keeps: what is refused, what that
// leaves unchanged, and what memory does under aliases. Streams have their own
// test.

#include "quire/alloc/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/testing/caller_memory.h"
#include "alloc/testing/driver_fixture.h"
#include "alloc/testing/expect_status.h"
#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

using ::testing::IsEmpty;

using DriverTest = DriverFixture<TestDriver>;

// ---- Addresses --------------------------------------------------------------

TEST_F(DriverTest, ReservationsHaveTheAlignmentAskedFor) {
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{1}, kPageBytes,
                                   uint64_t{2} << 20, uint64_t{1} << 30}) {
    const auto address = driver_->ReserveAddress(kPage, Bytes(alignment));
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->value() % std::max(alignment, kPageBytes), 0u);
    EXPECT_TRUE(driver_->ReleaseAddress(*address, kPage).ok());
  }
}

TEST_F(DriverTest, ReserveRefusesSizesAndAlignmentsThatCannotBe) {
  EXPECT_STATUS(kInvalidArgument, "size 0",
                driver_->ReserveAddress(Bytes(0), Bytes(0)).status());
  EXPECT_STATUS(kInvalidArgument, "granularity 65536",
                driver_->ReserveAddress(KiB(96), Bytes(0)).status());
  EXPECT_STATUS(kInvalidArgument, "alignment 196608",
                driver_->ReserveAddress(kPage, KiB(192)).status());
  EXPECT_STATUS(
      kResourceExhausted, "out of addresses",
      driver_->ReserveAddress(Bytes(uint64_t{1} << 60), Bytes(0)).status());
  EXPECT_STATUS(
      kResourceExhausted, "out of addresses",
      driver_->ReserveAddress(Bytes(0 - kPageBytes), Bytes(0)).status());
  EXPECT_STATUS(
      kResourceExhausted, "out of addresses",
      driver_->ReserveAddress(kPage, Bytes(uint64_t{1} << 63)).status());
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DriverTest, ReservesFarMoreAddressesThanThereIsMemory) {
  const auto address = driver_->ReserveAddress(GiB(64), Bytes(0));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(driver_->ReleaseAddress(*address, GiB(64)).ok());
}

TEST_F(DriverTest, ReleasesOnlyExactReservationsWithoutMappings) {
  const DeviceAddress base = Reserve(4);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(At(base, kPageBytes), page).ok());
  const Bytes size(4 * kPageBytes);
  EXPECT_STATUS(kFailedPrecondition, "still mapped",
                driver_->ReleaseAddress(base, size));
  EXPECT_STATUS(kInvalidArgument, "not exactly a reserved range",
                driver_->ReleaseAddress(base, kPage));
  EXPECT_STATUS(kInvalidArgument, "not exactly a reserved range",
                driver_->ReleaseAddress(At(base, kPageBytes), kPage));
  ASSERT_TRUE(driver_->Unmap(At(base, kPageBytes), kPage).ok());
  EXPECT_TRUE(driver_->ReleaseAddress(base, size).ok());
  EXPECT_STATUS(kInvalidArgument, "not exactly a reserved range",
                driver_->ReleaseAddress(base, size));
}

// ---- Pages ------------------------------------------------------------------

TEST_F(DriverTest, CreatesPagesUntilTheDeviceIsFull) {
  const std::vector<PageHandle> pages = CreatePages(64);
  EXPECT_EQ(FreeBytes(), 0u);
  EXPECT_STATUS(kResourceExhausted, "physical memory",
                driver_->CreatePage(DeviceId(0), kPage).status());
  ASSERT_TRUE(driver_->ReleasePage(pages[7]).ok());
  EXPECT_EQ(FreeBytes(), kPageBytes);
  EXPECT_TRUE(driver_->CreatePage(DeviceId(0), kPage).ok());
}

TEST_F(DriverTest, MixedPageSizesNeverFailForWantOfContiguity) {
  const std::vector<PageHandle> pages = CreatePages(64);
  for (size_t i = 0; i < pages.size(); i += 2) {
    ASSERT_TRUE(driver_->ReleasePage(pages[i]).ok());
  }
  // Half the memory is free, in single units: one page may still take it all.
  const PageHandle large = CreatePage(32);
  const DeviceAddress base = Reserve(32);
  ASSERT_TRUE(MapOne(base, large).ok());
  ByteAt(base, 32 * kPageBytes - 1) = 9;
  EXPECT_EQ(ByteAt(base, 32 * kPageBytes - 1), 9);
}

TEST_F(DriverTest, CreatePageRefusesBadSizesAndDevices) {
  EXPECT_STATUS(kInvalidArgument, "size 0",
                driver_->CreatePage(DeviceId(0), Bytes(0)).status());
  EXPECT_STATUS(kInvalidArgument, "granularity",
                driver_->CreatePage(DeviceId(0), KiB(4)).status());
  EXPECT_STATUS(kInvalidArgument, "no device 1",
                driver_->CreatePage(DeviceId(1), kPage).status());
  EXPECT_STATUS(
      kResourceExhausted, "physical memory",
      driver_->CreatePage(DeviceId(0), Bytes(0 - kPageBytes)).status());
  EXPECT_EQ(FreeBytes(), MiB(4).value());
}

TEST_F(DriverTest, ReleasesAHandleOnce) {
  EXPECT_STATUS(kNotFound, "page 0", driver_->ReleasePage(PageHandle()));
  EXPECT_STATUS(kNotFound, "page 77", driver_->ReleasePage(PageHandle(77)));
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_STATUS(kNotFound, "was released", driver_->ReleasePage(page));
  // A new page never answers to an old handle.
  EXPECT_NE(CreatePage(), page);
}

TEST_F(DriverTest, AReleasedPageLivesUntilItsLastMapping) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  ASSERT_TRUE(MapOne(At(base, kPageBytes), page).ok());
  ByteAt(base) = 42;
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_EQ(FreeBytes(), MiB(4).value() - kPageBytes);
  EXPECT_STATUS(kNotFound, "was released", driver_->ReleasePage(page));
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_EQ(ByteAt(base, kPageBytes), 42);
  EXPECT_EQ(FreeBytes(), MiB(4).value() - kPageBytes);
  EXPECT_STATUS(kNotFound, "was released", MapOne(base, page));
  ASSERT_TRUE(driver_->Unmap(At(base, kPageBytes), kPage).ok());
  EXPECT_EQ(FreeBytes(), MiB(4).value());
}

TEST_F(DriverTest, KeepsTheContentsOfAPageThatIsNotMapped) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  ByteAt(base, 100) = 5;
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  ASSERT_TRUE(MapOne(At(base, kPageBytes), page).ok());
  EXPECT_EQ(ByteAt(base, kPageBytes + 100), 5);
}

// ---- Mapping ----------------------------------------------------------------

TEST_F(DriverTest, OnePageAtTwoAddressesIsOneMemory) {
  const DeviceAddress base = Reserve(3);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  ASSERT_TRUE(MapOne(At(base, 2 * kPageBytes), page).ok());
  ByteAt(base, 17) = 1;
  EXPECT_EQ(ByteAt(base, 2 * kPageBytes + 17), 1);
  ByteAt(base, 2 * kPageBytes + 17) = 2;
  EXPECT_EQ(ByteAt(base, 17), 2);
}

TEST_F(DriverTest, MapsOnePageTwiceInOneCall) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->Map(base, std::vector{page, page}).ok());
  ByteAt(base) = 3;
  EXPECT_EQ(ByteAt(base, kPageBytes), 3);
}

TEST_F(DriverTest, MapsPagesInTheOrderGiven) {
  const DeviceAddress base = Reserve(5);
  const std::vector<PageHandle> pages = CreatePages(4);
  const PageHandle large = CreatePage(2);
  ASSERT_TRUE(driver_->Map(base, std::vector{pages[2], pages[0], large}).ok());
  for (uint64_t i = 0; i < 4; ++i) ByteAt(base, i * kPageBytes) = 10 + i;
  ASSERT_TRUE(driver_->Unmap(base, Bytes(4 * kPageBytes)).ok());
  ASSERT_TRUE(driver_->Map(base, std::vector{large, pages[0], pages[2]}).ok());
  EXPECT_EQ(ByteAt(base), 12);
  EXPECT_EQ(ByteAt(base, kPageBytes), 13);
  EXPECT_EQ(ByteAt(base, 2 * kPageBytes), 11);
  EXPECT_EQ(ByteAt(base, 3 * kPageBytes), 10);
}

TEST_F(DriverTest, MapRefusesWhatIsNotOneFreeReservedRange) {
  const DeviceAddress base = Reserve(4);
  const std::vector<PageHandle> pages = CreatePages(3);
  EXPECT_STATUS(kInvalidArgument, "no pages", driver_->Map(base, {}));
  EXPECT_STATUS(kInvalidArgument, "granularity",
                driver_->Map(At(base, 4096), pages));
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(At(base, 2 * kPageBytes), pages));
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(DeviceAddress(kPageBytes), pages));
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(DeviceAddress(0 - kPageBytes), pages));
  ASSERT_TRUE(MapOne(At(base, 2 * kPageBytes), pages[0]).ok());
  EXPECT_STATUS(kFailedPrecondition, "not free", driver_->Map(base, pages));
  EXPECT_STATUS(kFailedPrecondition, "not free",
                driver_->Map(At(base, kPageBytes), pages));
  // Nothing of the refused calls is left: the gap takes two pages.
  EXPECT_TRUE(driver_->Map(base, std::vector{pages[1], pages[2]}).ok());
}

TEST_F(DriverTest, MapRefusesARangeAcrossTwoReservations) {
  // Neighbours, as the kernel usually places them; where it does not, the call
  // is refused for the gap.
  const DeviceAddress first = Reserve(2);
  const DeviceAddress second = Reserve(2);
  const DeviceAddress low = std::min(first, second);
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(At(low, kPageBytes), CreatePages(2)));
}

TEST_F(DriverTest, MapRefusesUnknownHandlesAndChangesNothing) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  EXPECT_STATUS(kNotFound, "page 99",
                driver_->Map(base, std::vector{page, PageHandle(99)}));
  ASSERT_TRUE(MapOne(base, page).ok());
}

TEST_F(DriverTest, UnmapTakesWholePagesWithoutGaps) {
  const DeviceAddress base = Reserve(6);
  const std::vector<PageHandle> small = CreatePages(2);
  const PageHandle large = CreatePage(2);
  // Pages: small, large, large, small, gap, gap.
  ASSERT_TRUE(driver_->Map(base, std::vector{small[0], large, small[1]}).ok());
  ByteAt(base, kPageBytes) = 8;
  EXPECT_STATUS(kFailedPrecondition, "only part of page",
                driver_->Unmap(base, Bytes(2 * kPageBytes)));
  EXPECT_STATUS(
      kFailedPrecondition, "only part of page",
      driver_->Unmap(At(base, 2 * kPageBytes), Bytes(2 * kPageBytes)));
  EXPECT_STATUS(
      kFailedPrecondition, "nothing is mapped",
      driver_->Unmap(At(base, 3 * kPageBytes), Bytes(2 * kPageBytes)));
  EXPECT_STATUS(kFailedPrecondition, "nothing is mapped",
                driver_->Unmap(At(base, 4 * kPageBytes), kPage));
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Unmap(base, Bytes(7 * kPageBytes)));
  EXPECT_STATUS(kInvalidArgument, "granularity", driver_->Unmap(base, KiB(4)));
  EXPECT_STATUS(kInvalidArgument, "granularity",
                driver_->Unmap(base, Bytes(0)));
  EXPECT_EQ(ByteAt(base, kPageBytes), 8);
  EXPECT_TRUE(driver_->Unmap(At(base, kPageBytes), Bytes(3 * kPageBytes)).ok());
  EXPECT_STATUS(kFailedPrecondition, "nothing is mapped",
                driver_->Unmap(base, Bytes(2 * kPageBytes)));
  EXPECT_TRUE(driver_->Unmap(base, kPage).ok());
}

TEST_F(DriverTest, PagesOfOneCallAreOfOneDevice) {
  HostDriverOptions options = SmallOptions();
  options.device_count = 2;
  driver_ = MakeDriver(options);
  const DeviceAddress base = Reserve(2);
  const PageHandle first = CreatePage(1, DeviceId(0));
  const PageHandle second = CreatePage(1, DeviceId(1));
  EXPECT_STATUS(kInvalidArgument, "memory of device 0",
                driver_->Map(base, std::vector{first, second}));
  EXPECT_TRUE(MapOne(base, first).ok());
  EXPECT_TRUE(MapOne(At(base, kPageBytes), second).ok());
  ByteAt(base, kPageBytes) = 2;
  ByteAt(base) = 1;
  EXPECT_EQ(ByteAt(base, kPageBytes), 2);
}

using DriverDeathTest = DriverTest;

TEST_F(DriverDeathTest, AddressesWithoutMemoryFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceAddress base = Reserve(2);
  ASSERT_TRUE(MapOne(base, CreatePage()).ok());
  ByteAt(base) = 1;
  EXPECT_DEATH(ByteAt(base, kPageBytes) = 1, "");
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_DEATH(ByteAt(base) = 1, "");
}

// ---- Pinned memory ----------------------------------------------------------

TEST_F(DriverTest, PinnedMemoryIsFreedOnceAndByItsStart) {
  EXPECT_STATUS(kInvalidArgument, "size is 0",
                driver_->AllocatePinned(Bytes(0)).status());
  EXPECT_STATUS(kResourceExhausted, "host memory",
                driver_->AllocatePinned(Bytes(UINT64_MAX)).status());
  EXPECT_STATUS(kResourceExhausted, "host memory",
                driver_->AllocatePinned(Bytes(uint64_t{1} << 60)).status());
  const auto memory = driver_->AllocatePinned(Bytes(5000));
  ASSERT_TRUE(memory.ok());
  auto* const bytes = static_cast<uint8_t*>(*memory);
  bytes[4999] = 1;
  EXPECT_STATUS(kInvalidArgument, "not pinned memory",
                driver_->FreePinned(bytes + 4096));
  EXPECT_TRUE(driver_->FreePinned(*memory).ok());
  EXPECT_STATUS(kInvalidArgument, "not pinned memory",
                driver_->FreePinned(*memory));
}

TEST_F(DriverTest, PinsWholePagesOfTheCallerOnce) {
  const CallerMemory pages(4);
  const auto pin = [&](size_t first, Bytes size) {
    return driver_->PinMemory(pages.page(first), size);
  };
  EXPECT_STATUS(kInvalidArgument, "whole pages",
                driver_->PinMemory(nullptr, KiB(4)));
  EXPECT_STATUS(kInvalidArgument, "whole pages", pin(0, Bytes(0)));
  EXPECT_STATUS(kInvalidArgument, "whole pages", pin(0, Bytes(4097)));
  EXPECT_STATUS(kInvalidArgument, "whole pages",
                driver_->PinMemory(pages.page(0) + 1, KiB(4)));
  EXPECT_STATUS(kInvalidArgument, "not all of", pin(3, GiB(4096)));

  ASSERT_TRUE(pin(1, KiB(8)).ok());
  for (const size_t first : {0, 1, 2})
    EXPECT_STATUS(kFailedPrecondition, "pinned already", pin(first, KiB(8)));
  EXPECT_TRUE(pin(0, KiB(4)).ok()) << "beside it";
  EXPECT_TRUE(pin(3, KiB(4)).ok()) << "beside it";
  EXPECT_STATUS(kInvalidArgument, "PinMemory did not pin",
                driver_->UnpinMemory(pages.page(2)));
  EXPECT_STATUS(kInvalidArgument, "not pinned memory",
                driver_->FreePinned(pages.page(1)));
  for (const size_t first : {0, 1, 3})
    EXPECT_TRUE(driver_->UnpinMemory(pages.page(first)).ok());
  EXPECT_STATUS(kInvalidArgument, "PinMemory did not pin",
                driver_->UnpinMemory(pages.page(1)));

  const auto allocated = driver_->AllocatePinned(KiB(4));
  ASSERT_TRUE(allocated.ok());
  EXPECT_STATUS(kFailedPrecondition, "pinned already",
                driver_->PinMemory(*allocated, KiB(4)));
  EXPECT_STATUS(kInvalidArgument, "PinMemory did not pin",
                driver_->UnpinMemory(*allocated));
  EXPECT_TRUE(driver_->FreePinned(*allocated).ok());
}

// ---- Pages without memory ---------------------------------------------------

TEST(DriverWithoutBackingTest, SimulatesADeviceLargerThanTheMachine) {
  HostDriverOptions options;
  options.memory_per_device = GiB(141);
  options.backing = HostDriverOptions::Backing::kNone;
  const auto driver = DriverTest::MakeDriver(options);
  EXPECT_FALSE(driver->device_memory_is_host_memory());
  const auto base = driver->ReserveAddress(GiB(282), Bytes(0));
  ASSERT_TRUE(base.ok()) << base.status();
  std::vector<PageHandle> pages;
  for (uint64_t i = 0; i < 141 * 512; ++i) {
    const auto page = driver->CreatePage(DeviceId(0), MiB(2));
    ASSERT_TRUE(page.ok()) << page.status();
    pages.push_back(*page);
  }
  EXPECT_EQ(driver->GetMemoryInfo(DeviceId(0))->free, Bytes(0));
  EXPECT_EQ(driver->CreatePage(DeviceId(0), MiB(2)).status().code(),
            absl::StatusCode::kResourceExhausted);
  // Every other page slot: kernel mappings are no limit where none are made.
  for (uint64_t i = 0; i < pages.size(); ++i) {
    ASSERT_TRUE(
        driver
            ->Map(DriverTest::At(*base, 2 * i * MiB(2).value()), {&pages[i], 1})
            .ok());
  }
  const StreamId stream = *driver->CreateStream(DeviceId(0));
  std::vector<uint8_t> data(100, 7);
  ASSERT_TRUE(driver->Fill(*base, 1, MiB(2), stream).ok());
  ASSERT_TRUE(
      driver->CopyToDevice(*base, data.data(), Bytes(100), stream).ok());
  ASSERT_TRUE(driver->CopyToHost(data.data(), *base, Bytes(100), stream).ok());
  ASSERT_TRUE(driver->SynchronizeStream(stream).ok());
  EXPECT_THAT(data, ::testing::Each(0));
  EXPECT_STATUS(kInvalidArgument, "nothing is mapped",
                driver->Fill(*base, 1, MiB(4), stream));
}

}  // namespace
}  // namespace quire
