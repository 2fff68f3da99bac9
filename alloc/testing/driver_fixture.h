// A small device behind a driver that plays it in the host's memory, with what
// most calls need. For tests of the driver seam, whichever driver they are of.

#ifndef QUIRE_ALLOC_TESTING_DRIVER_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_DRIVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/host_driver.h"

namespace quire {

// `TheDriver` is made from HostDriverOptions: HostDriver or TestDriver.
template <typename TheDriver>
class DriverFixture : public ::testing::Test {
 public:
  static constexpr Bytes kPage = KiB(64);
  static constexpr uint64_t kPageBytes = kPage.value();

  static HostDriverOptions SmallOptions() {
    HostDriverOptions options;
    options.memory_per_device = MiB(4);
    options.granularity = kPage;
    return options;
  }
  static std::unique_ptr<TheDriver> MakeDriver(
      const HostDriverOptions& options) {
    auto driver = TheDriver::Create(options);
    EXPECT_TRUE(driver.ok()) << driver.status();
    return *std::move(driver);
  }
  static DeviceAddress At(DeviceAddress base, uint64_t offset) {
    return *CheckedAdd(base, Bytes(offset));
  }
  // The compiler may assume that two addresses of one page are two objects, so
  // aliased memory is read and written through volatile.
  static volatile uint8_t& ByteAt(DeviceAddress address, uint64_t offset = 0) {
    return *At(address, offset).template host_pointer<volatile uint8_t>();
  }

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

  std::unique_ptr<TheDriver> driver_ = MakeDriver(SmallOptions());
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_DRIVER_FIXTURE_H_
