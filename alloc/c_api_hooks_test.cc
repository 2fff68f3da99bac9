// Hooks through the C interface.

#include "quire/alloc/c_api_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CApiHooksTest : public quire::CApiFixture {
 protected:
  ~CApiHooksTest() override {
    EXPECT_EQ(quire_memory_remove_hooks(registration_), QUIRE_OK);
  }
  void Add(const quire_memory_hooks& hooks) {
    ASSERT_EQ(quire_memory_add_hooks(memory_, &hooks, &registration_), QUIRE_OK)
        << quire_last_error();
  }

  quire_hook_registration* registration_ = nullptr;
};

TEST_F(CApiHooksTest, HearOfPressureAtTwoLevels) {
  struct Change {
    int before, now, of_one_owner;
    uint64_t used, limit;
    bool operator==(const Change&) const = default;
  };
  std::vector<Change> changes;
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &changes;
  hooks.on_pressure = [](void* context, const quire_pressure_change* change) {
    EXPECT_EQ(change->size, sizeof(*change));
    static_cast<std::vector<Change>*>(context)->push_back(
        {change->before, change->now, change->of_one_owner, change->used,
         change->limit});
  };
  Add(hooks);
  // 85 and 95 % of 32 pages are 27.2 and 30.4.
  const uint64_t most = Allocate(27 * kPage);
  EXPECT_THAT(changes, IsEmpty());
  const uint64_t one = Allocate(kPage);
  const uint64_t last = Allocate(3 * kPage);
  for (const uint64_t address : {last, one, most}) {
    EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  }
  EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0], (Change{QUIRE_PRESSURE_NONE, QUIRE_PRESSURE_HIGH, 0,
                                28 * kPage, 32 * kPage}));
  EXPECT_EQ(changes[1], (Change{QUIRE_PRESSURE_HIGH, QUIRE_PRESSURE_CRITICAL, 0,
                                31 * kPage, 32 * kPage}));
  EXPECT_EQ(changes[2].before, QUIRE_PRESSURE_CRITICAL);
  EXPECT_EQ(changes[2].now, QUIRE_PRESSURE_NONE);
}

TEST_F(CApiHooksTest, HearOfAnOwnersPressure) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  limits.soft = 2 * kPage;
  ASSERT_EQ(quire_memory_set_owner_limits(memory_, owner, &limits), QUIRE_OK);
  std::vector<quire_pressure_change> changes;
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &changes;
  hooks.on_pressure = [](void* context, const quire_pressure_change* change) {
    static_cast<std::vector<quire_pressure_change>*>(context)->push_back(
        *change);
  };
  Add(hooks);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  Allocate(3 * kPage, &options);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].of_one_owner, 1);
  EXPECT_EQ(changes[0].owner, owner);
  EXPECT_EQ(changes[0].now, QUIRE_PRESSURE_HIGH);
  EXPECT_EQ(changes[0].used, 3 * kPage);
  EXPECT_EQ(changes[0].limit, 2 * kPage);
  EXPECT_EQ(OwnerStatistics(owner).pressure, QUIRE_PRESSURE_HIGH);
}

TEST_F(CApiHooksTest, HearOfPagesThatComeAndGo) {
  struct Mapped {
    uint64_t bytes = 0;
    std::vector<uint64_t> addresses;
    uint32_t owner = 0;
  } mapped;
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &mapped;
  hooks.on_pages_mapped = [](void* context,
                             const quire_mapping_change* change) {
    EXPECT_EQ(change->size, sizeof(*change));
    auto* const to = static_cast<Mapped*>(context);
    to->bytes += change->bytes;
    to->addresses.push_back(change->address);
    to->owner = change->owner;
  };
  hooks.on_pages_unmapped = [](void* context,
                               const quire_mapping_change* change) {
    static_cast<Mapped*>(context)->bytes -= change->bytes;
  };
  Add(hooks);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.owner = owner;
  const uint64_t address = Allocate(3 * kPage, &options);
  EXPECT_EQ(mapped.bytes, 3 * kPage);
  EXPECT_THAT(mapped.addresses, ElementsAre(address));
  EXPECT_EQ(mapped.owner, owner);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
  EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(mapped.bytes, 0u);
}

// Frees one allocation each time that memory is short.
struct Giver {
  quire_allocator* allocator;
  std::vector<uint64_t> held;
  std::vector<quire_shortage> shortages;
  std::string verdict;
  quire_status nested = QUIRE_OK;

  static uint64_t Give(void* context, const quire_shortage* shortage,
                       const char* verdict) {
    auto* const self = static_cast<Giver*>(context);
    self->shortages.push_back(*shortage);
    self->verdict = verdict;
    // More than there is, from inside: asks nobody.
    uint64_t address = 0;
    self->nested = quire_allocator_allocate(self->allocator, uint64_t{30} << 21,
                                            nullptr, &address);
    if (self->held.empty()) return 0;
    EXPECT_EQ(quire_allocator_free(self->allocator, self->held.back(), 0),
              QUIRE_OK);
    self->held.pop_back();
    return uint64_t{8} << 21;
  }
};

