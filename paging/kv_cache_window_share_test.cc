// Prefixes of sequences that drop tokens: what every layer still has is found,
// full layers share pages, and layers with windows have what the next token
// sees.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "paging/kv_cache_share_testing.h"

namespace quire {
namespace {

constexpr uint64_t kWindow = 40;

class KvCacheWindowShareTest : public ::testing::Test {
 protected:
  KvCacheWindowShareTest() {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
  }
  ~KvCacheWindowShareTest() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }
  // Two groups of 256-byte rows, 16 tokens a page: first the layers with the
  // window, then those without.
  void Make(uint64_t sinks, const KvTokenLimit& limit = {}) {
    KvCacheOptions options = CacheOptions(640);
    options.prefix_block_tokens = 8;
    options.eager_reclaim = true;
    options.limit = limit;
    options.stream = stream_;
    cache_ = MakeCache(&device_, WindowTestLayout(kWindow, sinks), options);
  }
  PromptAdmission Prompt(const Tokens& tokens) {
    const PromptAdmission admission =
        AdmitPrompt(cache_.get(), tokens, {.stream = stream_});
    EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    Tokens cached = tokens;
    cached.resize(admission.cached_tokens);
    EXPECT_EQ(TokenRows(*cache_, admission.sequence)
                  .FirstWrong(cached, admission.cached_tokens + 1),
              cached.size());
    WriteAndPublish(cache_.get(), admission.sequence, tokens,
                    admission.cached_tokens);
    return admission;
  }
  // Decodes to `length` tokens, in steps of one.
  void Decode(SequenceId id, Tokens* tokens, uint64_t length) {
    while (tokens->size() < length) {
      cache_->EndBatch(Fence());
      tokens->push_back(static_cast<int32_t>(tokens->size()));
      ASSERT_TRUE(Step(cache_.get(), id, tokens->size()).ok());
      TokenRows(*cache_, id).Write(*tokens, tokens->size() - 1);
      ASSERT_EQ(TokenRows(*cache_, id).FirstWrong(*tokens, tokens->size()),
                tokens->size());
    }
  }

  TestDevice device_{100};
  StreamId stream_;
  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvCacheWindowShareTest, WithinTheWindowPrefixesAreFoundAsElsewhere) {
  Make(0);
  const Tokens text = TokensFrom(0, 33);
  Release(cache_.get(), Prompt(text).sequence);
  // Adopted: nothing is dropped before the window is full.
  EXPECT_EQ(Prompt(text).cached_tokens, 32u);
  EXPECT_EQ(cache_->GetStatistics().adoptions, 1u);
  // Shared with who runs: two full pages, and copies in the other group.
  EXPECT_EQ(Prompt(text).cached_tokens, 32u);
  EXPECT_EQ(cache_->GetStatistics().shared, KiB(4 * 2));
}

// A system prompt that is longer than the window and was only computed.
TEST_F(KvCacheWindowShareTest, ALongPromptLeavesTheWindowsOfItsLastToken) {
  Make(0);
  const Tokens text = TokensFrom(0, 200);
  Release(cache_.get(), Prompt(text).sequence);
  ASSERT_EQ(device_.live_pages(), 26u);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) {
    Tokens prompt = Concat(text, TokensFrom(1000 * (i + 1), 8));
    const uint64_t before = device_.live_pages();
    const PromptAdmission admission = Prompt(prompt);
    EXPECT_EQ(admission.cached_tokens, 200u);
    // A page of its own behind 12 shared ones, and tokens 161 to 207: pages 10
    // to 12.
    EXPECT_EQ(device_.live_pages(), before + 4);
    Decode(admission.sequence, &prompt, 290);
    ids.push_back(admission.sequence);
  }
  for (const SequenceId id : ids) Release(cache_.get(), id);
  // It is still there for the next one.
  EXPECT_EQ(Prompt(text).cached_tokens, 192u);
}

TEST_F(KvCacheWindowShareTest, WhatWasDroppedIsNotFound) {
  Make(0);
  Tokens text = TokensFrom(0, 30);
  const SequenceId id = Prompt(text).sequence;
  Decode(id, &text, 55);  // nothing has left yet: a page has 16 tokens
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  const PromptAdmission other = Prompt(Concat(text, {1, 2}));
  EXPECT_EQ(other.cached_tokens, 48u);
  EXPECT_TRUE(cache_->Shrink(other.sequence, 0, Fence()).ok());
  Release(cache_.get(), other.sequence);
  Decode(id, &text, 56);
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  EXPECT_EQ(Prompt(text).cached_tokens, 0u);
  Release(cache_.get(), id);
}

TEST_F(KvCacheWindowShareTest, SinksAreFoundWhenTheMiddleIsGone) {
  Make(/*sinks=*/20);  // two pages
  Tokens text = TokensFrom(0, 60);
  const SequenceId id = Prompt(text).sequence;
  Decode(id, &text, 150);
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  const PromptAdmission running = Prompt(text);
  EXPECT_EQ(running.cached_tokens, 32u);
  Release(cache_.get(), running.sequence);
  Release(cache_.get(), id);
  EXPECT_EQ(Prompt(Concat(TokensFrom(0, 40), {7})).cached_tokens, 40u);
}

// The sequence has of cached rows what its next token sees, and no more.
TEST_F(KvCacheWindowShareTest, NobodyGoesBackBehindWhatWasCached) {
  Make(0);
  const Tokens text = TokensFrom(0, 200);
  const SequenceId first = Prompt(text).sequence;
  const PromptAdmission second = Prompt(Concat(text, {5, 6, 7}));
  ASSERT_EQ(second.cached_tokens, 200u);
  EXPECT_TRUE(cache_->Shrink(second.sequence, 200, Fence()).ok());
  EXPECT_EQ(cache_->Shrink(second.sequence, 150, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(cache_->Shrink(first, 150, Fence()).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
}

TEST_F(KvCacheWindowShareTest, WithoutAStreamNothingIsShared) {
  Make(0);
  const Tokens text = TokensFrom(0, 200);
  const SequenceId id = Prompt(text).sequence;
  EXPECT_EQ(AdmitPrompt(cache_.get(), text, {}).cached_tokens, 0u);
  Release(cache_.get(), id);
}

TEST_F(KvCacheWindowShareTest, ALimitOfTheCacheIsAWindowOfAllLayers) {
  Make(0, {.max_tokens = 64, .sinks = 16});
  Tokens text = TokensFrom(0, 50);
  const SequenceId id = Prompt(text).sequence;
  EXPECT_EQ(Prompt(text).cached_tokens, 48u);
  Decode(id, &text, 200);
  Release(cache_.get(), id);
  EXPECT_EQ(Prompt(text).cached_tokens, 48u);  // of the second one
}

TEST_F(KvCacheWindowShareTest, ASequenceWithALimitOfItsOwnIsNotFound) {
  Make(0);
  const Tokens text = TokensFrom(0, 33);
  const SequenceId id = *cache_->Admit(33, KvTokenLimit{.max_tokens = 50});
  WriteAndPublish(cache_.get(), id, text);
  EXPECT_EQ(Prompt(text).cached_tokens, 0u);
  Release(cache_.get(), id);
}

}  // namespace
}  // namespace quire
