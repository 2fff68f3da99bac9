// What quire_allocator_free says of addresses that it must not take: the table
// in c_api.h.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/c_api_fixture.h"

namespace {

class CApiFreeTest : public quire::CApiFixture {
 protected:
  static constexpr uint64_t kSizes[] = {100, 100'000, 3 * kPage + 100};

  quire_status Free(uint64_t address, quire_allocator* allocator = nullptr) {
    return quire_allocator_free(allocator == nullptr ? allocator_ : allocator,
                                address, 0);
  }
  // For the start of `size` bytes, and for addresses inside of them.
  void ExpectFree(quire_status of_start, quire_status of_inside,
                  uint64_t address, uint64_t size) {
    for (const uint64_t offset : {uint64_t{8}, size / 2, size - 1}) {
      EXPECT_EQ(Free(address + offset), of_inside)
          << offset << " of " << size << ": " << quire_last_error();
    }
    EXPECT_EQ(Free(address), of_start)
        << size << " bytes: " << quire_last_error();
  }
  void ExpectFreed(uint64_t address, uint64_t size) {
    ExpectFree(QUIRE_FAILED_PRECONDITION, QUIRE_FAILED_PRECONDITION, address,
               size);
  }
};

TEST_F(CApiFreeTest, WhatIsLiveIsFreedOnce) {
  EXPECT_EQ(Free(0), QUIRE_OK);
  for (const uint64_t size : kSizes) {
    const uint64_t address = Allocate(size);
    ExpectFree(QUIRE_OK, QUIRE_INVALID_ARGUMENT, address, size);
    ExpectFreed(address, size);
    EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
    ExpectFreed(address, size);
    EXPECT_EQ(quire_memory_trim(memory_, 0, nullptr), QUIRE_OK);
    ExpectFreed(address, size);
  }
}

TEST_F(CApiFreeTest, WhatIsPinnedStays) {
  for (const uint64_t size : kSizes) {
    const uint64_t address = Allocate(size);
    ASSERT_EQ(quire_allocator_pin(allocator_, address), QUIRE_OK);
    ExpectFree(QUIRE_FAILED_PRECONDITION, QUIRE_INVALID_ARGUMENT, address,
               size);
    ASSERT_EQ(quire_allocator_unpin(allocator_, address), QUIRE_OK);
    EXPECT_EQ(Free(address), QUIRE_OK);
  }
}

TEST_F(CApiFreeTest, SleepChangesNothingOfIt) {
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &options.owner), QUIRE_OK);
  for (const uint64_t size : kSizes) {
    const uint64_t freed = Allocate(size, &options);
    const uint64_t live = Allocate(size, &options);
    const uint64_t stays = Allocate(size, &options);
    ASSERT_EQ(Free(freed), QUIRE_OK);
    ASSERT_EQ(
        quire_allocator_sleep(allocator_, options.owner, nullptr, nullptr),
        QUIRE_OK)
        << quire_last_error();
    ExpectFreed(freed, size);
    ExpectFree(QUIRE_OK, QUIRE_INVALID_ARGUMENT, live, size);
    ExpectFreed(live, size);
    ASSERT_EQ(quire_allocator_wake(allocator_, options.owner, 0, nullptr),
              QUIRE_OK);
    ExpectFreed(live, size);
    EXPECT_EQ(Free(stays), QUIRE_OK);
  }
}

TEST_F(CApiFreeTest, WhatIsOthersIsRefusedAsTheCallersMistake) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.host_memory_per_device = 32 * kPage;
  quire_runtime* const other = quire::CreateTestRuntime(options);
  quire_allocator* of_other_runtime = nullptr;
  ASSERT_EQ(quire_runtime_get_allocator(other, 0, &of_other_runtime), QUIRE_OK);
  quire_allocator* beside = nullptr;
  ASSERT_EQ(quire_allocator_create(memory_, nullptr, &beside), QUIRE_OK);
  for (const uint64_t size : kSizes) {
    // Leaves addresses behind that the one beside may come by.
    EXPECT_EQ(Free(Allocate(size)), QUIRE_OK);
    EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
    for (quire_allocator* const allocator : {of_other_runtime, beside}) {
      uint64_t address = 0;
      ASSERT_EQ(quire_allocator_allocate(allocator, size, nullptr, &address),
                QUIRE_OK);
      ExpectFree(QUIRE_INVALID_ARGUMENT, QUIRE_INVALID_ARGUMENT, address, size);
      EXPECT_EQ(Free(address, allocator), QUIRE_OK);
    }
  }
  std::vector<char> host(1000);
  ExpectFree(QUIRE_INVALID_ARGUMENT, QUIRE_INVALID_ARGUMENT,
             reinterpret_cast<uint64_t>(host.data()), host.size());
  quire_allocator_destroy(beside);
  quire_allocator_destroy(of_other_runtime);
  quire_runtime_destroy(other);
}

}  // namespace
