// The rules of HostDriver: what it refuses, what that leaves unchanged, and
// what memory does under aliases. Streams have their own test.

#include "quire/alloc/host_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace quire {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Bytes kPage = KiB(64);
constexpr uint64_t kPageBytes = kPage.value();

HostDriverOptions SmallOptions() {
  HostDriverOptions options;
  options.memory_per_device = MiB(4);
  options.granularity = kPage;
  return options;
}

std::unique_ptr<HostDriver> MakeDriver(const HostDriverOptions& options) {
  auto driver = HostDriver::Create(options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  return *std::move(driver);
}

DeviceAddress At(DeviceAddress base, uint64_t offset) {
  return *CheckedAdd(base, Bytes(offset));
}

// The compiler may assume that two addresses of one page are two objects, so
// aliased memory is read and written through volatile.
volatile uint8_t& ByteAt(DeviceAddress address, uint64_t offset = 0) {
  return *At(address, offset).host_pointer<volatile uint8_t>();
}

#define EXPECT_STATUS(code_, text, expression)                     \
  do {                                                             \
    const absl::Status status_ = (expression);                     \
    EXPECT_EQ(status_.code(), absl::StatusCode::code_) << status_; \
    EXPECT_THAT(std::string(status_.message()), HasSubstr(text));  \
  } while (false)

class HostDriverTest : public ::testing::Test {
 protected:
  DeviceAddress Reserve(uint64_t pages) {
    const auto address =
        driver_->ReserveAddress(Bytes(pages * kPageBytes), Bytes(0));
    EXPECT_TRUE(address.ok()) << address.status();
    return *address;
  }
  PageHandle CreatePage(uint64_t units = 1, DeviceId device = DeviceId(0)) {
    const auto page = driver_->CreatePage(device, Bytes(units * kPageBytes));
    EXPECT_TRUE(page.ok()) << page.status();
    return *page;
  }
  std::vector<PageHandle> CreatePages(int count) {
    std::vector<PageHandle> pages;
    for (int i = 0; i < count; ++i) pages.push_back(CreatePage());
    return pages;
  }
  absl::Status MapOne(DeviceAddress address, PageHandle page) {
    return driver_->Map(address, {&page, 1});
  }
  uint64_t FreeBytes() {
    return driver_->GetMemoryInfo(DeviceId(0))->free.value();
  }

  std::unique_ptr<HostDriver> driver_ = MakeDriver(SmallOptions());
};

TEST(HostDriverOptionsTest, RefusesWhatCannotBeADevice) {
  HostDriverOptions options = SmallOptions();
  options.device_count = 0;
  EXPECT_STATUS(kInvalidArgument, "device_count",
                HostDriver::Create(options).status());
  options = SmallOptions();
  options.memory_per_device = Bytes(0);
  EXPECT_STATUS(kInvalidArgument, "memory_per_device",
                HostDriver::Create(options).status());
  for (const uint64_t granularity : {0u, 2048u, 12288u}) {
    options = SmallOptions();
    options.granularity = Bytes(granularity);
    EXPECT_STATUS(kInvalidArgument, "granularity",
                  HostDriver::Create(options).status());
  }
}

TEST_F(HostDriverTest, DescribesItsDevices) {
  EXPECT_EQ(driver_->name(), "host");
  EXPECT_EQ(driver_->device_count(), 1);
  EXPECT_TRUE(driver_->device_memory_is_host_memory());
  const auto info = driver_->GetDeviceInfo(DeviceId(0));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->total_memory, MiB(4));
  EXPECT_EQ(info->minimum_granularity, kPage);
  EXPECT_STATUS(kInvalidArgument, "no device 1",
                driver_->GetDeviceInfo(DeviceId(1)).status());
  EXPECT_STATUS(kInvalidArgument, "no device -1",
                driver_->GetMemoryInfo(DeviceId(-1)).status());
}

// ---- Addresses --------------------------------------------------------------

