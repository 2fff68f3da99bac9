// Quiescent sections, mesh, policies and pins through the C interface.

#include "quire/alloc/c_api_compaction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::HasSubstr;

class CApiCompactionTest : public quire::CApiFixture {
 protected:
  static constexpr uint64_t kSlot = 128 << 10;

  quire_quiescent_section* Section() {
    quire_quiescent_section* section = nullptr;
    EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section),
              QUIRE_OK)
        << quire_last_error();
    return section;
  }

  // Slabs in which one slot of eight is live, each filled with its number.
  std::vector<uint64_t> MakeSparseSlabs(uint32_t owner = 0) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner;
    std::vector<uint64_t> live;
    for (int i = 0; i < 128; ++i) {
      const uint64_t address = Allocate(kSlot, &options);
      std::memset(reinterpret_cast<void*>(address), i, kSlot);
      if (i % 8 == 0) {
        live.push_back(address);
      } else {
        freed_.push_back(address);
      }
    }
    for (const uint64_t address : freed_) {
      EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
    }
    freed_.clear();
    return live;
  }
  static void ExpectContents(const std::vector<uint64_t>& live) {
    for (size_t i = 0; i < live.size(); ++i) {
      const std::vector<unsigned char> expected(
          kSlot, static_cast<unsigned char>(8 * i));
      EXPECT_EQ(
          std::memcmp(reinterpret_cast<void*>(live[i]), expected.data(), kSlot),
          0)
          << i;
    }
  }

 private:
  std::vector<uint64_t> freed_;
};

// ---- Sections ---------------------------------------------------------------

TEST_F(CApiCompactionTest, ASectionIsOneAtATime) {
  quire_quiescent_section* const section = Section();
  quire_quiescent_section* second = nullptr;
  EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &second),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(second, nullptr);
  quire_quiescent_section_end(section);
  quire_quiescent_section_end(Section());
  quire_quiescent_section_end(nullptr);
}

