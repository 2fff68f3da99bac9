// Marks, traces and leaks through the C interface.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "alloc/testing/enclosing_function.h"
#include "quire/alloc/trace_formats.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CApiReportsTest : public quire::CApiFixture {
 protected:
  CApiReportsTest() : path_(::testing::TempDir() + "c_api_reports") {}

  static std::string ReadFile(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  uint32_t Register(const char* name) {
    uint32_t owner = 0;
    EXPECT_EQ(quire_owner_register(runtime_, name, &owner), QUIRE_OK);
    return owner;
  }
  uint64_t AllocateFor(uint32_t owner, uint64_t bytes) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner;
    return Allocate(bytes, &options);
  }
  void Free(uint64_t address) {
    EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK)
        << quire_last_error();
  }
  quire_leak_totals FindLeaks(uint32_t owner, std::string* text) {
    quire_leak_totals totals = QUIRE_LEAK_TOTALS_INIT;
    char* found = nullptr;
    EXPECT_EQ(quire_runtime_find_leaks(runtime_, owner, &totals, &found),
              QUIRE_OK)
        << quire_last_error();
    *text = found == nullptr ? "" : found;
    quire_string_free(found);
    return totals;
  }

  const std::string path_;
};

TEST_F(CApiReportsTest, LayoutsAreThoseThatProgramsWereBuiltWith) {
  EXPECT_EQ(offsetof(quire_runtime_options, sample_interval), 80u);
  EXPECT_EQ(offsetof(quire_leak_totals, page_bytes), 32u);
}

// ---- Leaks ------------------------------------------------------------------

TEST_F(CApiReportsTest, LeaksAreWhatAnOwnerAndThoseBelowItHold) {
  const uint32_t model = Register("server/llama");
  const uint32_t cache = Register("server/llama/kv");
  const uint32_t other = Register("server/qwen");
  std::string text;
  EXPECT_EQ(FindLeaks(model, &text).owners, 0u);
  EXPECT_EQ(text, "");

  const uint64_t small = AllocateFor(model, 1000);
  const uint64_t large = AllocateFor(cache, 3 * kPage);
  const uint64_t foreign = AllocateFor(other, 5000);
  const quire_leak_totals of_model = FindLeaks(model, &text);
  EXPECT_EQ(of_model.owners, 2u);
  EXPECT_EQ(of_model.allocations, 2u);
  EXPECT_EQ(of_model.requested_bytes, 1000 + 3 * kPage);
  EXPECT_EQ(of_model.page_bytes, 0u);
  EXPECT_THAT(text, HasSubstr("server/llama/kv"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("qwen")));

  EXPECT_EQ(FindLeaks(QUIRE_ALL_OWNERS, &text).allocations, 3u);
  EXPECT_THAT(text, HasSubstr("qwen"));

  for (const uint64_t address : {small, large, foreign}) Free(address);
  EXPECT_EQ(FindLeaks(QUIRE_ALL_OWNERS, &text).owners, 0u);
  // Nobody has to want the totals, or the text.
  EXPECT_EQ(quire_runtime_find_leaks(runtime_, model, nullptr, nullptr),
            QUIRE_OK);
}

