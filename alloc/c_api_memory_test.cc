// Memory, limits, streams, owners and reports through the C interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::HasSubstr;

using CApiMemoryTest = quire::CApiFixture;

// Text that the library gave, as a string.
std::string Take(char* text) {
  const std::string copy = text == nullptr ? "(null)" : text;
  quire_string_free(text);
  return copy;
}

// ---- Memory -----------------------------------------------------------------

TEST_F(CApiMemoryTest, AllocatesMemoryThatHoldsWhatIsWritten) {
  const std::vector<uint64_t> sizes = {1, 256, 5000, 3 << 20};
  std::vector<uint64_t> addresses;
  for (const uint64_t size : sizes) {
    addresses.push_back(Allocate(size));
    EXPECT_EQ(addresses.back() % 256, 0u);
    std::memset(reinterpret_cast<void*>(addresses.back()),
                static_cast<int>(addresses.size()), size);
  }
  uint64_t requested = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(addresses[i]);
    EXPECT_EQ(bytes[0], i + 1);
    EXPECT_EQ(bytes[sizes[i] - 1], i + 1);
    quire_allocation_info info = QUIRE_ALLOCATION_INFO_INIT;
    ASSERT_EQ(
        quire_allocator_find(allocator_, addresses[i] + sizes[i] - 1, &info),
        QUIRE_OK);
    EXPECT_EQ(info.address, addresses[i]);
    EXPECT_EQ(info.requested, sizes[i]);
    EXPECT_GE(info.allocated, sizes[i]);
    requested += sizes[i];
  }
  EXPECT_EQ(Statistics().live_allocations, sizes.size());
  EXPECT_EQ(Statistics().requested_bytes, requested);
  for (const uint64_t address : addresses) {
    EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  }
  EXPECT_EQ(Statistics().live_allocations, 0u);
  EXPECT_EQ(Statistics().total_frees, sizes.size());
}

TEST_F(CApiMemoryTest, RefusesToFreeWhatIsNotLive) {
  const uint64_t address = Allocate(1000);
  EXPECT_EQ(quire_allocator_free(allocator_, 0, 0), QUIRE_OK);
  EXPECT_EQ(quire_allocator_free(allocator_, address + 1, 0),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_free(allocator_, 0x1000, 0),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_free(allocator_, UINT64_MAX, 0),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 12345), QUIRE_NOT_FOUND);
  EXPECT_EQ(Statistics().total_frees, 0u);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0),
            QUIRE_FAILED_PRECONDITION);
  quire_allocation_info info = QUIRE_ALLOCATION_INFO_INIT;
  EXPECT_EQ(quire_allocator_find(allocator_, address, &info), QUIRE_NOT_FOUND);
}

TEST_F(CApiMemoryTest, SurvivesSizesOfAnyRequest) {
  for (const uint64_t bytes : {uint64_t{SIZE_MAX}, uint64_t{SIZE_MAX} - 255,
                               uint64_t{SIZE_MAX} / 2, uint64_t{1} << 47}) {
    uint64_t address = 7;
    EXPECT_EQ(quire_allocator_allocate(allocator_, bytes, nullptr, &address),
              QUIRE_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(address, 7u);
    quire_shortage shortage = QUIRE_SHORTAGE_INIT;
    ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
    EXPECT_EQ(shortage.requested, bytes);
    EXPECT_EQ(shortage.largest_possible, 32 * kPage);
  }
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.alignment = 3;
  uint64_t address = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 1, &options, &address),
            QUIRE_INVALID_ARGUMENT);
  options.alignment = 0;
  options.owner = UINT32_MAX;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 1, &options, &address),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(Statistics().failed_allocations, 6u);
}

TEST_F(CApiMemoryTest, GivesTheVerdictOfAShortageAndOfNothingElse) {
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  EXPECT_EQ(quire_allocator_free(allocator_, 1, 0), QUIRE_INVALID_ARGUMENT);
  const std::string error = quire_last_error();
  EXPECT_EQ(quire_last_shortage(&shortage), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_last_error(), error);

  const uint64_t held = Allocate(30 * kPage);
  uint64_t largest = 0;
  EXPECT_EQ(quire_allocator_get_largest_possible(allocator_, &largest),
            QUIRE_OK);
  EXPECT_EQ(largest, 2 * kPage);
  uint64_t address = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 3 * kPage, nullptr, &address),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK) << quire_last_error();
  EXPECT_EQ(shortage.kind, QUIRE_SHORTAGE_CAPACITY);
  EXPECT_EQ(shortage.requested, 3 * kPage);
  EXPECT_EQ(shortage.free, 2 * kPage);
  EXPECT_EQ(shortage.device_total, 32 * kPage);
  EXPECT_THAT(quire_last_error(), HasSubstr("6.00 MiB"));
  // What was asked for once more does not forget the verdict; success neither.
  EXPECT_EQ(quire_allocator_free(allocator_, held, 0), QUIRE_OK);
  EXPECT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
}

