#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "quire/alloc/c_api.h"

namespace {

class CApiSleepTest : public ::testing::Test {
 protected:
  CApiSleepTest() {
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.host_memory_per_device = 256 << 20;
    runtime_ = quire::CreateTestRuntime(options);
    EXPECT_EQ(quire_runtime_get_allocator(runtime_, 0, &allocator_), QUIRE_OK);
    EXPECT_EQ(quire_owner_register(runtime_, "model/kv", &owner_), QUIRE_OK);
  }
  ~CApiSleepTest() override {
    quire_allocator_destroy(allocator_);
    quire_runtime_destroy(runtime_);
  }

  char* Allocate(uint64_t bytes) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner_;
    uint64_t address = 0;
    EXPECT_EQ(quire_allocator_allocate(allocator_, bytes, &options, &address),
              QUIRE_OK)
        << quire_last_error();
    return reinterpret_cast<char*>(address);
  }

  quire_runtime* runtime_ = nullptr;
  quire_allocator* allocator_ = nullptr;
  uint32_t owner_ = 0;
};

TEST_F(CApiSleepTest, SleepsAndWakes) {
  constexpr uint64_t kBytes = 5 << 20;
  char* const memory = Allocate(kBytes);
  std::memset(memory, 7, kBytes);
  uint64_t stream = 0;
  ASSERT_EQ(quire_stream_create(runtime_, 0, &stream), QUIRE_OK);
  const std::string folder = ::testing::TempDir();
  for (const quire_sleep_target target :
       {QUIRE_SLEEP_HOST, QUIRE_SLEEP_DISK, QUIRE_SLEEP_DROP}) {
    quire_sleep_options options = QUIRE_SLEEP_OPTIONS_INIT;
    options.target = target;
    options.folder = folder.c_str();
    options.streams = &stream;
    options.stream_count = 1;
    quire_sleep_report report = QUIRE_SLEEP_REPORT_INIT;
    ASSERT_EQ(quire_allocator_sleep(allocator_, owner_, &options, &report),
              QUIRE_OK)
        << quire_last_error();
    EXPECT_EQ(report.pages, 3u);
    EXPECT_EQ(report.pages_freed, 3u);
    EXPECT_EQ(report.bytes_moved, target == QUIRE_SLEEP_DROP ? 0u : 6u << 20);
    quire_allocate_options allocate = QUIRE_ALLOCATE_OPTIONS_INIT;
    allocate.owner = owner_;
    uint64_t address = 0;
    EXPECT_EQ(quire_allocator_allocate(allocator_, 1, &allocate, &address),
              QUIRE_FAILED_PRECONDITION);
    quire_allocator_statistics statistics = QUIRE_ALLOCATOR_STATISTICS_INIT;
    ASSERT_EQ(quire_allocator_get_statistics(allocator_, &statistics),
              QUIRE_OK);
    EXPECT_EQ(statistics.asleep_bytes, 6u << 20);
    ASSERT_EQ(
        quire_allocator_wake(allocator_, owner_, /*zero_dropped=*/1, nullptr),
        QUIRE_OK)
        << quire_last_error();
    const char expected = target == QUIRE_SLEEP_DROP ? 0 : 7;
    EXPECT_EQ(memory[0], expected);
    EXPECT_EQ(memory[kBytes - 1], expected);
  }
  EXPECT_EQ(quire_stream_destroy(runtime_, stream), QUIRE_OK);
}

TEST_F(CApiSleepTest, RefusesWhatIsWrong) {
  quire_sleep_options options = QUIRE_SLEEP_OPTIONS_INIT;
  EXPECT_EQ(quire_allocator_sleep(nullptr, owner_, nullptr, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_wake(nullptr, owner_, 0, nullptr),
            QUIRE_INVALID_ARGUMENT);
  options.target = 3;
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner_, &options, nullptr),
            QUIRE_INVALID_ARGUMENT);
  options.target = QUIRE_SLEEP_DISK;
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner_, &options, nullptr),
            QUIRE_INVALID_ARGUMENT);
  options.target = QUIRE_SLEEP_HOST;
  options.stream_count = 1;
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner_, &options, nullptr),
            QUIRE_INVALID_ARGUMENT);
  quire_sleep_report report{};
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner_, nullptr, &report),
            QUIRE_INVALID_ARGUMENT);
}

}  // namespace
