// Traces that are played through the C interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "quire/alloc/c_api.h"

namespace {

using ::testing::HasSubstr;

class CApiReplayTest : public quire::CApiFixture {
 protected:
  CApiReplayTest() : path_(::testing::TempDir() + "c_api_replay") {}

  void WriteFile(const std::string& contents) const {
    std::ofstream(path_, std::ios::binary) << contents;
  }
  quire_status Replay(quire_replay_result* result,
                      const quire_replay_options* options = nullptr) {
    return quire_allocator_replay_trace(allocator_, path_.c_str(), options,
                                        result);
  }

  const std::string path_;
};

TEST_F(CApiReplayTest, PlaysWhatAFileSays) {
  WriteFile(
      "op,id,bytes,stream,thread,owner\n"
      "p,0,3000000,0,0,model\n"
      "a,1,1000,1,1,model\n"
      "r,1,0,2,1,\n"
      "f,1,0,1,2,\n"
      "x,2,1000,1,1,model\n"
      "f,0,0,0,2,\n");
  for (const uint32_t threads : {0u, 1u}) {
    quire_replay_options options = QUIRE_REPLAY_OPTIONS_INIT;
    options.use_threads = threads;
    options.try_failures = 1;
    quire_replay_result result = QUIRE_REPLAY_RESULT_INIT;
    ASSERT_EQ(Replay(&result, &options), QUIRE_OK) << quire_last_error();
    EXPECT_EQ(result.version, 1u);
    EXPECT_EQ(result.allocations, 2u);
    EXPECT_EQ(result.frees, 2u);
    EXPECT_EQ(result.failures, 0u);
    EXPECT_EQ(result.failures_served, 1u);
    EXPECT_EQ(result.peak_requested, 3001000u);
    EXPECT_GE(result.peak_mapped, 2 * kPage);
    EXPECT_EQ(result.operations, 5u);
    EXPECT_GT(result.driver_calls, 0u);
  }
  EXPECT_EQ(Statistics().live_allocations, 0u);
  // Nobody has to want the result.
  EXPECT_EQ(Replay(nullptr), QUIRE_OK);
}

TEST_F(CApiReplayTest, PlaysWhatItRecordedItself) {
  const uint64_t first = Allocate(5 * kPage);
  Allocate(300);
  ASSERT_EQ(quire_allocator_free(allocator_, first, 0), QUIRE_OK);
  const std::vector<std::string> paths = {path_ + ".csv", path_ + ".rmm",
                                          path_ + ".json", path_ + ".pickle"};
  ASSERT_EQ(
      quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_CSV, paths[0].c_str()),
      QUIRE_OK);
  ASSERT_EQ(
      quire_runtime_write_trace(runtime_, 0, QUIRE_TRACE_RMM, paths[1].c_str()),
      QUIRE_OK);
  ASSERT_EQ(quire_runtime_write_snapshot(runtime_, 0, QUIRE_SNAPSHOT_JSON,
                                         paths[2].c_str()),
            QUIRE_OK);
  ASSERT_EQ(quire_runtime_write_snapshot(runtime_, 0, QUIRE_SNAPSHOT_PYTORCH,
                                         paths[3].c_str()),
            QUIRE_OK);
  for (const std::string& path : paths) {
    quire_replay_result result = QUIRE_REPLAY_RESULT_INIT;
    ASSERT_EQ(quire_allocator_replay_trace(allocator_, path.c_str(), nullptr,
                                           &result),
              QUIRE_OK)
        << quire_last_error();
    EXPECT_EQ(result.allocations, 2u) << path;
    EXPECT_EQ(result.peak_requested, 5 * kPage + 300) << path;
  }
}

TEST_F(CApiReplayTest, LimitsOfOwnersHold) {
  uint32_t owner = 0;
  ASSERT_EQ(quire_owner_register(runtime_, "model", &owner), QUIRE_OK);
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  limits.hard = 2 * kPage;
  ASSERT_EQ(quire_memory_set_owner_limits(memory_, owner, &limits), QUIRE_OK);
  WriteFile(
      "op,id,bytes,owner\n"
      "a,1,6000000,model\n"
      "a,2,6000000,other\n"
      "f,1,0,\n"
      "f,2,0,\n");
  quire_replay_result result = QUIRE_REPLAY_RESULT_INIT;
  ASSERT_EQ(Replay(&result), QUIRE_OK) << quire_last_error();
  EXPECT_EQ(result.allocations, 1u);
  EXPECT_EQ(result.failures, 1u);
  EXPECT_EQ(result.frees, 1u);
}

TEST_F(CApiReplayTest, WhatIsNoTraceIsRefused) {
  WriteFile("op,id,bytes\na,1,many\n");
  quire_replay_result result = QUIRE_REPLAY_RESULT_INIT;
  EXPECT_EQ(Replay(&result), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr(path_));
  EXPECT_THAT(quire_last_error(), HasSubstr("line 2"));
  EXPECT_EQ(quire_allocator_replay_trace(allocator_, (path_ + "/none").c_str(),
                                         nullptr, &result),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_allocator_replay_trace(allocator_, (path_ + ".none").c_str(),
                                         nullptr, &result),
            QUIRE_NOT_FOUND);
  // A folder opens, and cannot be read.
  EXPECT_EQ(quire_allocator_replay_trace(
                allocator_, ::testing::TempDir().c_str(), nullptr, &result),
            QUIRE_FAILED_PRECONDITION)
      << quire_last_error();
  EXPECT_EQ(quire_allocator_replay_trace(nullptr, "x", nullptr, &result),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_replay_trace(allocator_, nullptr, nullptr, &result),
            QUIRE_INVALID_ARGUMENT);
  result.size = 1;
  EXPECT_EQ(Replay(&result), QUIRE_INVALID_ARGUMENT);
  quire_replay_options options = QUIRE_REPLAY_OPTIONS_INIT;
  options.size = 1;
  EXPECT_EQ(Replay(nullptr, &options), QUIRE_INVALID_ARGUMENT);
}

}  // namespace