TEST_F(CApiMemoryTest, GivesPagesBack) {
  const uint64_t address = Allocate(10 * kPage);
  EXPECT_EQ(MemoryStatistics().in_use, 10 * kPage);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  uint64_t bytes = 0;
  EXPECT_EQ(quire_allocator_trim(allocator_, 4 * kPage, &bytes), QUIRE_OK);
  EXPECT_GE(bytes, 6 * kPage);
  uint64_t pages = 0;
  EXPECT_EQ(quire_memory_trim(memory_, 0, &pages), QUIRE_OK);
  EXPECT_EQ(pages, 10u);
  EXPECT_EQ(MemoryStatistics().in_use, 0u);
  EXPECT_EQ(quire_memory_prepare(memory_, UINT64_MAX), QUIRE_OK);
  EXPECT_EQ(MemoryStatistics().cached, 32 * kPage);
  EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_memory_trim(memory_, UINT64_MAX, nullptr), QUIRE_OK);
  EXPECT_EQ(MemoryStatistics().cached, 32 * kPage);
}

TEST_F(CApiMemoryTest, ObservesTheLimit) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.limit = 4 * kPage;
  options.disable_trace = 1;
  quire_runtime* runtime = nullptr;
  quire_allocator* allocator = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
  ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocator), QUIRE_OK);
  uint64_t address = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator, 5 * kPage, nullptr, &address),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
  EXPECT_EQ(shortage.kind, QUIRE_SHORTAGE_LIMIT);
  EXPECT_EQ(shortage.limit, 4 * kPage);
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
}

// ---- Streams, owners, reports -----------------------------------------------

TEST_F(CApiMemoryTest, ReusesMemoryInStreamOrder) {
  uint64_t first = 0;
  uint64_t second = 0;
  ASSERT_EQ(quire_stream_create(runtime_, 0, &first), QUIRE_OK);
  ASSERT_EQ(quire_stream_create(runtime_, 0, &second), QUIRE_OK);
  EXPECT_NE(first, second);
  const uint64_t address = AllocateOn(first, 4 * kPage);
  EXPECT_EQ(quire_allocator_record_stream(allocator_, address, second),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_record_stream(allocator_, address, 12345),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_allocator_free(allocator_, address, first), QUIRE_OK);
  EXPECT_EQ(quire_stream_synchronize(runtime_, first), QUIRE_OK);
  EXPECT_EQ(quire_stream_synchronize(runtime_, second), QUIRE_OK);
  EXPECT_EQ(AllocateOn(second, 4 * kPage), address);
  EXPECT_EQ(quire_stream_destroy(runtime_, first), QUIRE_OK);
  EXPECT_EQ(quire_stream_destroy(runtime_, first), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_stream_synchronize(runtime_, first), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_stream_destroy(runtime_, second), QUIRE_OK);
}

