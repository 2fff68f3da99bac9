// Compactions told to C.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "quire/alloc/c_api_compaction.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Writes down what it hears.
struct Recorder {
  std::vector<std::string> heard;
  uint64_t pages_freed = 0;
  // Tried in before_move, where it is set.
  quire_relocation_pass* pass = nullptr;
  quire_status set_action = QUIRE_OK;

  static quire_compaction_listener Listener(Recorder* recorder) {
    quire_compaction_listener listener = QUIRE_COMPACTION_LISTENER_INIT;
    listener.context = recorder;
    listener.before_compaction = [](void* context,
                                    quire_compaction_level level) {
      static_cast<Recorder*>(context)->heard.push_back("before " +
                                                       std::to_string(level));
    };
    listener.after_compaction = [](void* context, quire_compaction_level level,
                                   const quire_compaction_report* report) {
      EXPECT_EQ(report->size, sizeof(*report));
      auto* const self = static_cast<Recorder*>(context);
      self->pages_freed += report->pages_freed;
      self->heard.push_back("after " + std::to_string(level));
    };
    listener.before_move = [](void* context,
                              const quire_relocation_move* move) {
      EXPECT_EQ(move->size, sizeof(*move));
      auto* const self = static_cast<Recorder*>(context);
      if (self->pass != nullptr) {
        self->set_action =
            quire_relocation_pass_set_action(self->pass, 0, QUIRE_MOVE_IGNORE);
      }
      self->heard.push_back("move " + std::to_string(move->bytes));
    };
    listener.after_move = [](void* context, const quire_relocation_move* move,
                             quire_move_action action) {
      static_cast<Recorder*>(context)->heard.push_back(
          "moved " + std::to_string(move->bytes) + " " +
          std::to_string(action));
    };
    return listener;
  }
};

class CApiListenerTest : public quire::CApiFixture {
 protected:
  CApiListenerTest() {
    const quire_compaction_listener listener = Recorder::Listener(&recorder_);
    quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
    options.listener = &listener;
    EXPECT_EQ(quire_allocator_create(memory_, &options, &told_), QUIRE_OK)
        << quire_last_error();
    EXPECT_EQ(quire_owner_register(runtime_, "model", &owner_), QUIRE_OK);
  }
  ~CApiListenerTest() override { quire_allocator_destroy(told_); }

  uint64_t AllocateToldOf(uint64_t bytes, uint32_t movable = 0) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner_;
    options.movable = movable;
    uint64_t address = 0;
    EXPECT_EQ(quire_allocator_allocate(told_, bytes, &options, &address),
              QUIRE_OK);
    return address;
  }

  Recorder recorder_;
  quire_allocator* told_ = nullptr;
  uint32_t owner_ = 0;
};

TEST_F(CApiListenerTest, HearsOfEveryLevel) {
  AllocateToldOf(3 * kPage);
  ASSERT_EQ(quire_allocator_sleep(told_, owner_, nullptr, nullptr), QUIRE_OK);
  EXPECT_THAT(recorder_.heard, ElementsAre("before 3", "after 3"));
  EXPECT_EQ(recorder_.pages_freed, 3u);
  recorder_.heard.clear();
  ASSERT_EQ(quire_allocator_wake(told_, owner_, 0, nullptr), QUIRE_OK);
  EXPECT_THAT(recorder_.heard, ElementsAre("before 4", "after 4"));
  recorder_.heard.clear();

  quire_quiescent_section* section = nullptr;
  ASSERT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section),
            QUIRE_OK);
  ASSERT_EQ(quire_allocator_mesh(told_, section, nullptr, nullptr), QUIRE_OK);
  EXPECT_THAT(recorder_.heard, ElementsAre("before 1", "after 1"));
  recorder_.heard.clear();
  quire_compaction_thresholds thresholds = QUIRE_COMPACTION_THRESHOLDS_INIT;
  thresholds.pool_in_use = 1e-9;
  ASSERT_EQ(quire_allocator_compact(told_, section, &thresholds, nullptr),
            QUIRE_OK);
  EXPECT_THAT(recorder_.heard, ElementsAre("before 0", "after 0"));
  quire_quiescent_section_end(section);
}

