// Relocation passes through the C interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "quire/alloc/c_api_compaction.h"

namespace {

using ::testing::HasSubstr;

class CApiRelocationTest : public quire::CApiFixture {
 protected:
  static constexpr uint64_t kSlot = 64 << 10;

  CApiRelocationTest() {
    EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section_),
              QUIRE_OK);
  }
  ~CApiRelocationTest() override { quire_quiescent_section_end(section_); }

  // Slabs in which a quarter of the slots is live, by address: what each is
  // filled with.
  std::map<uint64_t, int> MakeSparseSlabs(uint32_t owner = 0) {
    quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
    options.owner = owner;
    options.movable = 1;
    std::vector<uint64_t> all;
    for (int i = 0; i < 192; ++i) all.push_back(Allocate(kSlot, &options));
    std::map<uint64_t, int> live;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % 4 == 0) {
        live[all[i]] = static_cast<int>(i);
        std::memset(reinterpret_cast<void*>(all[i]), static_cast<int>(i),
                    kSlot);
      } else {
        EXPECT_EQ(quire_allocator_free(allocator_, all[i], 0), QUIRE_OK);
      }
    }
    return live;
  }
  quire_relocation_pass* Begin(
      const quire_relocation_limits* limits = nullptr) {
    quire_relocation_pass* pass = nullptr;
    EXPECT_EQ(quire_relocation_pass_begin(allocator_, section_, limits, &pass),
              QUIRE_OK)
        << quire_last_error();
    return pass;
  }
  static std::vector<quire_relocation_move> Moves(
      const quire_relocation_pass* pass) {
    uint64_t count = 0;
    EXPECT_EQ(quire_relocation_pass_get_move_count(pass, &count), QUIRE_OK);
    std::vector<quire_relocation_move> moves;
    for (uint64_t i = 0; i < count; ++i) {
      quire_relocation_move move = QUIRE_RELOCATION_MOVE_INIT;
      EXPECT_EQ(quire_relocation_pass_get_move(pass, i, &move), QUIRE_OK);
      moves.push_back(move);
    }
    return moves;
  }
  bool IsLive(uint64_t address) {
    quire_allocation_info info = QUIRE_ALLOCATION_INFO_INIT;
    const bool found =
        quire_allocator_find(allocator_, address, &info) == QUIRE_OK;
    return found && info.address == address;
  }
  static bool Holds(uint64_t address, int value) {
    const std::vector<char> expected(kSlot, static_cast<char>(value));
    return std::memcmp(reinterpret_cast<void*>(address), expected.data(),
                       kSlot) == 0;
  }

  quire_quiescent_section* section_ = nullptr;
};

TEST_F(CApiRelocationTest, CopiesIgnoresAndDestroys) {
  const std::map<uint64_t, int> live = MakeSparseSlabs();
  quire_relocation_pass* const pass = Begin();
  const std::vector<quire_relocation_move> moves = Moves(pass);
  ASSERT_GE(moves.size(), 3u);
  for (size_t i = 0; i < moves.size(); ++i) {
    ASSERT_EQ(live.count(moves[i].from), 1u);
    EXPECT_EQ(moves[i].bytes, kSlot);
    EXPECT_EQ(moves[i].owner, 0u);
    EXPECT_EQ(quire_relocation_pass_set_action(
                  pass, i, static_cast<quire_move_action>(i % 3)),
              QUIRE_OK);
    // What is being moved is nobody's to free or to pin.
    EXPECT_EQ(quire_allocator_free(allocator_, moves[i].from, 0),
              QUIRE_FAILED_PRECONDITION);
    EXPECT_EQ(quire_allocator_pin(allocator_, moves[i].from),
              QUIRE_FAILED_PRECONDITION);
  }
  ASSERT_EQ(quire_relocation_pass_copy(pass), QUIRE_OK) << quire_last_error();
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_relocation_pass_finish(pass, &report), QUIRE_OK);
  EXPECT_EQ(report.moves, (moves.size() + 2) / 3);
  EXPECT_EQ(report.bytes_moved, report.moves * kSlot);
  for (size_t i = 0; i < moves.size(); ++i) {
    const int value = live.at(moves[i].from);
    EXPECT_EQ(IsLive(moves[i].from), i % 3 == QUIRE_MOVE_IGNORE) << i;
    EXPECT_EQ(IsLive(moves[i].to), i % 3 == QUIRE_MOVE_COPY) << i;
    if (i % 3 == QUIRE_MOVE_COPY) {
      EXPECT_TRUE(Holds(moves[i].to, value)) << i;
    } else if (i % 3 == QUIRE_MOVE_IGNORE) {
      EXPECT_TRUE(Holds(moves[i].from, value)) << i;
    }
  }
  EXPECT_EQ(Statistics().live_allocations, live.size() - moves.size() / 3);
  // It has ended, and tells what it moved.
  EXPECT_EQ(Moves(pass).size(), moves.size());
  EXPECT_EQ(quire_relocation_pass_copy(pass), QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_relocation_pass_set_action(pass, 0, QUIRE_MOVE_COPY),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_relocation_pass_finish(pass, nullptr),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr("has ended"));
  quire_relocation_pass_destroy(pass);
}