TEST_F(CApiMemoryTest, AccountsPagesToTheirOwner) {
  uint32_t owner = 0;
  uint32_t again = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "weights", &owner), QUIRE_OK);
  ASSERT_EQ(quire_owner_register(runtime_, "weights", &again), QUIRE_OK);
  EXPECT_EQ(owner, again);
  EXPECT_NE(owner, 0u);
  char* name = nullptr;
  ASSERT_EQ(quire_owner_get_name(runtime_, owner, &name), QUIRE_OK);
  EXPECT_EQ(Take(name), "weights");

  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  const uint64_t address = Allocate(3 * kPage, &options);
  const quire_owner_statistics weights = OwnerStatistics(owner);
  EXPECT_EQ(weights.owner, owner);
  EXPECT_EQ(weights.live, 3 * kPage);
  EXPECT_EQ(weights.own_live, 3 * kPage);
  EXPECT_EQ(weights.hard_room, UINT64_MAX);
  EXPECT_EQ(OwnerStatistics(UINT32_MAX).live, 0u);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiMemoryTest, HoldsOwnersToTheirLimits) {
  uint32_t model = 0;
  uint32_t kv = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &model), QUIRE_OK);
  ASSERT_EQ(quire_owner_register(runtime_, "model/kv", &kv), QUIRE_OK);
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  limits.hard = 4 * kPage;
  limits.soft = 2 * kPage;
  ASSERT_EQ(quire_memory_set_owner_limits(memory_, model, &limits), QUIRE_OK)
      << quire_last_error();
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = kv;
  const uint64_t address = Allocate(3 * kPage, &options);
  const quire_owner_statistics statistics = OwnerStatistics(model);
  EXPECT_EQ(statistics.own_live, 0u);
  EXPECT_EQ(statistics.live, 3 * kPage);
  EXPECT_EQ(statistics.hard_limit, 4 * kPage);
  EXPECT_EQ(statistics.soft_limit, 2 * kPage);
  EXPECT_EQ(statistics.hard_room, kPage);
  EXPECT_EQ(statistics.over_soft, kPage);
  uint64_t refused = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 2 * kPage, &options, &refused),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
  EXPECT_EQ(shortage.kind, QUIRE_SHORTAGE_LIMIT);
  EXPECT_EQ(shortage.owner_limit, 4 * kPage);
  EXPECT_EQ(shortage.owner_live, 3 * kPage);
  uint64_t largest = 0;
  ASSERT_EQ(quire_allocator_get_largest_possible_for(allocator_, kv, &largest),
            QUIRE_OK);
  EXPECT_EQ(largest, kPage);
  EXPECT_EQ(quire_allocator_get_largest_possible_for(allocator_, UINT32_MAX,
                                                     &largest),
            QUIRE_INVALID_ARGUMENT);

  limits.soft = 5 * kPage;  // above the hard one
  EXPECT_EQ(quire_memory_set_owner_limits(memory_, model, &limits),
            QUIRE_INVALID_ARGUMENT);
  limits.soft = 0;
  EXPECT_EQ(quire_memory_set_owner_limits(memory_, UINT32_MAX, &limits),
            QUIRE_INVALID_ARGUMENT);
  limits.hard = 0;
  limits.reserved_minimum = UINT64_MAX;
  EXPECT_NE(quire_memory_set_owner_limits(memory_, model, &limits), QUIRE_OK);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiMemoryTest, ComputesALimitFromAFractionOfTheDevice) {
  uint64_t limit = 0;
  EXPECT_EQ(quire_memory_limit_from_utilization(memory_, 0.5, 0, &limit),
            QUIRE_OK);
  EXPECT_EQ(limit, 16 * kPage);
  EXPECT_EQ(
      quire_memory_limit_from_utilization(memory_, 1.0, 12 * kPage, &limit),
      QUIRE_OK);
  EXPECT_EQ(limit, 20 * kPage);
  // What the memory has itself makes no difference.
  const uint64_t address = Allocate(9 * kPage);
  EXPECT_EQ(
      quire_memory_limit_from_utilization(memory_, 1.0, 12 * kPage, &limit),
      QUIRE_OK);
  EXPECT_EQ(limit, 20 * kPage);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  for (const double fraction : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_EQ(quire_memory_limit_from_utilization(memory_, fraction, 0, &limit),
              QUIRE_INVALID_ARGUMENT)
        << fraction;
  }
  EXPECT_EQ(
      quire_memory_limit_from_utilization(memory_, 1.0, UINT64_MAX, &limit),
      QUIRE_OUT_OF_DEVICE_MEMORY);
}

