#include "quire/alloc/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using CApiTest = quire::CApiFixture;

// ---- Version and layout -----------------------------------------------------

TEST(CApiVersionTest, IsThatOfTheProject) {
  EXPECT_STREQ(quire_alloc_version(), QUIRE_VERSION);
}

// Programs are linked to these numbers. Fields may be added at the end, where
// c_api_internal.h says how; nothing here may change.
TEST(CApiLayoutTest, IsTheOneThatProgramsWereBuiltWith) {
  EXPECT_EQ(offsetof(quire_runtime_options, host_memory_per_device), 16u);
  EXPECT_EQ(offsetof(quire_runtime_options, disable_trace), 48u);
  EXPECT_EQ(offsetof(quire_runtime_options, headroom), 56u);
  EXPECT_EQ(offsetof(quire_runtime_options, listener), 72u);
  EXPECT_EQ(offsetof(quire_allocator_options, thread_cache), 24u);
  EXPECT_EQ(offsetof(quire_allocator_options, listener), 32u);
  EXPECT_EQ(offsetof(quire_allocator_options, leak_context), 48u);
  EXPECT_EQ(offsetof(quire_allocate_options, owner), 24u);
  EXPECT_EQ(offsetof(quire_allocate_options, movable), 28u);
  EXPECT_EQ(sizeof(quire_allocate_options), 32u);
  EXPECT_EQ(offsetof(quire_allocation_info, owner), 40u);
  EXPECT_EQ(sizeof(quire_allocation_info), 48u);
  EXPECT_EQ(offsetof(quire_shortage, held_as_slack), 64u);
  EXPECT_EQ(offsetof(quire_shortage, relocation_frees), 104u);
  EXPECT_EQ(sizeof(quire_owner_limits), 40u);
  EXPECT_EQ(offsetof(quire_owner_statistics, over_hard), 88u);
  EXPECT_EQ(offsetof(quire_owner_statistics, pressure), 104u);
  EXPECT_EQ(offsetof(quire_memory_statistics, commits_from_cache), 160u);
  EXPECT_EQ(offsetof(quire_memory_statistics, asleep_on_disk), 192u);
  EXPECT_EQ(offsetof(quire_allocator_statistics, metadata_bytes), 128u);
  EXPECT_EQ(offsetof(quire_allocator_statistics, asleep_bytes), 136u);
  EXPECT_EQ(offsetof(quire_allocator_statistics, graph_pool_bytes), 144u);
  EXPECT_EQ(offsetof(quire_sleep_options, section), 40u);
  EXPECT_EQ(offsetof(quire_mesh_options, owner), 20u);
  EXPECT_EQ(offsetof(quire_compaction_thresholds, least_seconds), 24u);
  EXPECT_EQ(offsetof(quire_compaction_report, seconds), 40u);
  EXPECT_EQ(offsetof(quire_compaction_listener, after_move), 40u);
  EXPECT_EQ(offsetof(quire_relocation_limits, owner), 28u);
  EXPECT_EQ(offsetof(quire_relocation_move, owner), 32u);
  EXPECT_EQ(offsetof(quire_memory_hooks, on_out_of_memory), 40u);
  EXPECT_EQ(offsetof(quire_pressure_change, owner), 36u);
  EXPECT_EQ(offsetof(quire_mapping_change, owner), 24u);
  EXPECT_EQ(QUIRE_COMPACTION_WAKE, 4);
  EXPECT_EQ(QUIRE_MOVE_DESTROY, 2);
  EXPECT_EQ(QUIRE_PRESSURE_CRITICAL, 2);
  EXPECT_EQ(QUIRE_SNAPSHOT_PYTORCH, 2);
  EXPECT_EQ(QUIRE_INTERNAL, 8);
  EXPECT_EQ(QUIRE_SHORTAGE_MAPPINGS, 7);
  EXPECT_EQ(QUIRE_DRIVER_CUDA, 2);
}

TEST(CApiStatusTest, HasNamesForAllNumbers) {
  std::set<std::string> names;
  for (quire_status status = QUIRE_OK; status <= QUIRE_INTERNAL; ++status) {
    names.insert(quire_status_name(status));
  }
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(names.count("UNKNOWN"), 0u);
  EXPECT_STREQ(quire_status_name(-1), "UNKNOWN");
  EXPECT_STREQ(quire_status_name(INT_MAX), "UNKNOWN");
}

// ---- Arguments --------------------------------------------------------------