TEST_F(CApiRelocationTest, GivesPagesBack) {
  const std::map<uint64_t, int> live = MakeSparseSlabs();
  ASSERT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  const uint64_t before = Statistics().mapped_bytes;
  quire_relocation_pass* const pass = Begin();
  ASSERT_EQ(quire_relocation_pass_copy(pass), QUIRE_OK);
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  ASSERT_EQ(quire_relocation_pass_finish(pass, &report), QUIRE_OK);
  quire_relocation_pass_destroy(pass);
  EXPECT_GT(report.pages_freed, 0u);
  EXPECT_LT(Statistics().mapped_bytes, before);
  EXPECT_EQ(Statistics().live_allocations, live.size());
}

TEST_F(CApiRelocationTest, GivesUpWhatIsNotFinished) {
  const std::map<uint64_t, int> live = MakeSparseSlabs();
  quire_relocation_pass* const pass = Begin();
  ASSERT_FALSE(Moves(pass).empty());
  quire_relocation_pass* second = nullptr;
  EXPECT_EQ(quire_relocation_pass_begin(allocator_, section_, nullptr, &second),
            QUIRE_FAILED_PRECONDITION);
  quire_relocation_pass_destroy(pass);
  quire_relocation_pass_destroy(nullptr);
  for (const auto& [address, value] : live) {
    EXPECT_TRUE(IsLive(address));
    EXPECT_TRUE(Holds(address, value));
  }
  quire_relocation_pass_destroy(Begin());
}

TEST_F(CApiRelocationTest, StaysWithinItsLimits) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  MakeSparseSlabs(owner);
  const auto count = [&](const quire_relocation_limits& limits) {
    quire_relocation_pass* const pass = Begin(&limits);
    const size_t moves = Moves(pass).size();
    quire_relocation_pass_destroy(pass);
    return moves;
  };
  quire_relocation_limits limits = QUIRE_RELOCATION_LIMITS_INIT;
  const size_t all = count(limits);
  ASSERT_GT(all, 8u);
  // Slabs are emptied as a whole, or not at all.
  limits.max_moves = all / 2;
  const size_t half = count(limits);
  EXPECT_GT(half, 0u);
  EXPECT_LE(half, all / 2);
  limits.max_moves = 0;
  limits.max_bytes = all / 2 * kSlot;
  EXPECT_EQ(count(limits), half);
  limits.max_bytes = kSlot - 1;
  EXPECT_EQ(count(limits), 0u);
  limits.max_bytes = 0;
  limits.of_one_owner = 1;
  EXPECT_EQ(count(limits), 0u);  // of the unnamed one
  limits.owner = owner;
  EXPECT_EQ(count(limits), all);
}

TEST_F(CApiRelocationTest, LeavesPinnedMemoryWhereItIs) {
  const std::map<uint64_t, int> live = MakeSparseSlabs();
  for (const auto& [address, value] : live) {
    ASSERT_EQ(quire_allocator_pin(allocator_, address), QUIRE_OK);
  }
  quire_relocation_pass* const pass = Begin();
  EXPECT_TRUE(Moves(pass).empty());
  quire_relocation_pass_destroy(pass);
}

