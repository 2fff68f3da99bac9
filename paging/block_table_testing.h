// What the tests of the block-table cache share: a device with a cache of
// blocks of four tokens, whose copies are made on a stream.

#ifndef QUIRE_PAGING_BLOCK_TABLE_TESTING_H_
#define QUIRE_PAGING_BLOCK_TABLE_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "paging/kv_cache_testing.h"
#include "quire/paging/block_table_cache.h"

namespace quire {

class BlockTableFixture : public ::testing::Test {
 protected:
  BlockTableFixture(uint64_t pages, uint32_t blocks, uint64_t max_tokens)
      : device_(pages) {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    options_.max_sequence_length = max_tokens;
    options_.max_sequences = 8;
    options_.block_tokens = 4;
    options_.blocks = blocks;
    options_.stream = stream_;
  }
  ~BlockTableFixture() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  void Make(const KvLayout& layout) {
    auto cache = BlockTableCache::Create(device_.memory(), layout, options_);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  absl::Status Step(std::span<const SequenceStep> steps) {
    const absl::Status status = cache_->Step(steps);
    // Copies are queued.
    EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    return status;
  }

  TestDevice device_;
  StreamId stream_;
  BlockTableCacheOptions options_;
  std::unique_ptr<BlockTableCache> cache_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_TABLE_TESTING_H_
