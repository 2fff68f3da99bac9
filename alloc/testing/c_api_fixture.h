// A runtime, a memory and an allocator through the C interface.

#ifndef QUIRE_ALLOC_TESTING_C_API_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_C_API_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "alloc/c_api_internal.h"
#include "alloc/testing/test_driver.h"
#include "quire/alloc/c_api.h"
#include "quire/alloc/host_driver.h"

namespace quire {

// What quire_runtime_create makes of the options, which name a software device,
// on the driver that the test runs on (test_driver.h). `driver`, where it is
// not null, is told which that is: it lives as long as the runtime.
inline quire_runtime* CreateTestRuntime(const quire_runtime_options& options,
                                        TestDriver** driver = nullptr) {
  HostDriverOptions driver_options;
  if (options.host_device_count != 0) {
    driver_options.device_count = options.host_device_count;
  }
  driver_options.memory_per_device = Bytes(options.host_memory_per_device);
  auto created = TestDriver::Create(driver_options);
  EXPECT_TRUE(created.ok()) << created.status();
  if (!created.ok()) return nullptr;
  if (driver != nullptr) *driver = created->get();
  auto runtime = c_api::CreateRuntime(options, *std::move(created));
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return runtime.ok() ? runtime->release() : nullptr;
}

// A device of 64 MiB with memory behind it.
class CApiFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kPage = 2 << 20;

  CApiFixture() {
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.host_memory_per_device = 32 * kPage;
    runtime_ = CreateTestRuntime(options, &driver_);
    EXPECT_EQ(quire_runtime_get_allocator(runtime_, 0, &allocator_), QUIRE_OK);
    EXPECT_EQ(quire_runtime_get_memory(runtime_, 0, &memory_), QUIRE_OK);
  }
  ~CApiFixture() override {
    EXPECT_EQ(quire_allocator_check_invariants(allocator_), QUIRE_OK)
        << quire_last_error();
    EXPECT_EQ(quire_memory_check_health(memory_), QUIRE_OK);
    quire_memory_destroy(memory_);
    quire_allocator_destroy(allocator_);
    quire_runtime_destroy(runtime_);
  }

  uint64_t Allocate(uint64_t bytes,
                    const quire_allocate_options* options = nullptr) {
    uint64_t address = 0;
    EXPECT_EQ(quire_allocator_allocate(allocator_, bytes, options, &address),
              QUIRE_OK)
        << quire_last_error();
    return address;
  }
  uint64_t AllocateOn(uint64_t stream, uint64_t bytes) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.stream = stream;
    return Allocate(bytes, &options);
  }
  quire_allocator_statistics Statistics() {
    quire_allocator_statistics statistics = QUIRE_ALLOCATOR_STATISTICS_INIT;
    EXPECT_EQ(quire_allocator_get_statistics(allocator_, &statistics),
              QUIRE_OK);
    return statistics;
  }
  quire_memory_statistics MemoryStatistics() {
    quire_memory_statistics statistics = QUIRE_MEMORY_STATISTICS_INIT;
    EXPECT_EQ(quire_memory_get_statistics(memory_, &statistics), QUIRE_OK);
    return statistics;
  }

  quire_owner_statistics OwnerStatistics(uint32_t owner) {
    quire_owner_statistics statistics = QUIRE_OWNER_STATISTICS_INIT;
    EXPECT_EQ(quire_memory_get_owner_statistics(memory_, owner, &statistics),
              QUIRE_OK);
    return statistics;
  }

  TestDriver* driver_ = nullptr;  // of the runtime
  quire_runtime* runtime_ = nullptr;
  quire_memory* memory_ = nullptr;
  quire_allocator* allocator_ = nullptr;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_C_API_FIXTURE_H_