TEST_F(CApiReportsTest, LeaksOfWhomNobodyRegisteredAreRefused) {
  EXPECT_EQ(quire_runtime_find_leaks(runtime_, 4711, nullptr, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("owner 4711"));
  EXPECT_EQ(quire_runtime_find_leaks(nullptr, 0, nullptr, nullptr),
            QUIRE_INVALID_ARGUMENT);
  quire_leak_totals totals = QUIRE_LEAK_TOTALS_INIT;
  totals.size = 3;
  EXPECT_EQ(quire_runtime_find_leaks(runtime_, 0, &totals, nullptr),
            QUIRE_INVALID_ARGUMENT);
}

// What it returns is used, so that the call is none at its end.
[[gnu::noinline]] uint64_t AllocateHere(quire_allocator* allocator) {
  uint64_t address = 0;
  return quire_allocator_allocate(allocator, 5 << 20, nullptr, &address) ==
                 QUIRE_OK
             ? address
             : 0;
}

TEST(CApiSampleTest, LeaksSayWhoseCallsMadeThem) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
  options.sample_interval = 1;  // all
  quire_runtime* runtime = nullptr;
  quire_allocator* allocator = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
  ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocator), QUIRE_OK);
  const uint64_t address = AllocateHere(allocator);
  ASSERT_NE(address, 0u);
  char* text = nullptr;
  ASSERT_EQ(quire_runtime_find_leaks(runtime, QUIRE_ALL_OWNERS, nullptr, &text),
            QUIRE_OK);
  // The program's file stands for a function that it does not export.
  EXPECT_THAT(text, HasSubstr("c_api_reports_test"));
  // The first line of callers is this program's, not the library's.
  std::smatch first;
  const std::string lines = text;
  ASSERT_TRUE(std::regex_search(lines, first,
                                std::regex("sample\\):\n.*[+]0x([0-9a-f]+)")))
      << text;
  Dl_info program = {};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&AllocateHere), &program), 0);
  EXPECT_EQ(
      quire::EnclosingFunction(reinterpret_cast<uintptr_t>(program.dli_fbase) +
                               std::stoull(first[1], nullptr, 16) + 1),
      reinterpret_cast<uintptr_t>(&AllocateHere));
  quire_string_free(text);
  EXPECT_EQ(quire_allocator_free(allocator, address, 0), QUIRE_OK);
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
}

// ---- Marks and traces -------------------------------------------------------

TEST_F(CApiReportsTest, TraceIsWhatWasAskedForInOrder) {
  ASSERT_EQ(quire_runtime_mark(runtime_, "load"), QUIRE_OK);
  const uint64_t first = Allocate(7 * kPage);
  const uint64_t second = Allocate(300);
  Free(first);
  ASSERT_EQ(
      quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_CSV, path_.c_str()),
      QUIRE_OK)
      << quire_last_error();
  const auto trace = quire::ReadQuireCsv(ReadFile(path_));
  ASSERT_TRUE(trace.ok()) << trace.status();
  const quire::AllocationTraceSummary summary =
      quire::SummarizeAllocationTrace(*trace);
  EXPECT_EQ(summary.allocations, 2u);
  EXPECT_EQ(summary.frees, 1u);
  EXPECT_EQ(summary.peak_requested, quire::Bytes(7 * kPage + 300));
  EXPECT_EQ(summary.live_at_end, quire::Bytes(300));
  std::vector<std::string> marks;
  for (const quire::AllocationEvent& event : trace->events) {
    if (event.action == quire::AllocationAction::kMark) {
      marks.push_back(trace->labels[event.label]);
    }
  }
  EXPECT_THAT(marks, ::testing::ElementsAre("load"));

  ASSERT_EQ(
      quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_RMM, path_.c_str()),
      QUIRE_OK);
  EXPECT_THAT(ReadFile(path_), StartsWith("Thread,Time,Action,"));
  const auto of_rmm = quire::ReadRmmCsv(ReadFile(path_));
  ASSERT_TRUE(of_rmm.ok()) << of_rmm.status();
  EXPECT_EQ(quire::SummarizeAllocationTrace(*of_rmm).peak_requested,
            quire::Bytes(7 * kPage + 300));
  Free(second);
}

