// A runtime with pools of small pages on two small devices.

#ifndef QUIRE_ALLOC_TESTING_RUNTIME_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_RUNTIME_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "alloc/testing/test_driver.h"
#include "quire/alloc/runtime.h"

namespace quire {

class RuntimeFixture : public ::testing::Test {
 protected:
  static constexpr Bytes kPage = KiB(64);
  static constexpr uint64_t kPageBytes = kPage.value();

  explicit RuntimeFixture(RuntimeOptions options = {}) {
    HostDriverOptions driver_options;
    driver_options.granularity = kPage;
    driver_options.memory_per_device = MiB(8);
    driver_options.device_count = 2;
    auto driver = TestDriver::Create(driver_options);
    EXPECT_TRUE(driver.ok()) << driver.status();
    options.page_size = kPage;
    auto runtime = Runtime::Create(*std::move(driver), options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
  }

  std::unique_ptr<Runtime> runtime_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_RUNTIME_FIXTURE_H_
