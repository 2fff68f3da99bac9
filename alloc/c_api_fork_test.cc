// In a forked child the functions refuse the parent's handles, and do no harm.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "alloc/testing/run_in_child.h"

namespace {

class CApiForkTest : public quire::CApiFixture {
 protected:
  // Every function that takes a handle of a runtime, a memory, an allocator or
  // a section.
  std::vector<std::function<quire_status()>> EveryCall(
      uint64_t live, const quire_quiescent_section* section) {
    quire_runtime* const r = runtime_;
    quire_memory* const m = memory_;
    quire_allocator* const a = allocator_;
    return {
        [=] {
          quire_memory* memory = nullptr;
          return quire_runtime_get_memory(r, 0, &memory);
        },
        [=] {
          quire_allocator* allocator = nullptr;
          return quire_runtime_get_allocator(r, 0, &allocator);
        },
        [=] {
          int32_t count = 0;
          return quire_runtime_get_device_count(r, &count);
        },
        [=] {
          uint64_t stream = 0;
          return quire_stream_create(r, 0, &stream);
        },
        [=] { return quire_stream_synchronize(r, 1); },
        [=] { return quire_stream_destroy(r, 1); },
        [=] {
          uint32_t owner = 0;
          return quire_owner_register(r, "child", &owner);
        },
        [=] {
          char* text = nullptr;
          return quire_owner_get_name(r, 0, &text);
        },
        [=] {
          char* text = nullptr;
          return quire_runtime_get_snapshot_json(r, 0, &text);
        },
        [=] {
          char* text = nullptr;
          return quire_runtime_get_report(r, 0, &text);
        },
        [=] { return quire_runtime_write_snapshot(r, 0, 0, "/nowhere/x"); },
        [=] { return quire_runtime_write_trace(r, 0, 0, "/nowhere/x"); },
        [=] { return quire_runtime_mark(r, "child"); },
        [=] {
          return quire_runtime_find_leaks(r, QUIRE_ALL_OWNERS, nullptr,
                                          nullptr);
        },
        [=] {
          quire_memory_statistics statistics = QUIRE_MEMORY_STATISTICS_INIT;
          return quire_memory_get_statistics(m, &statistics);
        },
        [=] {
          quire_owner_statistics statistics = QUIRE_OWNER_STATISTICS_INIT;
          return quire_memory_get_owner_statistics(m, 0, &statistics);
        },
        [=] { return quire_memory_set_limit(m, kPage); },
        [=] { return quire_memory_set_soft_limit(m, kPage); },
        [=] {
          const quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
          return quire_memory_set_owner_limits(m, 0, &limits);
        },
        [=] {
          uint64_t limit = 0;
          return quire_memory_limit_from_utilization(m, 0.5, 0, &limit);
        },
        [=] { return quire_memory_prepare(m, 1); },
        [=] { return quire_memory_trim(m, 0, nullptr); },
        [=] { return quire_memory_trim_with_report(m, 0, nullptr); },
        [=] { return quire_memory_check_health(m); },
        [=] {
          const quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
          quire_hook_registration* registration = nullptr;
          return quire_memory_add_hooks(m, &hooks, &registration);
        },
        [=] {
          quire_quiescent_section* begun = nullptr;
          return quire_quiescent_section_begin(m, nullptr, 0, &begun);
        },
        [=] {
          quire_allocator* allocator = nullptr;
          return quire_allocator_create(m, nullptr, &allocator);
        },
        [=] {
          uint64_t address = 0;
          return quire_allocator_allocate(a, 100, nullptr, &address);
        },
        [=] { return quire_allocator_free(a, live, 0); },
        [=] { return quire_allocator_record_stream(a, live, 1); },
        [=] { return quire_allocator_pin(a, live); },
        [=] { return quire_allocator_unpin(a, live); },
        [=] {
          uint32_t owner = 0;
          return quire_allocator_get_owner_of(a, live, &owner);
        },
        [=] {
          quire_allocation_info info = QUIRE_ALLOCATION_INFO_INIT;
          return quire_allocator_find(a, live, &info);
        },
        [=] { return quire_allocator_trim(a, 0, nullptr); },
        [=] { return quire_allocator_trim_with_report(a, 0, nullptr); },
        [=] {
          quire_allocator_statistics statistics =
              QUIRE_ALLOCATOR_STATISTICS_INIT;
          return quire_allocator_get_statistics(a, &statistics);
        },
        [=] {
          quire_allocator_breakdown* breakdown = nullptr;
          return quire_allocator_calculate_breakdown(a, &breakdown);
        },
        [=] {
          uint64_t bytes = 0;
          return quire_allocator_get_largest_possible(a, &bytes);
        },
        [=] {
          uint64_t bytes = 0;
          return quire_allocator_get_largest_possible_for(a, 0, &bytes);
        },
        [=] { return quire_allocator_check_invariants(a); },
        [=] { return quire_allocator_mesh(a, section, nullptr, nullptr); },
        [=] { return quire_allocator_compact(a, section, nullptr, nullptr); },
        [=] {
          quire_relocation_pass* pass = nullptr;
          return quire_relocation_pass_begin(a, section, nullptr, &pass);
        },
        [=] { return quire_allocator_sleep(a, 0, nullptr, nullptr); },
        [=] { return quire_allocator_wake(a, 0, 0, nullptr); },
        [=] {
          uint64_t pool = 0;
          return quire_allocator_create_graph_pool(a, 0, &pool);
        },
        [=] { return quire_allocator_begin_graph_capture(a, 1, 1); },
        [=] { return quire_allocator_end_graph_capture(a, 1); },
        [=] { return quire_allocator_release_graph_pool(a, 1, nullptr, 0); },
        [=] {
          return quire_allocator_replay_trace(a, "/nowhere/x", nullptr,
                                              nullptr);
        },
    };
  }
};

TEST_F(CApiForkTest, AChildIsRefusedAndTheParentUnharmed) {
  const uint64_t live = Allocate(3 * kPage);
  std::memset(reinterpret_cast<void*>(live), 7, 3 * kPage);
  quire_quiescent_section* section = nullptr;
  ASSERT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section),
            QUIRE_OK);
  const quire_allocator_statistics before = Statistics();
  const auto calls = EveryCall(live, section);
  ASSERT_LT(calls.size(), 100u);  // an exit status tells which
  EXPECT_EQ(quire::RunInChild([&] {
              for (size_t i = 0; i < calls.size(); ++i) {
                if (calls[i]() != QUIRE_FAILED_PRECONDITION) {
                  return static_cast<int>(i) + 1;
                }
              }
              // What the child lets go of stays with the parent.
              quire_quiescent_section_end(section);
              quire_memory_destroy(memory_);
              quire_allocator_destroy(allocator_);
              quire_runtime_destroy(runtime_);
              return 0;
            }),
            0);
  quire_quiescent_section_end(section);
  EXPECT_EQ(Statistics().live_bytes, before.live_bytes);
  EXPECT_EQ(Statistics().mapped_bytes, before.mapped_bytes);
  for (uint64_t i = 0; i < 3 * kPage; i += kPage / 2) {
    EXPECT_EQ(reinterpret_cast<const char*>(live)[i], 7);
  }
  EXPECT_EQ(quire_allocator_free(allocator_, live, 0), QUIRE_OK);
}

}  // namespace
