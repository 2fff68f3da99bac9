// What kernels and copies may still see of rows when the sequence that had them
// is gone, and its pages are given back at once. Fences are those of a caller,
// who records them when it queues its kernels: copies that the cache queues may
// come before or after.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "paging/kv_cache_share_testing.h"

namespace quire {
namespace {

class KvCacheOrderTest : public ::testing::TestWithParam<bool> {
 protected:
  KvCacheOrderTest() {
    KvCacheOptions options = CacheOptions(320);
    options.prefix_block_tokens = 4;
    options.eager_reclaim = GetParam();
    cache_ = MakeCache(&device_, 5, options);
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
  }
  ~KvCacheOrderTest() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }
  SequenceId Written(const Tokens& tokens) {
    const SequenceId id = Admit(cache_.get(), tokens.size());
    TokenRows(*cache_, id).Write(tokens, 0);
    return id;
  }
  bool Has(SequenceId id, const Tokens& tokens) {
    EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    return TokenRows(*cache_, id).FirstWrong(tokens) == tokens.size();
  }
  Fence Record() {
    return *Fence::Record(device_.driver(), DeviceId(0),
                          std::span(&stream_, 1));
  }
  // Somebody needs every page that is to be had at once.
  void TakeWhatIsFree() {
    device_.memory()->Harvest();
    Taker taker(&device_, 100);
    for (uint64_t pages = 100; pages > 0 && !taker.Take(pages).ok(); --pages)
      continue;
  }

  TestDevice device_{100};
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
};

// The kernels of the parent have ended, its fence says so, and the fork's
// copies stand behind other work of the same stream.
TEST_P(KvCacheOrderTest, CopiesBehindTheFenceOfTheirSourceFindIt) {
  const Tokens tokens = TokensFrom(0, 75);
  const SequenceId parent = Written(tokens);
  const Fence fence = Record();
  ASSERT_TRUE(fence.Wait().ok());
  device_.LaunchLate(stream_, std::chrono::milliseconds(5), [] {});
  const auto child = cache_->Fork(parent, stream_);
  ASSERT_TRUE(child.ok()) << child.status();
  Release(cache_.get(), parent, fence);
  TakeWhatIsFree();
  EXPECT_TRUE(Has(*child, tokens));
}

// The same of a prompt's copies from what was published.
TEST_P(KvCacheOrderTest, CopiesOfAPrefixFindItWhenItIsGivenUp) {
  const Tokens tokens = TokensFrom(0, 75);
  const SequenceId holder = Written(tokens);
  ASSERT_TRUE(cache_->Publish(holder, tokens).ok());
  const Fence fence = Record();
  ASSERT_TRUE(fence.Wait().ok());
  device_.LaunchLate(stream_, std::chrono::milliseconds(5), [] {});
  const PromptAdmission prompt =
      AdmitPrompt(cache_.get(), Concat(tokens, {1, 2}), {.stream = stream_});
  ASSERT_EQ(prompt.cached_tokens, 72u);
  Release(cache_.get(), holder, fence);
  TakeWhatIsFree();
  EXPECT_TRUE(Has(prompt.sequence, TokensFrom(0, 72)));
}

// A sequence has gone whose kernels read pages that a fork of it has too, and
// writes again: there is nobody else on them, but those kernels.
TEST_P(KvCacheOrderTest, PagesThatAreReadUnderAFenceAreNotWritten) {
  const Tokens tokens = TokensFrom(0, 150);
  const SequenceId parent = Written(tokens);
  const auto child = cache_->Fork(parent, stream_);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  std::atomic<bool> right = false;
  const TokenRows rows(*cache_, parent);
  const Fence late = device_.LaunchLate(
      stream_, std::chrono::milliseconds(20),
      [&] { right = rows.FirstWrong(tokens) == tokens.size(); });
  Release(cache_.get(), parent, late);
  ASSERT_TRUE(cache_->Shrink(*child, 50, Fence()).ok());
  ASSERT_TRUE(Step(cache_.get(), *child, 90).ok());
  const Tokens other =
      Concat(Tokens(tokens.begin(), tokens.begin() + 50), TokensFrom(900, 40));
  TokenRows(*cache_, *child).Write(other, 50);
  EXPECT_TRUE(Has(*child, other));
  EXPECT_TRUE(right);
  // It was waited for; nothing had to be copied.
  EXPECT_EQ(cache_->GetStatistics().pages_unshared, 0u);
}

INSTANTIATE_TEST_SUITE_P(Eager, KvCacheOrderTest, ::testing::Bool());

}  // namespace
}  // namespace quire
