// The C interface where the process has no memory for bookkeeping: every
// allocation of the host, one after the other, fails once. Not in functions
// that format text: Abseil ends the process where it finds no memory.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "alloc/testing/failing_new.h"
#include "quire/alloc/c_api.h"

namespace {

using quire::FailingNew;

// Calls `function` with the first, second, ... allocation failing until it gets
// by without. `undo` follows each success.
void FailEveryAllocation(const char* name,
                         const std::function<quire_status()>& function,
                         const std::function<void()>& undo) {
  for (int64_t n = 0;; ++n) {
    FailingNew::FailAfter(n);
    const quire_status status = function();
    const bool has_failed = FailingNew::Stop();
    if (status == QUIRE_OK) {
      undo();
      if (!has_failed) return;
      continue;  // it did without what it could not have
    }
    ASSERT_EQ(status, QUIRE_OUT_OF_HOST_MEMORY)
        << name << ", allocation " << n << ": " << quire_last_error();
    ASSERT_STREQ(quire_last_error(), "out of host memory");
  }
}

TEST(CApiHostMemoryTest, IsReported) {
  quire_runtime* runtime = nullptr;
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
  ASSERT_EQ(quire_runtime_create(&options, &runtime), QUIRE_OK);
  quire_allocator* handle = nullptr;
  FailEveryAllocation(
      "get_allocator",
      [&] { return quire_runtime_get_allocator(runtime, 0, &handle); },
      [&] { quire_allocator_destroy(handle); });
  uint32_t owner = 0;
  FailEveryAllocation(
      "register",
      [&] {
        return quire_owner_register(
            runtime, "a name that is longer than a short string", &owner);
      },
      [] {});
  char* text = nullptr;
  FailEveryAllocation(
      "name", [&] { return quire_owner_get_name(runtime, owner, &text); },
      [&] { quire_string_free(text); });
  quire_memory* memory = nullptr;
  ASSERT_EQ(quire_runtime_get_memory(runtime, 0, &memory), QUIRE_OK);
  quire_quiescent_section* section = nullptr;
  FailEveryAllocation(
      "section",
      [&] {
        return quire_quiescent_section_begin(memory, nullptr, 0, &section);
      },
      [&] { quire_quiescent_section_end(section); });
  quire_hook_registration* registration = nullptr;
  const quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  FailEveryAllocation(
      "hooks",
      [&] { return quire_memory_add_hooks(memory, &hooks, &registration); },
      [&] { EXPECT_EQ(quire_memory_remove_hooks(registration), QUIRE_OK); });
  quire_memory_destroy(memory);
  quire_runtime_destroy(runtime);
}

}  // namespace