TEST_F(CApiCompactionTest, ASectionChecksItsStreams) {
  quire_quiescent_section* section = nullptr;
  uint64_t stream = 0;
  ASSERT_EQ(quire_stream_create(runtime_, 0, &stream), QUIRE_OK);
  EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 1, &section),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_STREQ(quire_last_error(), "streams is NULL");
  const uint64_t none[] = {stream, 0};
  EXPECT_EQ(quire_quiescent_section_begin(memory_, none, 2, &section),
            QUIRE_INVALID_ARGUMENT);
  const uint64_t unknown[] = {12345};
  EXPECT_EQ(quire_quiescent_section_begin(memory_, unknown, 1, &section),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(
      quire_quiescent_section_begin(memory_, unknown, UINT64_MAX, &section),
      QUIRE_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(section, nullptr);
  // None of them was left open.
  EXPECT_EQ(quire_quiescent_section_begin(memory_, &stream, 1, &section),
            QUIRE_OK);
  quire_quiescent_section_end(section);
  EXPECT_EQ(quire_stream_destroy(runtime_, stream), QUIRE_OK);
}

TEST_F(CApiCompactionTest, ASectionOutlivesTheOtherHandles) {
  quire_runtime* runtime = nullptr;
  quire_memory* memory = nullptr;
  quire_quiescent_section* section = nullptr;
  ASSERT_EQ(quire_runtime_create(nullptr, &runtime), QUIRE_OK);
  ASSERT_EQ(quire_runtime_get_memory(runtime, 0, &memory), QUIRE_OK);
  ASSERT_EQ(quire_quiescent_section_begin(memory, nullptr, 0, &section),
            QUIRE_OK);
  quire_runtime_destroy(runtime);
  quire_memory_destroy(memory);
  quire_quiescent_section_end(section);
}

// ---- Trim -------------------------------------------------------------------

TEST_F(CApiCompactionTest, TrimsReportWhatTheyDid) {
  const uint64_t address = Allocate(5 * kPage);
  ASSERT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_allocator_trim_with_report(allocator_, 2 * kPage, &report),
            QUIRE_OK);
  EXPECT_EQ(report.pages_freed, 3u);
  EXPECT_EQ(MemoryStatistics().cached, 3 * kPage);
  ASSERT_EQ(quire_memory_trim_with_report(memory_, 1, &report), QUIRE_OK);
  // Of those and of what the allocator had.
  EXPECT_EQ(report.pages_freed, 4u);
  EXPECT_GE(report.driver_calls, 4u);
  EXPECT_GE(report.seconds, 0.0);
  EXPECT_EQ(MemoryStatistics().in_use, kPage);
  // Nobody needs to ask for a report; one without a size is no report.
  EXPECT_EQ(quire_memory_trim_with_report(memory_, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_allocator_trim_with_report(allocator_, 0, nullptr), QUIRE_OK);
  report.size = 0;
  EXPECT_EQ(quire_memory_trim_with_report(memory_, 0, &report),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_trim_with_report(allocator_, 0, &report),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_memory_trim_with_report(nullptr, 0, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_trim_with_report(nullptr, 0, nullptr),
            QUIRE_INVALID_ARGUMENT);
}

// ---- Mesh -------------------------------------------------------------------

TEST_F(CApiCompactionTest, MeshesSparseSlabs) {
  const std::vector<uint64_t> live = MakeSparseSlabs();
  ASSERT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  const uint64_t before = MemoryStatistics().live;
  quire_quiescent_section* const section = Section();
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_allocator_mesh(allocator_, section, nullptr, &report),
            QUIRE_OK)
      << quire_last_error();
  EXPECT_GT(report.pages_freed, 0u);
  EXPECT_EQ(before - MemoryStatistics().live, report.pages_freed * kPage);
  EXPECT_EQ(report.bytes_moved, report.moves * kSlot);
  EXPECT_GT(report.driver_calls, report.moves);
  ExpectContents(live);
  // Slots below the smallest, and owners that were not named, stay.
  quire_mesh_options options = QUIRE_MESH_OPTIONS_INIT;
  options.smallest_slot = kSlot + 1;
  ASSERT_EQ(quire_allocator_mesh(allocator_, section, &options, &report),
            QUIRE_OK);
  EXPECT_EQ(report.moves, 0u);
  quire_quiescent_section_end(section);
}

TEST_F(CApiCompactionTest, MeshesWhatBelongsToOneOwner) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  const std::vector<uint64_t> live = MakeSparseSlabs(owner);
  quire_quiescent_section* const section = Section();
  quire_mesh_options options = QUIRE_MESH_OPTIONS_INIT;
  options.of_one_owner = 1;  // the unnamed one
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_allocator_mesh(allocator_, section, &options, &report),
            QUIRE_OK);
  EXPECT_EQ(report.moves, 0u);
  options.owner = owner;
  ASSERT_EQ(quire_allocator_mesh(allocator_, section, &options, &report),
            QUIRE_OK);
  EXPECT_GT(report.moves, 0u);
  quire_quiescent_section_end(section);
  ExpectContents(live);
}

TEST_F(CApiCompactionTest, CompactsWhereTheThresholdsSaySo) {
  const std::vector<uint64_t> live = MakeSparseSlabs();
  quire_quiescent_section* const section = Section();
  quire_compaction_thresholds thresholds = QUIRE_COMPACTION_THRESHOLDS_INIT;
  thresholds.pool_in_use = 0.99;
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_OK);
  EXPECT_EQ(report.pages_freed, 0u);
  thresholds.pool_in_use = 0.01;
  thresholds.least_seconds = 1e-9;
  ASSERT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_OK);
  EXPECT_GT(report.moves, 0u);
  EXPECT_GT(report.pages_freed, 0u);
  EXPECT_EQ(MemoryStatistics().cached, 0u);
  ExpectContents(live);
  for (const double wrong : {-0.5, std::nan("")}) {
    for (double quire_compaction_thresholds::*field :
         {&quire_compaction_thresholds::pool_in_use,
          &quire_compaction_thresholds::pinned,
          &quire_compaction_thresholds::least_seconds}) {
      quire_compaction_thresholds bad = QUIRE_COMPACTION_THRESHOLDS_INIT;
      bad.*field = wrong;
      EXPECT_EQ(quire_allocator_compact(allocator_, section, &bad, nullptr),
                QUIRE_INVALID_ARGUMENT);
      EXPECT_THAT(quire_last_error(), HasSubstr("no threshold"));
    }
  }
  quire_quiescent_section_end(section);
}