TEST_F(CApiListenerTest, HearsOfEachMove) {
  constexpr uint64_t kSlot = 64 << 10;
  std::vector<uint64_t> addresses;
  for (int i = 0; i < 64; ++i) addresses.push_back(AllocateToldOf(kSlot, 1));
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (i % 8 == 0) continue;
    ASSERT_EQ(quire_allocator_free(told_, addresses[i], 0), QUIRE_OK);
  }
  quire_quiescent_section* section = nullptr;
  ASSERT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section),
            QUIRE_OK);
  ASSERT_EQ(
      quire_relocation_pass_begin(told_, section, nullptr, &recorder_.pass),
      QUIRE_OK);
  uint64_t count = 0;
  ASSERT_EQ(quire_relocation_pass_get_move_count(recorder_.pass, &count),
            QUIRE_OK);
  ASSERT_GE(count, 2u);
  ASSERT_EQ(
      quire_relocation_pass_set_action(recorder_.pass, 1, QUIRE_MOVE_DESTROY),
      QUIRE_OK);
  EXPECT_EQ(quire_relocation_pass_copy(recorder_.pass), QUIRE_OK);
  // A callback does not change the pass that it is called for.
  EXPECT_EQ(recorder_.set_action, QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_relocation_pass_finish(recorder_.pass, nullptr), QUIRE_OK);
  std::vector<std::string> expected = {"before 2"};
  expected.insert(expected.end(), count - 1, "move 65536");
  expected.insert(expected.end(), count, "moved 65536 0");
  expected[count + 1] = "moved 65536 2";
  expected.push_back("after 2");
  EXPECT_EQ(recorder_.heard, expected);
  quire_relocation_pass_destroy(recorder_.pass);
  quire_quiescent_section_end(section);
}

TEST_F(CApiListenerTest, HearsOfTheRuntimesAllocators) {
  const quire_compaction_listener listener = Recorder::Listener(&recorder_);
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.host_device_count = 2;
  options.host_memory_per_device = 32 * kPage;
  options.listener = &listener;
  quire_runtime* const runtime = quire::CreateTestRuntime(options);
  for (const int32_t device : {0, 1}) {
    quire_allocator* allocator = nullptr;
    ASSERT_EQ(quire_runtime_get_allocator(runtime, device, &allocator),
              QUIRE_OK);
    ASSERT_EQ(quire_allocator_sleep(allocator, 0, nullptr, nullptr), QUIRE_OK);
    ASSERT_EQ(quire_allocator_wake(allocator, 0, 0, nullptr), QUIRE_OK);
    EXPECT_THAT(recorder_.heard,
                ElementsAre("before 3", "after 3", "before 4", "after 4"));
    recorder_.heard.clear();
    quire_allocator_destroy(allocator);
  }
  quire_runtime_destroy(runtime);
}

TEST_F(CApiListenerTest, LeavesOutWhatIsNull) {
  const quire_compaction_listener listener = QUIRE_COMPACTION_LISTENER_INIT;
  quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
  options.listener = &listener;
  quire_allocator* allocator = nullptr;
  ASSERT_EQ(quire_allocator_create(memory_, &options, &allocator), QUIRE_OK);
  EXPECT_EQ(quire_allocator_sleep(allocator, owner_, nullptr, nullptr),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_wake(allocator, owner_, 0, nullptr), QUIRE_OK);
  EXPECT_THAT(recorder_.heard, IsEmpty());
  quire_allocator_destroy(allocator);
}

TEST_F(CApiListenerTest, HasASize) {
  quire_compaction_listener listener{};
  quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
  options.listener = &listener;
  quire_allocator* allocator = nullptr;
  EXPECT_EQ(quire_allocator_create(memory_, &options, &allocator),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("quire_compaction_listener.size"));
  quire_runtime_options runtime_options = QUIRE_RUNTIME_OPTIONS_INIT;
  runtime_options.listener = &listener;
  quire_runtime* runtime = nullptr;
  EXPECT_EQ(quire_runtime_create(&runtime_options, &runtime),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(runtime, nullptr);
}

}  // namespace