TEST_F(CApiTest, NamesTheArgumentThatIsNull) {
  uint64_t number = 7;
  uint32_t owner = 7;
  int32_t count = 7;
  char* text = nullptr;
  quire_memory* memory = nullptr;
  quire_allocator* allocator = nullptr;
  quire_allocation_info info;
  quire_memory_statistics memory_statistics;
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  quire_owner_statistics owner_statistics;
  quire_allocator_statistics statistics;
  const auto expect_null = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(std::string(quire_last_error()), std::string(name) + " is NULL");
  };
  expect_null(quire_last_shortage(nullptr), "shortage");
  expect_null(quire_runtime_create(nullptr, nullptr), "runtime");
  expect_null(quire_runtime_get_device_count(nullptr, &count), "runtime");
  expect_null(quire_runtime_get_device_count(runtime_, nullptr), "count");
  expect_null(quire_runtime_get_snapshot_json(nullptr, 0, &text), "runtime");
  expect_null(quire_runtime_get_snapshot_json(runtime_, 0, nullptr), "json");
  expect_null(quire_runtime_get_report(nullptr, 0, &text), "runtime");
  expect_null(quire_runtime_get_report(runtime_, 0, nullptr), "text");
  expect_null(
      quire_runtime_write_snapshot(nullptr, 0, QUIRE_SNAPSHOT_JSON, "x"),
      "runtime");
  expect_null(
      quire_runtime_write_snapshot(runtime_, 0, QUIRE_SNAPSHOT_JSON, nullptr),
      "path");
  expect_null(quire_stream_create(nullptr, 0, &number), "runtime");
  expect_null(quire_stream_create(runtime_, 0, nullptr), "stream");
  expect_null(quire_stream_destroy(nullptr, 1), "runtime");
  expect_null(quire_stream_synchronize(nullptr, 1), "runtime");
  expect_null(quire_owner_register(nullptr, "kv", &owner), "runtime");
  expect_null(quire_owner_register(runtime_, nullptr, &owner), "name");
  expect_null(quire_owner_register(runtime_, "kv", nullptr), "owner");
  expect_null(quire_owner_get_name(nullptr, 0, &text), "runtime");
  expect_null(quire_owner_get_name(runtime_, 0, nullptr), "name");
  expect_null(quire_runtime_get_memory(nullptr, 0, &memory), "runtime");
  expect_null(quire_runtime_get_memory(runtime_, 0, nullptr), "memory");
  expect_null(quire_memory_get_statistics(nullptr, &memory_statistics),
              "memory");
  expect_null(quire_memory_get_statistics(memory_, nullptr), "statistics");
  expect_null(quire_memory_set_limit(nullptr, kPage), "memory");
  expect_null(quire_memory_limit_from_utilization(nullptr, 0.5, 0, &number),
              "memory");
  expect_null(quire_memory_limit_from_utilization(memory_, 0.5, 0, nullptr),
              "limit");
  expect_null(quire_memory_set_owner_limits(nullptr, 0, &limits), "memory");
  expect_null(quire_memory_set_owner_limits(memory_, 0, nullptr), "limits");
  expect_null(quire_memory_get_owner_statistics(nullptr, 0, &owner_statistics),
              "memory");
  expect_null(quire_memory_get_owner_statistics(memory_, 0, nullptr),
              "statistics");
  expect_null(quire_memory_prepare(nullptr, 1), "memory");
  expect_null(quire_memory_trim(nullptr, 0, nullptr), "memory");
  expect_null(quire_memory_check_health(nullptr), "memory");
  expect_null(quire_runtime_get_allocator(nullptr, 0, &allocator), "runtime");
  expect_null(quire_runtime_get_allocator(runtime_, 0, nullptr), "allocator");
  expect_null(quire_allocator_create(nullptr, nullptr, &allocator), "memory");
  expect_null(quire_allocator_create(memory_, nullptr, nullptr), "allocator");
  expect_null(quire_allocator_allocate(nullptr, 1, nullptr, &number),
              "allocator");
  expect_null(quire_allocator_allocate(allocator_, 1, nullptr, nullptr),
              "address");
  expect_null(quire_allocator_free(nullptr, 1, 0), "allocator");
  expect_null(quire_allocator_record_stream(nullptr, 1, 1), "allocator");
  expect_null(quire_allocator_find(nullptr, 1, &info), "allocator");
  expect_null(quire_allocator_find(allocator_, 1, nullptr), "info");
  expect_null(quire_allocator_trim(nullptr, 0, nullptr), "allocator");
  expect_null(quire_allocator_get_statistics(nullptr, &statistics),
              "allocator");
  expect_null(quire_allocator_get_statistics(allocator_, nullptr),
              "statistics");
  expect_null(quire_allocator_get_largest_possible(nullptr, &number),
              "allocator");
  expect_null(quire_allocator_get_largest_possible(allocator_, nullptr),
              "bytes");
  expect_null(quire_allocator_get_largest_possible_for(nullptr, 0, &number),
              "allocator");
  expect_null(quire_allocator_get_largest_possible_for(allocator_, 0, nullptr),
              "bytes");
  expect_null(quire_allocator_check_invariants(nullptr), "allocator");
  // Nothing was written.
  EXPECT_EQ(number, 7u);
  EXPECT_EQ(owner, 7u);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(text, nullptr);
}