TEST_F(CApiMemoryTest, ChangesTheLimitWhileMemoryIsInUse) {
  const uint64_t address = Allocate(3 * kPage);
  EXPECT_EQ(quire_memory_set_limit(memory_, kPage), QUIRE_OK);
  EXPECT_EQ(MemoryStatistics().over_limit, 2 * kPage);
  uint64_t refused = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 3 * kPage, nullptr, &refused),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  EXPECT_EQ(quire_memory_set_limit(memory_, UINT64_MAX), QUIRE_OK);
  EXPECT_EQ(quire_memory_set_limit(memory_, 0), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_free(allocator_, Allocate(3 * kPage), 0), QUIRE_OK);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiMemoryTest, SetsASoftLimit) {
  ASSERT_EQ(quire_memory_set_soft_limit(memory_, 3 * kPage), QUIRE_OK);
  EXPECT_EQ(MemoryStatistics().soft_limit, 3 * kPage);
  EXPECT_EQ(MemoryStatistics().version, 4u);
  // Nothing is refused for its sake.
  const uint64_t address = Allocate(5 * kPage);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  EXPECT_EQ(quire_memory_set_soft_limit(memory_, 1), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(MemoryStatistics().soft_limit, 3 * kPage);
  EXPECT_EQ(quire_memory_set_soft_limit(memory_, 0), QUIRE_OK);
  EXPECT_EQ(MemoryStatistics().soft_limit, 0u);
  EXPECT_EQ(quire_memory_set_soft_limit(nullptr, 0), QUIRE_INVALID_ARGUMENT);
}

TEST_F(CApiMemoryTest, KnowsWhoseAnAddressIs) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "kv", &owner), QUIRE_OK);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  const uint64_t address = Allocate(3 * kPage, &options);
  uint32_t found = 77;
  EXPECT_EQ(
      quire_allocator_get_owner_of(allocator_, address + 2 * kPage, &found),
      QUIRE_OK);
  EXPECT_EQ(found, owner);
  EXPECT_EQ(quire_allocator_get_owner_of(allocator_, 1, &found),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_allocator_get_owner_of(nullptr, address, &found),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_get_owner_of(allocator_, address, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(found, owner);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiMemoryTest, LeavesHeadroomToOthers) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.host_memory_per_device = 32 * kPage;
  options.headroom = 12 * kPage;
  options.prepare_ahead = 2;
  quire_runtime* const runtime = quire::CreateTestRuntime(options);
  quire_allocator* allocator = nullptr;
  ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocator), QUIRE_OK);
  uint64_t largest = 0;
  ASSERT_EQ(quire_allocator_get_largest_possible(allocator, &largest),
            QUIRE_OK);
  EXPECT_EQ(largest, 20 * kPage);
  uint64_t address = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator, 21 * kPage, nullptr, &address),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  EXPECT_EQ(quire_allocator_allocate(allocator, 20 * kPage, nullptr, &address),
            QUIRE_OK);
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
}

TEST_F(CApiMemoryTest, WritesTheMemoryToFiles) {
  Allocate(3 * kPage);
  const std::string path = ::testing::TempDir() + "c_api_snapshot";
  const auto write = [&](quire_snapshot_format format) {
    EXPECT_EQ(quire_runtime_write_snapshot(runtime_, 0, format, path.c_str()),
              QUIRE_OK)
        << quire_last_error();
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string json = write(QUIRE_SNAPSHOT_JSON);
  EXPECT_EQ(
      nlohmann::json::parse(json, nullptr, false)["allocator"]["live_bytes"],
      3 * kPage);
  EXPECT_THAT(write(QUIRE_SNAPSHOT_HTML), HasSubstr("</html>"));
  // A pickle of protocol 2 or later, to its end.
  const std::string pickle = write(QUIRE_SNAPSHOT_PYTORCH);
  EXPECT_EQ(pickle.substr(0, 1), "\x80");
  EXPECT_EQ(pickle.back(), '.');
  for (const quire_snapshot_format format : {-1, 3}) {
    EXPECT_EQ(quire_runtime_write_snapshot(runtime_, 0, format, path.c_str()),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(format)));
  }
  const std::string nowhere = path + "/no/such/folder";
  EXPECT_EQ(quire_runtime_write_snapshot(runtime_, 0, QUIRE_SNAPSHOT_JSON,
                                         nowhere.c_str()),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr(nowhere));
  std::remove(path.c_str());
}

TEST_F(CApiMemoryTest, DescribesTheMemory) {
  uint32_t owner = 0;
  // Names are bytes: this one is no UTF-8.
  ASSERT_EQ(quire_owner_register(runtime_, "model \xff", &owner), QUIRE_OK);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  Allocate(3 * kPage, &options);
  char* text = nullptr;
  ASSERT_EQ(quire_runtime_get_snapshot_json(runtime_, 0, &text), QUIRE_OK)
      << quire_last_error();
  const std::string json = Take(text);
  EXPECT_TRUE(nlohmann::json::accept(json));
  EXPECT_THAT(json, HasSubstr("model \xef\xbf\xbd"));
  ASSERT_EQ(quire_runtime_get_report(runtime_, 0, &text), QUIRE_OK);
  EXPECT_THAT(Take(text), HasSubstr("6.00 MiB"));
}

}  // namespace