TEST_F(CApiReportsTest, TraceThatCannotBeWrittenIsAnError) {
  for (const quire_trace_format format : {-1, 2}) {
    EXPECT_EQ(quire_runtime_write_trace(runtime_, 0, format, path_.c_str()),
              QUIRE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(
      quire_runtime_write_trace(runtime_, 1, QUIRE_TRACE_CSV, path_.c_str()),
      QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_CSV,
                                      "/nonexistent/folder/trace.csv"),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr("/nonexistent/folder/trace.csv"));
  EXPECT_EQ(quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_CSV, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_runtime_mark(runtime_, nullptr), QUIRE_INVALID_ARGUMENT);
}

TEST(CApiTraceTest, TraceThatIsDisabledSaysSo) {
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
  options.disable_trace = 1;
  quire_runtime* runtime = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
  EXPECT_EQ(quire_runtime_mark(runtime, "load"), QUIRE_OK);
  EXPECT_EQ(quire_runtime_write_trace(runtime, 0, QUIRE_TRACE_CSV, "x"),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr("disable_trace"));
  quire_runtime_destroy(runtime);
}

// ---- Leaks that are told ----------------------------------------------------

struct ToldLeaks {
  int calls = 0;
  quire_leak_totals totals = QUIRE_LEAK_TOTALS_INIT;
  std::string text;
};

void KeepTold(void* context, const quire_leak_totals* totals,
              const char* text) {
  auto* const kept = static_cast<ToldLeaks*>(context);
  ++kept->calls;
  kept->totals = *totals;
  kept->text = text;
}

TEST(CApiLeaksTest, TheEndOfARuntimeTellsOfWhatIsHeld) {
  for (const bool leak : {false, true}) {
    ToldLeaks told;
    quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
    options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
    options.leak_context = &told;
    options.on_leaks = KeepTold;
    quire_runtime* runtime = nullptr;
    quire_allocator* allocator = nullptr;
    ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
    ASSERT_EQ(quire_runtime_get_allocator(runtime, 0, &allocator), QUIRE_OK);
    quire_allocate_options allocate = QUIRE_ALLOCATE_OPTIONS_INIT;
    ASSERT_EQ(quire_owner_register(runtime, "llama/kv", &allocate.owner),
              QUIRE_OK);
    uint64_t address = 0;
    ASSERT_EQ(quire_allocator_allocate(allocator, 1000, &allocate, &address),
              QUIRE_OK);
    if (!leak) {
      ASSERT_EQ(quire_allocator_free(allocator, address, 0), QUIRE_OK);
    }
    quire_runtime_destroy(runtime);
    // The allocator's handle still keeps it.
    EXPECT_EQ(told.calls, 0);
    quire_allocator_destroy(allocator);
    EXPECT_EQ(told.calls, leak ? 1 : 0);
    if (!leak) continue;
    EXPECT_EQ(told.totals.size, sizeof(quire_leak_totals));
    EXPECT_EQ(told.totals.owners, 1u);
    EXPECT_EQ(told.totals.requested_bytes, 1000u);
    EXPECT_THAT(told.text, HasSubstr("llama/kv"));
  }
}

TEST_F(CApiReportsTest, TheEndOfAnAllocatorTellsOfWhatIsLive) {
  const uint32_t kv = Register("llama/kv");
  quire_memory* memory = nullptr;
  ASSERT_EQ(quire_runtime_get_memory(runtime_, 0, &memory), QUIRE_OK);
  for (const bool leak : {false, true}) {
    ToldLeaks told;
    quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
    options.on_leaks = KeepTold;
    options.leak_context = &told;
    quire_allocator* another = nullptr;
    ASSERT_EQ(quire_allocator_create(memory, &options, &another), QUIRE_OK);
    uint64_t addresses[3] = {};
    for (uint64_t& address : addresses) {
      quire_allocate_options allocate = QUIRE_ALLOCATE_OPTIONS_INIT;
      allocate.owner = kv;
      ASSERT_EQ(quire_allocator_allocate(another, 1000, &allocate, &address),
                QUIRE_OK);
    }
    ASSERT_EQ(quire_allocator_free(another, addresses[1], 0), QUIRE_OK);
    if (!leak) {
      ASSERT_EQ(quire_allocator_free(another, addresses[0], 0), QUIRE_OK);
      ASSERT_EQ(quire_allocator_free(another, addresses[2], 0), QUIRE_OK);
    }
    quire_allocator_destroy(another);
    EXPECT_EQ(told.calls, leak ? 1 : 0);
    if (!leak) continue;
    EXPECT_EQ(told.totals.owners, 1u);
    EXPECT_EQ(told.totals.allocations, 2u);
    EXPECT_EQ(told.totals.requested_bytes, 2000u);
    EXPECT_EQ(told.totals.page_bytes, 0u);
    EXPECT_THAT(told.text, HasSubstr("llama/kv"));
    EXPECT_THAT(told.text, HasSubstr("2 of 1000 B"));
  }
  quire_memory_destroy(memory);
}

}  // namespace