TEST_F(HostDriverTest, ReservationsHaveTheAlignmentAskedFor) {
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{1}, kPageBytes,
                                   uint64_t{2} << 20, uint64_t{1} << 30}) {
    const auto address = driver_->ReserveAddress(kPage, Bytes(alignment));
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->value() % std::max(alignment, kPageBytes), 0u);
    EXPECT_TRUE(driver_->ReleaseAddress(*address, kPage).ok());
  }
}

TEST_F(HostDriverTest, ReserveRefusesSizesAndAlignmentsThatCannotBe) {
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

TEST_F(HostDriverTest, ReservesFarMoreAddressesThanThereIsMemory) {
  const auto address = driver_->ReserveAddress(GiB(64), Bytes(0));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(driver_->ReleaseAddress(*address, GiB(64)).ok());
}

TEST_F(HostDriverTest, ReleasesOnlyExactReservationsWithoutMappings) {
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

TEST_F(HostDriverTest, CreatesPagesUntilTheDeviceIsFull) {
  const std::vector<PageHandle> pages = CreatePages(64);
  EXPECT_EQ(FreeBytes(), 0u);
  EXPECT_STATUS(kResourceExhausted, "out of physical memory",
                driver_->CreatePage(DeviceId(0), kPage).status());
  ASSERT_TRUE(driver_->ReleasePage(pages[7]).ok());
  EXPECT_EQ(FreeBytes(), kPageBytes);
  EXPECT_TRUE(driver_->CreatePage(DeviceId(0), kPage).ok());
}

TEST_F(HostDriverTest, MixedPageSizesNeverFailForWantOfContiguity) {
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

TEST_F(HostDriverTest, CreatePageRefusesBadSizesAndDevices) {
  EXPECT_STATUS(kInvalidArgument, "size 0",
                driver_->CreatePage(DeviceId(0), Bytes(0)).status());
  EXPECT_STATUS(kInvalidArgument, "granularity",
                driver_->CreatePage(DeviceId(0), KiB(4)).status());
  EXPECT_STATUS(kInvalidArgument, "no device 1",
                driver_->CreatePage(DeviceId(1), kPage).status());
  EXPECT_STATUS(
      kResourceExhausted, "out of physical memory",
      driver_->CreatePage(DeviceId(0), Bytes(0 - kPageBytes)).status());
  EXPECT_EQ(FreeBytes(), MiB(4).value());
}

TEST_F(HostDriverTest, ReleasesAHandleOnce) {
  EXPECT_STATUS(kNotFound, "page 0", driver_->ReleasePage(PageHandle()));
  EXPECT_STATUS(kNotFound, "page 77", driver_->ReleasePage(PageHandle(77)));
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_STATUS(kNotFound, "was released", driver_->ReleasePage(page));
  // A new page never answers to an old handle.
  EXPECT_NE(CreatePage(), page);
}

TEST_F(HostDriverTest, AReleasedPageLivesUntilItsLastMapping) {
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

TEST_F(HostDriverTest, KeepsTheContentsOfAPageThatIsNotMapped) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  ByteAt(base, 100) = 5;
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  ASSERT_TRUE(MapOne(At(base, kPageBytes), page).ok());
  EXPECT_EQ(ByteAt(base, kPageBytes + 100), 5);
}

// Bytes of shared memory that the process has in core.
uint64_t SharedResidentBytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    uint64_t kib = 0;
    if (word == "RssShmem:" && file >> kib) return kib << 10;
  }
  return 0;
}

TEST_F(HostDriverTest, GivesTheMemoryOfAFreedPageBackToTheKernel) {
  const DeviceAddress base = Reserve(64);
  const PageHandle page = CreatePage(64);
  ASSERT_TRUE(MapOne(base, page).ok());
  const uint64_t before = SharedResidentBytes();
  for (uint64_t i = 0; i < MiB(4).value(); i += 4096) ByteAt(base, i) = 1;
  EXPECT_GE(SharedResidentBytes(), before + MiB(4).value());
  ASSERT_TRUE(driver_->Unmap(base, MiB(4)).ok());
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  // The same offsets again: without memory, they read as zeros.
  const PageHandle again = CreatePage(64);
  ASSERT_TRUE(MapOne(base, again).ok());
  EXPECT_LT(SharedResidentBytes(), before + MiB(1).value());
  EXPECT_EQ(ByteAt(base, 4096), 0);
}

// ---- Mapping ----------------------------------------------------------------

TEST_F(HostDriverTest, OnePageAtTwoAddressesIsOneMemory) {
  const DeviceAddress base = Reserve(3);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  ASSERT_TRUE(MapOne(At(base, 2 * kPageBytes), page).ok());
  ByteAt(base, 17) = 1;
  EXPECT_EQ(ByteAt(base, 2 * kPageBytes + 17), 1);
  ByteAt(base, 2 * kPageBytes + 17) = 2;
  EXPECT_EQ(ByteAt(base, 17), 2);
}

TEST_F(HostDriverTest, MapsOnePageTwiceInOneCall) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->Map(base, std::vector{page, page}).ok());
  ByteAt(base) = 3;
  EXPECT_EQ(ByteAt(base, kPageBytes), 3);
}