TEST_F(CApiRelocationTest, OutlivesTheOtherHandles) {
  MakeSparseSlabs();
  quire_allocator* allocator = nullptr;
  ASSERT_EQ(quire_allocator_create(memory_, nullptr, &allocator), QUIRE_OK);
  quire_relocation_pass* pass = nullptr;
  ASSERT_EQ(quire_relocation_pass_begin(allocator, section_, nullptr, &pass),
            QUIRE_OK);
  quire_allocator_destroy(allocator);
  quire_quiescent_section_end(section_);
  section_ = nullptr;
  // The pass keeps the section open.
  EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section_),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_relocation_pass_copy(pass), QUIRE_OK);
  quire_relocation_pass_destroy(pass);
  EXPECT_EQ(quire_quiescent_section_begin(memory_, nullptr, 0, &section_),
            QUIRE_OK);
}

TEST_F(CApiRelocationTest, RefusesWhatIsWrong) {
  MakeSparseSlabs();
  quire_relocation_pass* const pass = Begin();
  const std::vector<quire_relocation_move> moves = Moves(pass);
  ASSERT_FALSE(moves.empty());
  quire_relocation_move move = QUIRE_RELOCATION_MOVE_INIT;
  for (const uint64_t index : {uint64_t{moves.size()}, UINT64_MAX}) {
    EXPECT_EQ(quire_relocation_pass_get_move(pass, index, &move),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(index)));
    EXPECT_EQ(quire_relocation_pass_set_action(pass, index, QUIRE_MOVE_COPY),
              QUIRE_INVALID_ARGUMENT);
  }
  for (const quire_move_action action : {-1, 3, INT32_MAX}) {
    EXPECT_EQ(quire_relocation_pass_set_action(pass, 0, action),
              QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(action)));
  }
  move.size = 0;
  EXPECT_EQ(quire_relocation_pass_get_move(pass, 0, &move),
            QUIRE_INVALID_ARGUMENT);
  quire_compaction_report report{};
  EXPECT_EQ(quire_relocation_pass_finish(pass, &report),
            QUIRE_INVALID_ARGUMENT);
  quire_relocation_limits limits{};
  quire_relocation_pass* other = nullptr;
  EXPECT_EQ(quire_relocation_pass_begin(allocator_, section_, &limits, &other),
            QUIRE_INVALID_ARGUMENT);
  // It is still open.
  EXPECT_EQ(quire_relocation_pass_finish(pass, nullptr), QUIRE_OK);
  quire_relocation_pass_destroy(pass);
}

TEST_F(CApiRelocationTest, NamesTheArgumentThatIsNull) {
  quire_relocation_pass* const pass = Begin();
  quire_relocation_pass* other = nullptr;
  quire_relocation_move move = QUIRE_RELOCATION_MOVE_INIT;
  uint64_t count = 0;
  const auto expect_null = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(std::string(quire_last_error()), std::string(name) + " is NULL");
  };
  expect_null(quire_relocation_pass_begin(nullptr, section_, nullptr, &other),
              "allocator");
  expect_null(quire_relocation_pass_begin(allocator_, nullptr, nullptr, &other),
              "section");
  expect_null(
      quire_relocation_pass_begin(allocator_, section_, nullptr, nullptr),
      "pass");
  expect_null(quire_relocation_pass_get_move_count(nullptr, &count), "pass");
  expect_null(quire_relocation_pass_get_move_count(pass, nullptr), "count");
  expect_null(quire_relocation_pass_get_move(nullptr, 0, &move), "pass");
  expect_null(quire_relocation_pass_get_move(pass, 0, nullptr), "move");
  expect_null(quire_relocation_pass_set_action(nullptr, 0, QUIRE_MOVE_COPY),
              "pass");
  expect_null(quire_relocation_pass_copy(nullptr), "pass");
  expect_null(quire_relocation_pass_finish(nullptr, nullptr), "pass");
  quire_relocation_pass_destroy(pass);
}

}  // namespace