TEST_F(CApiHooksTest, GiveUpMemoryWhereItIsShort) {
  Giver giver{allocator_, {}, {}, {}, QUIRE_OK};
  for (int i = 0; i < 4; ++i) giver.held.push_back(Allocate(8 * kPage));
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &giver;
  hooks.on_out_of_memory = &Giver::Give;
  Add(hooks);
  const uint64_t address = Allocate(16 * kPage);
  EXPECT_EQ(giver.shortages.size(), 2u);
  EXPECT_EQ(giver.held.size(), 2u);
  EXPECT_EQ(giver.nested, QUIRE_OUT_OF_DEVICE_MEMORY);
  ASSERT_THAT(giver.shortages, Not(IsEmpty()));
  EXPECT_EQ(giver.shortages[0].size, sizeof(quire_shortage));
  EXPECT_EQ(giver.shortages[0].requested, 16 * kPage);
  EXPECT_EQ(giver.shortages[0].device_total, 32 * kPage);
  EXPECT_THAT(giver.verdict, HasSubstr("32.00 MiB"));
  // It has an end, and the error is that of the request.
  uint64_t refused = 0;
  EXPECT_EQ(quire_allocator_allocate(allocator_, 31 * kPage, nullptr, &refused),
            QUIRE_OUT_OF_DEVICE_MEMORY);
  EXPECT_THAT(giver.held, IsEmpty());
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  ASSERT_EQ(quire_last_shortage(&shortage), QUIRE_OK);
  EXPECT_EQ(shortage.requested, 31 * kPage);
  EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
}

TEST_F(CApiHooksTest, AreNotRemovedByThemselves) {
  struct Remover {
    quire_hook_registration* registration = nullptr;
    quire_hook_registration* other = nullptr;
    quire_status own = QUIRE_OK;
    quire_status others = QUIRE_INTERNAL;
  } remover;
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &remover;
  ASSERT_EQ(quire_memory_add_hooks(memory_, &hooks, &remover.other), QUIRE_OK);
  hooks.on_pages_mapped = [](void* context, const quire_mapping_change*) {
    auto* const self = static_cast<Remover*>(context);
    self->own = quire_memory_remove_hooks(self->registration);
    self->others = quire_memory_remove_hooks(self->other);
    self->other = nullptr;
  };
  Add(hooks);
  remover.registration = registration_;
  Allocate(kPage);
  EXPECT_EQ(remover.own, QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(remover.others, QUIRE_OK);
}

TEST_F(CApiHooksTest, AreNotCalledOnceTheyWereRemoved) {
  std::atomic<uint64_t> calls{0};
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  hooks.context = &calls;
  hooks.on_pages_mapped = [](void* context, const quire_mapping_change*) {
    static_cast<std::atomic<uint64_t>*>(context)->fetch_add(1);
  };
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      uint64_t address = 0;
      EXPECT_EQ(
          quire_allocator_allocate(allocator_, 2 * kPage, nullptr, &address),
          QUIRE_OK);
      EXPECT_EQ(quire_allocator_free(allocator_, address, 0), QUIRE_OK);
      EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const uint64_t before = calls.load();
    quire_hook_registration* registration = nullptr;
    EXPECT_EQ(quire_memory_add_hooks(memory_, &hooks, &registration), QUIRE_OK);
    while (calls.load() == before) std::this_thread::yield();
    EXPECT_EQ(quire_memory_remove_hooks(registration), QUIRE_OK);
    const uint64_t after = calls.load();
    std::this_thread::yield();
    EXPECT_EQ(calls.load(), after);
  }
  stop.store(true);
  other.join();
}

TEST_F(CApiHooksTest, KeepTheRuntime) {
  quire_runtime* runtime = nullptr;
  quire_memory* memory = nullptr;
  quire_hook_registration* registration = nullptr;
  const quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  ASSERT_EQ(quire_runtime_create(nullptr, &runtime), QUIRE_OK);
  ASSERT_EQ(quire_runtime_get_memory(runtime, 0, &memory), QUIRE_OK);
  ASSERT_EQ(quire_memory_add_hooks(memory, &hooks, &registration), QUIRE_OK);
  quire_runtime_destroy(runtime);
  quire_memory_destroy(memory);
  EXPECT_EQ(quire_memory_remove_hooks(registration), QUIRE_OK);
}

TEST_F(CApiHooksTest, RefusesWhatIsWrong) {
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  quire_hook_registration* registration = nullptr;
  const auto expect_null = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(std::string(quire_last_error()), std::string(name) + " is NULL");
  };
  expect_null(quire_memory_add_hooks(nullptr, &hooks, &registration), "memory");
  expect_null(quire_memory_add_hooks(memory_, nullptr, &registration), "hooks");
  expect_null(quire_memory_add_hooks(memory_, &hooks, nullptr), "registration");
  EXPECT_EQ(quire_memory_remove_hooks(nullptr), QUIRE_OK);
  hooks.size = 0;
  EXPECT_EQ(quire_memory_add_hooks(memory_, &hooks, &registration),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("quire_memory_hooks.size is 0"));
  EXPECT_EQ(registration, nullptr);
}

}  // namespace