TEST_F(HostDriverTest, MapsPagesInTheOrderGiven) {
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

TEST_F(HostDriverTest, MapRefusesWhatIsNotOneFreeReservedRange) {
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

TEST_F(HostDriverTest, MapRefusesARangeAcrossTwoReservations) {
  // Neighbours, as the kernel usually places them; where it does not, the call
  // is refused for the gap.
  const DeviceAddress first = Reserve(2);
  const DeviceAddress second = Reserve(2);
  const DeviceAddress low = std::min(first, second);
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(At(low, kPageBytes), CreatePages(2)));
}

TEST_F(HostDriverTest, MapRefusesUnknownHandlesAndChangesNothing) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  EXPECT_STATUS(kNotFound, "page 99",
                driver_->Map(base, std::vector{page, PageHandle(99)}));
  ASSERT_TRUE(MapOne(base, page).ok());
}

TEST_F(HostDriverTest, UnmapTakesWholePagesWithoutGaps) {
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

TEST_F(HostDriverTest, PagesOfOneCallAreOfOneDevice) {
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
  ByteAt(base) = 1;
  EXPECT_EQ(ByteAt(base, kPageBytes), 0);
}

using HostDriverDeathTest = HostDriverTest;

TEST_F(HostDriverDeathTest, AddressesWithoutMemoryFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceAddress base = Reserve(2);
  ASSERT_TRUE(MapOne(base, CreatePage()).ok());
  ByteAt(base) = 1;
  EXPECT_DEATH(ByteAt(base, kPageBytes) = 1, "");
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_DEATH(ByteAt(base) = 1, "");
}

// ---- Kernel mappings --------------------------------------------------------

// How many lines of the process's map lie in the range.
int KernelMappingsIn(DeviceAddress address, Bytes size) {
  std::ifstream file("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(file, line)) {
    const uint64_t start = std::stoull(line, nullptr, 16);
    if (start >= address.value() && start - address.value() < size.value()) {
      ++count;
    }
  }
  return count;
}

TEST_F(HostDriverTest, PagesCreatedInARowAreOneKernelMapping) {
  const DeviceAddress base = Reserve(64);
  const std::vector<PageHandle> pages = CreatePages(63);
  for (size_t i = 0; i < pages.size(); ++i) {
    ASSERT_TRUE(MapOne(At(base, i * kPageBytes), pages[i]).ok());
  }
  // The run of pages and, unless it merged with what lies behind, the gap.
  EXPECT_LE(KernelMappingsIn(base, MiB(4)), 2);
}

TEST_F(HostDriverTest, RunsOutOfKernelMappingsBeforeTheKernelDoes) {
  HostDriverOptions options = SmallOptions();
  options.mapping_limit = 16;
  driver_ = MakeDriver(options);
  const DeviceAddress base = Reserve(64);
  const std::vector<PageHandle> pages = CreatePages(32);
  // A page between gaps costs two mappings.
  uint64_t mapped = 0;
  absl::Status status;
  for (; mapped < 32; ++mapped) {
    status = MapOne(At(base, 2 * mapped * kPageBytes), pages[mapped]);
    if (!status.ok()) break;
  }
  EXPECT_STATUS(kResourceExhausted, "kernel mappings", status);
  EXPECT_EQ(mapped, 8u);
  // Filling a gap between the right pages needs none.
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_TRUE(MapOne(base, pages[0]).ok());
  EXPECT_STATUS(kResourceExhausted, "kernel mappings",
                MapOne(At(base, 32 * kPageBytes), pages[31]));
}

// ---- Teardown ---------------------------------------------------------------

TEST_F(HostDriverTest, NamesWhatIsStillHeld) {
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
  const DeviceAddress base = Reserve(1);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(MapOne(base, page).ok());
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  void* const pinned = *driver_->AllocatePinned(Bytes(5000));

  EXPECT_THAT(driver_->Leaks(), SizeIs(6));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("still reserved")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("still mapped")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("is not released")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("stream")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("event")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("pinned")));

  EXPECT_TRUE(driver_->FreePinned(pinned).ok());
  EXPECT_TRUE(driver_->DestroyEvent(event).ok());
  EXPECT_TRUE(driver_->DestroyStream(stream).ok());
  EXPECT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_TRUE(driver_->ReleaseAddress(base, kPage).ok());
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(HostDriverTest, PinnedMemoryIsFreedOnceAndByItsStart) {
  EXPECT_STATUS(kInvalidArgument, "size is 0",
                driver_->AllocatePinned(Bytes(0)).status());
  EXPECT_STATUS(kResourceExhausted, "out of host memory",
                driver_->AllocatePinned(Bytes(UINT64_MAX)).status());
  EXPECT_STATUS(kResourceExhausted, "out of host memory",
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

// ---- Costs ------------------------------------------------------------------

TEST_F(HostDriverTest, ChargesTheVirtualClockByTheCostTable) {
  HostDriverOptions options = SmallOptions();
  options.costs = {1, 10, 100, 1000, 10'000, 100'000, 1'000'000, 10'000'000};
  driver_ = MakeDriver(options);
  const DeviceAddress base = Reserve(4);
  const std::vector<PageHandle> pages = CreatePages(3);
  ASSERT_TRUE(driver_->Map(base, pages).ok());
  ASSERT_FALSE(driver_->Map(base, pages).ok());
  ASSERT_TRUE(driver_->Unmap(base, Bytes(3 * kPageBytes)).ok());
  ASSERT_TRUE(driver_->ReleasePage(pages[0]).ok());
  ASSERT_TRUE(driver_->ReleaseAddress(base, Bytes(4 * kPageBytes)).ok());
  ASSERT_TRUE(driver_->CreateStream(DeviceId(0)).ok());
  const uint64_t expected = 1 + 3 * 100 + (3 * 10'000 + 100'000) +
                            3 * 1'000'000 + 1000 + 10 + 10'000'000;
  EXPECT_EQ(driver_->clock()->nanoseconds(), expected);

  const DriverCallStatistics statistics = driver_->GetCallStatistics();
  EXPECT_EQ(statistics.total_nanoseconds(), expected);
  EXPECT_EQ(statistics.total_count(), 10u);
  EXPECT_EQ(statistics.CountOf("CreatePage"), 3u);
  EXPECT_EQ(statistics.CountOf("Map"), 2u);
  EXPECT_EQ(statistics.CountOf("NoSuchCall"), 0u);
  for (const DriverCallStatistics::Call& call : statistics.calls) {
    if (std::string(call.name) != "Map") {
      EXPECT_EQ(call.failed, 0u) << call.name;
      continue;
    }
    EXPECT_EQ(call.failed, 1u);
    EXPECT_EQ(call.nanoseconds, 130'000u);
  }
}

// ---- Pages without memory ---------------------------------------------------

TEST(HostDriverWithoutBackingTest, SimulatesADeviceLargerThanTheMachine) {
  HostDriverOptions options;
  options.memory_per_device = GiB(141);
  options.backing = HostDriverOptions::Backing::kNone;
  const auto driver = MakeDriver(options);
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
        driver->Map(At(*base, 2 * i * MiB(2).value()), {&pages[i], 1}).ok());
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