// ---- Pins -------------------------------------------------------------------

TEST_F(CApiCompactionTest, PinsCount) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  const uint64_t address = Allocate(3 * kPage, &options);
  EXPECT_EQ(quire_allocator_unpin(allocator_, address),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_allocator_pin(allocator_, address), QUIRE_OK);
  EXPECT_EQ(quire_allocator_pin(allocator_, address), QUIRE_OK);
  EXPECT_EQ(quire_allocator_unpin(allocator_, address), QUIRE_OK);
  // It keeps its pages.
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner, nullptr, nullptr),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr("pinned"));
  EXPECT_EQ(quire_allocator_unpin(allocator_, address), QUIRE_OK);
  EXPECT_EQ(quire_allocator_unpin(allocator_, address),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner, nullptr, nullptr),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_pin(allocator_, address),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_allocator_wake(allocator_, owner, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_allocator_pin(allocator_, address + 1),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_pin(allocator_, 0), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_unpin(allocator_, UINT64_MAX),
            QUIRE_INVALID_ARGUMENT);
}

// ---- Arguments --------------------------------------------------------------

TEST_F(CApiCompactionTest, SleepsInASectionThatIsOpen) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  Allocate(3 * kPage, &options);
  quire_quiescent_section* const section = Section();
  // Of its own it cannot open another.
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner, nullptr, nullptr),
            QUIRE_FAILED_PRECONDITION);
  quire_sleep_options sleep = QUIRE_SLEEP_OPTIONS_INIT;
  const uint64_t stream = 1;
  sleep.section = section;
  sleep.streams = &stream;
  sleep.stream_count = 1;
  EXPECT_EQ(quire_allocator_sleep(allocator_, owner, &sleep, nullptr),
            QUIRE_INVALID_ARGUMENT);
  sleep.stream_count = 0;
  quire_sleep_report report = QUIRE_SLEEP_REPORT_INIT;
  ASSERT_EQ(quire_allocator_sleep(allocator_, owner, &sleep, &report), QUIRE_OK)
      << quire_last_error();
  EXPECT_EQ(report.pages, 3u);
  EXPECT_EQ(OwnerStatistics(owner).asleep, 3 * kPage);
  quire_quiescent_section_end(section);
  EXPECT_EQ(quire_allocator_wake(allocator_, owner, 0, nullptr), QUIRE_OK);
}

TEST_F(CApiCompactionTest, RefusesSectionsOfAnotherMemory) {
  quire_runtime* runtime = nullptr;
  quire_memory* memory = nullptr;
  quire_quiescent_section* foreign = nullptr;
  ASSERT_EQ(quire_runtime_create(nullptr, &runtime), QUIRE_OK);
  ASSERT_EQ(quire_runtime_get_memory(runtime, 0, &memory), QUIRE_OK);
  ASSERT_EQ(quire_quiescent_section_begin(memory, nullptr, 0, &foreign),
            QUIRE_OK);
  const auto expect_refused = [](quire_status status) {
    EXPECT_EQ(status, QUIRE_FAILED_PRECONDITION);
    EXPECT_THAT(quire_last_error(), HasSubstr("of another memory"));
  };
  expect_refused(quire_allocator_mesh(allocator_, foreign, nullptr, nullptr));
  expect_refused(
      quire_allocator_compact(allocator_, foreign, nullptr, nullptr));
  quire_relocation_pass* pass = nullptr;
  expect_refused(
      quire_relocation_pass_begin(allocator_, foreign, nullptr, &pass));
  EXPECT_EQ(pass, nullptr);
  quire_sleep_options sleep = QUIRE_SLEEP_OPTIONS_INIT;
  sleep.section = foreign;
  expect_refused(quire_allocator_sleep(allocator_, 0, &sleep, nullptr));
  quire_quiescent_section_end(foreign);
  quire_memory_destroy(memory);
  quire_runtime_destroy(runtime);
}

