// Statistics by size class, stream and owner through the C interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "alloc/testing/c_api_fixture.h"

namespace {

using ::testing::HasSubstr;

class CApiBreakdownTest : public quire::CApiFixture {
 protected:
  quire_allocator_breakdown* Calculate() {
    quire_allocator_breakdown* breakdown = nullptr;
    EXPECT_EQ(quire_allocator_calculate_breakdown(allocator_, &breakdown),
              QUIRE_OK)
        << quire_last_error();
    return breakdown;
  }
};

TEST_F(CApiBreakdownTest, LayoutsAreThoseThatProgramsWereBuiltWith) {
  EXPECT_EQ(offsetof(quire_size_class_statistics, external_fragmentation), 96u);
  EXPECT_EQ(offsetof(quire_stream_statistics, shared_cooling_bytes), 64u);
  EXPECT_EQ(offsetof(quire_owner_use_statistics, external_fragmentation), 104u);
}

TEST_F(CApiBreakdownTest, HasARowForEachClassStreamAndOwner) {
  uint64_t stream = 0;
  ASSERT_EQ(quire_stream_create(runtime_, 0, &stream), QUIRE_OK);
  quire_allocate_options options = QUIRE_ALLOCATE_OPTIONS_INIT;
  options.stream = stream;
  ASSERT_EQ(quire_owner_register(runtime_, "kv", &options.owner), QUIRE_OK);
  const uint64_t slot = Allocate(1000, &options);
  const uint64_t large = Allocate(3 * kPage, &options);
  quire_allocator_breakdown* const breakdown = Calculate();
  // What happens afterwards is not in it.
  ASSERT_EQ(quire_allocator_free(allocator_, large, stream), QUIRE_OK);
  uint64_t classes = 0;
  uint64_t streams = 0;
  uint64_t owners = 0;
  ASSERT_EQ(quire_allocator_breakdown_get_counts(breakdown, &classes, &streams,
                                                 &owners),
            QUIRE_OK);
  EXPECT_EQ(classes, 2u);
  ASSERT_EQ(streams, 1u);
  ASSERT_EQ(owners, 1u);

  quire_size_class_statistics of_class = QUIRE_SIZE_CLASS_STATISTICS_INIT;
  ASSERT_EQ(quire_allocator_breakdown_get_class(breakdown, 0, &of_class),
            QUIRE_OK);
  EXPECT_EQ(of_class.version, QUIRE_ALLOCATOR_BREAKDOWN_VERSION);
  EXPECT_EQ(of_class.slot_size, 1024u);
  EXPECT_EQ(of_class.requested_bytes, 1000u);
  EXPECT_EQ(of_class.live_bytes, 1024u);
  EXPECT_DOUBLE_EQ(of_class.internal_fragmentation, 24.0 / 1024);
  ASSERT_EQ(quire_allocator_breakdown_get_class(breakdown, 1, &of_class),
            QUIRE_OK);
  EXPECT_EQ(of_class.slot_size, 0u);
  EXPECT_EQ(of_class.live_bytes, 3 * kPage);

  quire_stream_statistics of_stream = QUIRE_STREAM_STATISTICS_INIT;
  ASSERT_EQ(quire_allocator_breakdown_get_stream(breakdown, 0, &of_stream),
            QUIRE_OK);
  EXPECT_EQ(of_stream.stream, stream);
  EXPECT_EQ(of_stream.live_allocations, 2u);
  EXPECT_EQ(of_stream.requested_bytes, 1000 + 3 * kPage);

  quire_owner_use_statistics of_owner = QUIRE_OWNER_USE_STATISTICS_INIT;
  ASSERT_EQ(quire_allocator_breakdown_get_owner(breakdown, 0, &of_owner),
            QUIRE_OK);
  EXPECT_EQ(of_owner.owner, options.owner);
  EXPECT_EQ(of_owner.mapped_bytes, of_owner.live_bytes + of_owner.cached_bytes +
                                       of_owner.cooling_bytes +
                                       of_owner.slack_bytes);
  quire_allocator_breakdown_destroy(breakdown);
  quire_allocator_breakdown_destroy(nullptr);
  ASSERT_EQ(quire_allocator_free(allocator_, slot, stream), QUIRE_OK);
  ASSERT_EQ(quire_stream_destroy(runtime_, stream), QUIRE_OK);
}

TEST_F(CApiBreakdownTest, RefusesWhatIsWrong) {
  quire_allocator_breakdown* const breakdown = Calculate();
  EXPECT_EQ(quire_allocator_breakdown_get_counts(breakdown, nullptr, nullptr,
                                                 nullptr),
            QUIRE_OK);
  quire_size_class_statistics of_class = QUIRE_SIZE_CLASS_STATISTICS_INIT;
  quire_stream_statistics of_stream = QUIRE_STREAM_STATISTICS_INIT;
  quire_owner_use_statistics of_owner = QUIRE_OWNER_USE_STATISTICS_INIT;
  EXPECT_EQ(quire_allocator_breakdown_get_class(breakdown, 0, &of_class),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(quire_last_error(), HasSubstr("0 of a breakdown that has 0"));
  EXPECT_EQ(quire_allocator_breakdown_get_stream(breakdown, 0, &of_stream),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(
      quire_allocator_breakdown_get_owner(breakdown, UINT64_MAX, &of_owner),
      QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_breakdown_get_class(nullptr, 0, &of_class),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_breakdown_get_class(breakdown, 0, nullptr),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(
      quire_allocator_breakdown_get_counts(nullptr, nullptr, nullptr, nullptr),
      QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_allocator_calculate_breakdown(allocator_, nullptr),
            QUIRE_INVALID_ARGUMENT);
  quire_allocator_breakdown* none = nullptr;
  EXPECT_EQ(quire_allocator_calculate_breakdown(nullptr, &none),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(none, nullptr);
  quire_allocator_breakdown_destroy(breakdown);
}

}  // namespace
