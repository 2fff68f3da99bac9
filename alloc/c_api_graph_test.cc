// Memory that graphs keep, through the C interface.

#include "quire/alloc/c_api_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::HasSubstr;

class CApiGraphTest : public quire::CApiFixture {
 protected:
  CApiGraphTest() {
    EXPECT_EQ(quire_stream_create(runtime_, 0, &stream_), QUIRE_OK);
  }
  ~CApiGraphTest() override {
    EXPECT_EQ(quire_stream_destroy(runtime_, stream_), QUIRE_OK);
  }

  uint64_t MakePool(uint32_t owner = 0) {
    uint64_t pool = 0;
    EXPECT_EQ(quire_allocator_create_graph_pool(allocator_, owner, &pool),
              QUIRE_OK)
        << quire_last_error();
    EXPECT_NE(pool, 0u);
    return pool;
  }

  uint64_t stream_ = 0;
};

TEST_F(CApiGraphTest, APoolKeepsItsPagesUntilTheRelease) {
  const uint64_t pool = MakePool();
  ASSERT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, stream_),
            QUIRE_OK)
      << quire_last_error();
  const uint64_t address = AllocateOn(stream_, 3 * kPage);
  EXPECT_EQ(quire_allocator_free(allocator_, address, stream_), QUIRE_OK);
  ASSERT_EQ(quire_allocator_end_graph_capture(allocator_, stream_), QUIRE_OK);
  EXPECT_EQ(Statistics().graph_pool_bytes, 3 * kPage);
  EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(Statistics().graph_pool_bytes, 3 * kPage);
  // The next capture has them again.
  ASSERT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, stream_),
            QUIRE_OK);
  EXPECT_EQ(AllocateOn(stream_, 3 * kPage), address);
  ASSERT_EQ(quire_allocator_end_graph_capture(allocator_, stream_), QUIRE_OK);
  EXPECT_EQ(quire_allocator_free(allocator_, address, stream_), QUIRE_OK);
  ASSERT_EQ(quire_allocator_release_graph_pool(allocator_, pool, &stream_, 1),
            QUIRE_OK)
      << quire_last_error();
  EXPECT_EQ(quire_allocator_trim(allocator_, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(Statistics().graph_pool_bytes, 0u);
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

TEST_F(CApiGraphTest, RefusesWhatCannotBe) {
  const uint64_t pool = MakePool();
  EXPECT_EQ(quire_allocator_begin_graph_capture(allocator_, 0, stream_),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(
      quire_allocator_begin_graph_capture(allocator_, pool + 1000, stream_),
      QUIRE_NOT_FOUND);
  EXPECT_THAT(quire_last_error(), HasSubstr(std::to_string(pool + 1000)));
  EXPECT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, 0),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, 12345),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_allocator_end_graph_capture(allocator_, stream_),
            QUIRE_FAILED_PRECONDITION);
  ASSERT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, stream_),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_begin_graph_capture(allocator_, pool, stream_),
            QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, nullptr, 0),
            QUIRE_FAILED_PRECONDITION);
  ASSERT_EQ(quire_allocator_end_graph_capture(allocator_, stream_), QUIRE_OK);
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, nullptr, 1),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_STREQ(quire_last_error(), "streams is NULL");
  const uint64_t none = 0;
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, &none, 1),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, nullptr, 0),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, nullptr, 0),
            QUIRE_NOT_FOUND);
  uint64_t other = 7;
  EXPECT_EQ(quire_allocator_create_graph_pool(allocator_, UINT32_MAX, &other),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(other, 7u);
}

TEST_F(CApiGraphTest, APoolIsNoneOfAnotherAllocator) {
  quire_allocator* other = nullptr;
  ASSERT_EQ(quire_allocator_create(memory_, nullptr, &other), QUIRE_OK);
  const uint64_t pool = MakePool();
  uint64_t foreign = 0;
  ASSERT_EQ(quire_allocator_create_graph_pool(other, 0, &foreign), QUIRE_OK);
  EXPECT_NE(foreign, pool);
  EXPECT_EQ(quire_allocator_begin_graph_capture(allocator_, foreign, stream_),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_allocator_release_graph_pool(other, pool, nullptr, 0),
            QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_allocator_release_graph_pool(other, foreign, nullptr, 0),
            QUIRE_OK);
  EXPECT_EQ(quire_allocator_release_graph_pool(allocator_, pool, nullptr, 0),
            QUIRE_OK);
  quire_allocator_destroy(other);
}

TEST_F(CApiGraphTest, NamesTheArgumentThatIsNull) {
  uint64_t pool = 7;
  const auto expect_null = [](quire_status status, const char* name) {
    EXPECT_EQ(status, QUIRE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(std::string(quire_last_error()), std::string(name) + " is NULL");
  };
  expect_null(quire_allocator_create_graph_pool(nullptr, 0, &pool),
              "allocator");
  expect_null(quire_allocator_create_graph_pool(allocator_, 0, nullptr),
              "pool");
  expect_null(quire_allocator_begin_graph_capture(nullptr, 1, stream_),
              "allocator");
  expect_null(quire_allocator_end_graph_capture(nullptr, stream_), "allocator");
  expect_null(quire_allocator_release_graph_pool(nullptr, 1, nullptr, 0),
              "allocator");
  EXPECT_EQ(pool, 7u);
}

}  // namespace