TEST(CApiNullTest, DestroysNothing) {
  quire_runtime_destroy(nullptr);
  quire_memory_destroy(nullptr);
  quire_allocator_destroy(nullptr);
  quire_string_free(nullptr);
}

TEST_F(CApiTest, RefusesDevicesThatAreNotThere) {
  for (const int32_t device : {-1, 1, INT32_MAX, INT32_MIN}) {
    uint64_t stream = 0;
    char* text = nullptr;
    quire_memory* memory = nullptr;
    quire_allocator* allocator = nullptr;
    EXPECT_EQ(quire_runtime_get_memory(runtime_, device, &memory),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(device)));
    EXPECT_EQ(quire_runtime_get_allocator(runtime_, device, &allocator),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_runtime_get_snapshot_json(runtime_, device, &text),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_runtime_get_report(runtime_, device, &text),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_runtime_write_snapshot(runtime_, device,
                                           QUIRE_SNAPSHOT_JSON, "not written"),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_stream_create(runtime_, device, &stream),
              QUIRE_INVALID_ARGUMENT);
  }
}

TEST(CApiRuntimeTest, RefusesOptionsThatNoRuntimeCanHave) {
  const auto refuses = [](void (*set)(quire_runtime_options*),
                          const char* message) {
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    set(&options);
    quire_runtime* runtime = nullptr;
    EXPECT_EQ(quire_runtime_create(&options, &runtime), QUIRE_INVALID_ARGUMENT)
        << message;
    EXPECT_THAT(quire_last_error(), HasSubstr(message));
    EXPECT_EQ(runtime, nullptr);
  };
  refuses([](auto* o) { o->driver = 3; }, "3");
  refuses([](auto* o) { o->driver = -1; }, "-1");
  refuses([](auto* o) { o->host_device_count = 65; }, "65");
  refuses([](auto* o) { o->host_device_count = INT32_MIN; }, "-2147483648");
  refuses([](auto* o) { o->page_size = 3 << 20; }, "3145728");
  refuses([](auto* o) { o->page_size = uint64_t{1} << 20; }, "1048576");
  refuses([](auto* o) { o->padding = 1; }, "byte 52");
}

TEST(CApiRuntimeTest, SurvivesSizesOfAnyMachine) {
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2, uint64_t{1} << 63}) {
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
    options.host_memory_per_device = bytes;
    options.limit = bytes;
    options.trace_capacity = bytes;
    quire_runtime* runtime = nullptr;
    const quire_status status = quire_runtime_create(&options, &runtime);
    EXPECT_EQ(status == QUIRE_OK, runtime != nullptr);
    quire_runtime_destroy(runtime);
  }
}

TEST(CApiRuntimeTest, SaysWhyThereIsNoCudaDriver) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.driver = QUIRE_DRIVER_CUDA;
  quire_runtime* runtime = nullptr;
  const quire_status status = quire_runtime_create(&options, &runtime);
  if (status == QUIRE_OK) {
    quire_runtime_destroy(runtime);
    GTEST_SKIP() << "there is one";
  }
  EXPECT_EQ(status, QUIRE_UNAVAILABLE);
  EXPECT_STRNE(quire_last_error(), "");
}