TEST_F(CApiCompactionTest, NamesTheArgumentThatIsNull) {
  quire_quiescent_section* const section = Section();
  quire_quiescent_section* other = nullptr;
  const auto expect_null = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(std::string(quire_last_error()), std::string(name) + " is NULL");
  };
  expect_null(quire_quiescent_section_begin(nullptr, nullptr, 0, &other),
              "memory");
  expect_null(quire_quiescent_section_begin(memory_, nullptr, 0, nullptr),
              "section");
  expect_null(quire_allocator_mesh(nullptr, section, nullptr, nullptr),
              "allocator");
  expect_null(quire_allocator_mesh(allocator_, nullptr, nullptr, nullptr),
              "section");
  expect_null(quire_allocator_compact(nullptr, section, nullptr, nullptr),
              "allocator");
  expect_null(quire_allocator_compact(allocator_, nullptr, nullptr, nullptr),
              "section");
  expect_null(quire_allocator_pin(nullptr, 1), "allocator");
  expect_null(quire_allocator_unpin(nullptr, 1), "allocator");
  quire_quiescent_section_end(section);
}

TEST_F(CApiCompactionTest, CompactsInItsMaintenanceWindow) {
  const uint64_t address = Allocate(5 * kPage);
  ASSERT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  quire_quiescent_section* const section = Section();
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  // A pool of which little is in use is left alone.
  quire_compaction_thresholds thresholds = QUIRE_COMPACTION_THRESHOLDS_INIT;
  ASSERT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_OK);
  EXPECT_EQ(report.pages_freed, 0u);
  thresholds.maintenance_end = 24 * 60 * 60;  // all day
  ASSERT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_OK);
  EXPECT_EQ(report.pages_freed, 5u);
  ++thresholds.maintenance_end;
  EXPECT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("maintenance"));
  thresholds.maintenance_end = 0;
  thresholds.idle_seconds = -1;
  EXPECT_EQ(quire_allocator_compact(allocator_, section, &thresholds, &report),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("idle_seconds"));
  quire_quiescent_section_end(section);
}

TEST_F(CApiCompactionTest, RefusesStructsWithoutASize) {
  quire_quiescent_section* const section = Section();
  const auto expect_refused = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_THAT(quire_last_error(), HasSubstr(std::string(name) + ".size"));
  };
  MakeSparseSlabs();
  quire_mesh_options options{};
  quire_compaction_thresholds thresholds{};
  quire_compaction_report report{};
  expect_refused(quire_allocator_mesh(allocator_, section, &options, nullptr),
                 "quire_mesh_options");
  // A mesh that nobody hears of is not done.
  expect_refused(quire_allocator_mesh(allocator_, section, nullptr, &report),
                 "quire_compaction_report");
  expect_refused(
      quire_allocator_compact(allocator_, section, &thresholds, nullptr),
      "quire_compaction_thresholds");
  expect_refused(quire_allocator_compact(allocator_, section, nullptr, &report),
                 "quire_compaction_report");
  report.size = sizeof(report);
  EXPECT_EQ(quire_allocator_mesh(allocator_, section, nullptr, &report),
            QUIRE_OK);
  EXPECT_GT(report.moves, 0u);
  quire_quiescent_section_end(section);
}

}  // namespace
