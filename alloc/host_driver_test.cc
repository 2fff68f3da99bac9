// What HostDriver promises beyond driver.h: kernel mappings, memory that goes
// back, the clock, the teardown check. driver_test.cc has the rest.

#include "quire/alloc/host_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "alloc/testing/driver_fixture.h"
#include "alloc/testing/expect_status.h"
#include "quire/alloc/host_pages.h"

namespace quire {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using HostDriverTest = DriverFixture<HostDriver>;

TEST(HostDriverOptionsTest, RefusesWhatCannotBeADevice) {
  HostDriverOptions options = HostDriverTest::SmallOptions();
  options.device_count = 0;
  EXPECT_STATUS(kInvalidArgument, "device_count",
                HostDriver::Create(options).status());
  options = HostDriverTest::SmallOptions();
  options.memory_per_device = Bytes(0);
  EXPECT_STATUS(kInvalidArgument, "memory_per_device",
                HostDriver::Create(options).status());
  for (const uint64_t granularity : {0u, 2048u, 12288u}) {
    options = HostDriverTest::SmallOptions();
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

// ---- Memory that goes back --------------------------------------------------

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

  alignas(4096) static std::byte page_of_host[4096];
  ASSERT_TRUE(driver_->PinMemory(page_of_host, KiB(4)).ok());

  EXPECT_THAT(driver_->Leaks(), SizeIs(7));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("still reserved")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("still mapped")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("is not released")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("stream")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("event")));
  EXPECT_THAT(driver_->Leaks(), Contains(HasSubstr("pinned")));

  EXPECT_TRUE(driver_->UnpinMemory(page_of_host).ok());
  EXPECT_TRUE(driver_->FreePinned(pinned).ok());
  EXPECT_TRUE(driver_->DestroyEvent(event).ok());
  EXPECT_TRUE(driver_->DestroyStream(stream).ok());
  EXPECT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_TRUE(driver_->ReleaseAddress(base, kPage).ok());
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(HostDriverTest, ListsPagesWithAllTheirAddresses) {
  const DeviceAddress base = Reserve(4);
  const DeviceAddress first(base.value() + kPage.value());
  const DeviceAddress third(base.value() + 3 * kPage.value());
  const PageHandle kept = CreatePage();
  const PageHandle shared = CreatePage();
  ASSERT_TRUE(MapOne(first, shared).ok());
  ASSERT_TRUE(MapOne(third, shared).ok());

  std::vector<HostPage> pages = ListHostPages(*driver_);
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(pages[0].offset, Bytes(0));
  EXPECT_EQ(pages[0].size, kPage);
  EXPECT_THAT(pages[0].addresses, IsEmpty());
  EXPECT_EQ(pages[1].offset, kPage);
  EXPECT_THAT(pages[1].addresses, ElementsAre(first, third));

  // A page that was released lives on while it is mapped.
  EXPECT_TRUE(driver_->ReleasePage(kept).ok());
  EXPECT_TRUE(driver_->ReleasePage(shared).ok());
  EXPECT_TRUE(driver_->Unmap(first, kPage).ok());
  pages = ListHostPages(*driver_);
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_THAT(pages[0].addresses, ElementsAre(third));
  EXPECT_TRUE(driver_->Unmap(third, kPage).ok());
  EXPECT_THAT(ListHostPages(*driver_), IsEmpty());
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

}  // namespace
}  // namespace quire