TEST_F(CApiTest, KeepsErrorsOfThreadsApart) {
  EXPECT_EQ(quire_memory_prepare(nullptr, 0), QUIRE_INVALID_ARGUMENT);
  std::thread other([&] {
    EXPECT_STREQ(quire_last_error(), "");
    EXPECT_EQ(quire_allocator_free(allocator_, 1, 0), QUIRE_INVALID_ARGUMENT);
    EXPECT_STRNE(quire_last_error(), "");
  });
  other.join();
  EXPECT_STREQ(quire_last_error(), "memory is NULL");
}

// ---- Structs of other versions ----------------------------------------------

// The options of a later version: two fields that this library does not know.
struct LaterOptions {
  quire_allocate_options known;
  uint64_t unknown[2];
};

TEST_F(CApiTest, TakesOptionsOfLaterVersionsWhoseNewFieldsAreZero) {
  LaterOptions options{};
  options.known.size = sizeof(options);
  options.known.alignment = 4096;
  EXPECT_EQ(Allocate(100, &options.known) % 4096, 0u);
  options.unknown[1] = 1;
  uint64_t address = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 100, &options.known, &address),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(),
              StartsWith("quire_allocate_options has a field at byte 40"));
}

TEST_F(CApiTest, RefusesSizesThatNoVersionHas) {
  uint64_t address = 0;
  for (const size_t size :
       {size_t{0}, size_t{8}, sizeof(quire_allocate_options) - 1, size_t{4097},
        SIZE_MAX}) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.size = size;
    EXPECT_EQ(quire_allocator_allocate(allocator_, 1, &options, &address),
              QUIRE_INVALID_ARGUMENT)
        << size;
    EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(size)));
    quire_allocator_statistics statistics{};
    statistics.size = size;
    EXPECT_EQ(quire_allocator_get_statistics(allocator_, &statistics),
              QUIRE_INVALID_ARGUMENT)
        << size;
    EXPECT_EQ(statistics.version, 0u);
  }
}

TEST_F(CApiTest, ZeroesResultFieldsOfLaterVersions) {
  struct {
    quire_memory_statistics known;
    uint64_t unknown;
  } later;
  std::memset(&later, 0xee, sizeof(later));
  later.known.size = sizeof(later);
  ASSERT_EQ(quire_memory_get_statistics(memory_, &later.known), QUIRE_OK);
  EXPECT_EQ(later.known.size, sizeof(later));
  EXPECT_EQ(later.known.version, uint32_t{QUIRE_MEMORY_STATISTICS_VERSION});
  EXPECT_EQ(later.known.page_size, kPage);
  EXPECT_EQ(later.unknown, 0u);
}

// ---- Handles ----------------------------------------------------------------

TEST(CApiHandleTest, AreDestroyedInAnyOrder) {
  for (const bool runtime_first : {true, false}) {
    quire_runtime* runtime = nullptr;
    quire_memory* memory = nullptr;
    quire_allocator* allocators[3] = {};
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
    ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
    ASSERT_EQ(quire_runtime_get_memory(runtime, 0, &memory), QUIRE_OK);
    ASSERT_EQ(quire_allocator_create(memory, nullptr, &allocators[0]),
              QUIRE_OK);
    ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocators[1]),
              QUIRE_OK);
    ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocators[2]),
              QUIRE_OK);
    if (runtime_first) quire_runtime_destroy(runtime);
    quire_memory_destroy(memory);
    uint64_t address = 0;
    for (quire_allocator* const allocator : allocators) {
      EXPECT_EQ(quire_allocator_allocate(allocator, 5 << 20, nullptr, &address),
                QUIRE_OK);
      quire_allocator_destroy(allocator);
    }
    if (!runtime_first) quire_runtime_destroy(runtime);
  }
}

TEST_F(CApiTest, GivesTheRuntimesAllocatorAgain) {
  quire_allocator* again = nullptr;
  ASSERT_EQ(quire_runtime_get_allocator(runtime_, 0, &again), QUIRE_OK);
  const uint64_t address = Allocate(1000);
  EXPECT_EQ(quire_allocator_free(again, address, 0), QUIRE_OK);
  quire_allocator_destroy(again);
}

TEST_F(CApiTest, KeepsAllocatorsOnTheSamePagesApart) {
  quire_allocator* other = nullptr;
  quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
  options.seed = 42;
  options.fence_batch = 1;
  options.thread_cache = 1;
  ASSERT_EQ(quire_allocator_create(memory_, &options, &other), QUIRE_OK);
  const uint64_t address = Allocate(1000);
  EXPECT_EQ(quire_allocator_free(other, address, 0), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  quire_allocator_destroy(other);
}

}  // namespace
