#include "quire/alloc/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kPage = 2 << 20;

// Text that the library gave, as a string.
std::string Take(char* text) {
  const std::string copy = text == nullptr ? "(null)" : text;
  quire_string_free(text);
  return copy;
}

// A software device of 64 MiB with memory behind it.
class CApiTest : public ::testing::Test {
 protected:
  CApiTest() {
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.host_memory_per_device = 32 * kPage;
    EXPECT_EQ(quire_runtime_create(&options, &runtime_), QUIRE_OK)
        << quire_last_error();
    EXPECT_EQ(quire_runtime_get_allocator(runtime_, 0, &allocator_), QUIRE_OK);
    EXPECT_EQ(quire_runtime_get_memory(runtime_, 0, &memory_), QUIRE_OK);
  }
  ~CApiTest() override {
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
    quire_allocator_statistics statistics;
    statistics.size = sizeof(statistics);
    EXPECT_EQ(quire_allocator_get_statistics(allocator_, &statistics),
              QUIRE_OK);
    return statistics;
  }
  quire_memory_statistics MemoryStatistics() {
    quire_memory_statistics statistics;
    statistics.size = sizeof(statistics);
    EXPECT_EQ(quire_memory_get_statistics(memory_, &statistics), QUIRE_OK);
    return statistics;
  }

  quire_runtime* runtime_ = nullptr;
  quire_memory* memory_ = nullptr;
  quire_allocator* allocator_ = nullptr;
};

// ---- Version and layout -----------------------------------------------------

TEST(CApiVersionTest, IsThatOfTheProject) {
  EXPECT_STREQ(quire_alloc_version(), QUIRE_VERSION);
}

// Programs are linked to these numbers. Fields may be added at the end, where
// c_api_internal.h says how; nothing here may change.
TEST(CApiLayoutTest, IsTheOneThatProgramsWereBuiltWith) {
  EXPECT_EQ(offsetof(quire_runtime_options, host_memory_per_device), 16u);
  EXPECT_EQ(offsetof(quire_runtime_options, disable_trace), 48u);
  EXPECT_EQ(sizeof(quire_runtime_options), 56u);
  EXPECT_EQ(offsetof(quire_allocator_options, thread_cache), 24u);
  EXPECT_EQ(sizeof(quire_allocator_options), 32u);
  EXPECT_EQ(offsetof(quire_allocate_options, owner), 24u);
  EXPECT_EQ(sizeof(quire_allocate_options), 32u);
  EXPECT_EQ(offsetof(quire_allocation_info, owner), 40u);
  EXPECT_EQ(sizeof(quire_allocation_info), 48u);
  EXPECT_EQ(offsetof(quire_shortage, held_as_slack), 64u);
  EXPECT_EQ(sizeof(quire_shortage), 72u);
  EXPECT_EQ(offsetof(quire_memory_statistics, commits_from_cache), 160u);
  EXPECT_EQ(offsetof(quire_allocator_statistics, metadata_bytes), 128u);
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
  expect_null(quire_memory_get_owner_live_bytes(nullptr, 0, &number), "memory");
  expect_null(quire_memory_get_owner_live_bytes(memory_, 0, nullptr), "bytes");
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

// ---- Memory -----------------------------------------------------------------

TEST_F(CApiTest, AllocatesMemoryThatHoldsWhatIsWritten) {
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
    quire_allocation_info info;
    info.size = sizeof(info);
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

TEST_F(CApiTest, RefusesToFreeWhatIsNotLive) {
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
  quire_allocation_info info;
  info.size = sizeof(info);
  EXPECT_EQ(quire_allocator_find(allocator_, address, &info), QUIRE_NOT_FOUND);
}

TEST_F(CApiTest, SurvivesSizesOfAnyRequest) {
  for (const uint64_t bytes : {uint64_t{SIZE_MAX}, uint64_t{SIZE_MAX} - 255,
                               uint64_t{SIZE_MAX} / 2, uint64_t{1} << 47}) {
    uint64_t address = 7;
    EXPECT_EQ(quire_allocator_allocate(allocator_, bytes, nullptr, &address),
              QUIRE_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(address, 7u);
    quire_shortage shortage;
    shortage.size = sizeof(shortage);
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

TEST_F(CApiTest, GivesTheVerdictOfAShortageAndOfNothingElse) {
  quire_shortage shortage;
  shortage.size = sizeof(shortage);
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

TEST_F(CApiTest, GivesPagesBack) {
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

TEST_F(CApiTest, ObservesTheLimit) {
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
  quire_shortage shortage;
  shortage.size = sizeof(shortage);
  ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
  EXPECT_EQ(shortage.kind, QUIRE_SHORTAGE_LIMIT);
  EXPECT_EQ(shortage.limit, 4 * kPage);
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
}

// ---- Streams, owners, reports -----------------------------------------------

TEST_F(CApiTest, ReusesMemoryInStreamOrder) {
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

TEST_F(CApiTest, AccountsPagesToTheirOwner) {
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
  uint64_t bytes = 0;
  EXPECT_EQ(quire_memory_get_owner_live_bytes(memory_, owner, &bytes),
            QUIRE_OK);
  EXPECT_EQ(bytes, 3 * kPage);
  EXPECT_EQ(quire_memory_get_owner_live_bytes(memory_, UINT32_MAX, &bytes),
            QUIRE_OK);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiTest, DescribesTheMemory) {
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

}  // namespace
