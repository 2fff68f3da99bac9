// Prefixes of sequences that drop tokens: what every layer still has is found,
// full layers share pages, and layers with windows have what the next token
// sees.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "alloc/testing/fault_sweep.h"
#include "paging/kv_cache_share_testing.h"
#include "quire/alloc/status_macros.h"

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
  void Make(uint64_t sinks, const KvTokenLimit& limit = {},
            uint32_t steps_ahead = 0) {
    KvCacheOptions options = CacheOptions(640);
    options.prefix_block_tokens = 8;
    options.eager_reclaim = true;
    options.limit = limit;
    options.stream = stream_;
    options.page_ahead.max_steps = steps_ahead;
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
  // Decodes to `length` tokens, in steps of one, between which the cache works
  // ahead if it does that.
  void Decode(SequenceId id, Tokens* tokens, uint64_t length,
              bool ahead = true) {
    while (tokens->size() < length) {
      cache_->EndBatch(Fence());
      tokens->push_back(static_cast<int32_t>(tokens->size()));
      ASSERT_TRUE(Step(cache_.get(), id, tokens->size()).ok());
      if (ahead) {
        ASSERT_TRUE(cache_->PrepareAhead().ok());
        EXPECT_TRUE(cache_->CheckInvariants().ok())
            << cache_->CheckInvariants();
      }
      TokenRows(*cache_, id).Write(*tokens, tokens->size() - 1);
      ASSERT_EQ(TokenRows(*cache_, id).FirstWrong(*tokens, tokens->size()),
                tokens->size());
    }
  }

  // A sequence that began with `common` and went on is gone: prompts that begin
  // so find nothing, and show where they part from it.
  void MakeKnown(const Tokens& common) {
    Tokens text = Concat(common, TokensFrom(1000, 20));
    const SequenceId id = Prompt(text).sequence;
    Decode(id, &text, 200);
    EXPECT_TRUE(cache_->Publish(id, text).ok());
    Release(cache_.get(), id);
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
  // Up to the end of a block, where a prompt may go on, everything stays.
  Decode(id, &text, 57);
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

// The next question of a conversation that has outgrown the window.
TEST_F(KvCacheWindowShareTest, AConversationGoesOnWhereItEnded) {
  for (const uint64_t sinks : {0, 20}) {
    cache_.reset();
    Make(sinks);
    Tokens text = TokensFrom(0, 30);
    for (int turn = 1; turn <= 4; ++turn) {
      const PromptAdmission admission = Prompt(text);
      // All whole blocks of what was there.
      EXPECT_EQ(admission.cached_tokens,
                turn == 1 ? 0u : (turn - 1) * 120 / 8 * 8);
      Decode(admission.sequence, &text, 120 * turn - 7);
      EXPECT_TRUE(cache_->Publish(admission.sequence, text).ok());
      Decode(admission.sequence, &text, 120 * turn);
      EXPECT_TRUE(cache_->Publish(admission.sequence, text).ok());
      Release(cache_.get(), admission.sequence);
      EXPECT_EQ(cache_->GetStatistics().windows_kept,
                static_cast<uint64_t>(turn));
      text = Concat(text, TokensFrom(1000 * turn, 10));
    }
    // A beginning that is none of the ends is found as far as the sinks go.
    EXPECT_EQ(Prompt(TokensFrom(0, 29)).cached_tokens, sinks == 0 ? 0u : 24u);
  }
}

// 144 tokens: nine full pages of the layers without a window, and of the others
// tokens 105 to 143.
TEST_F(KvCacheWindowShareTest, ALastWindowTakesWhatItHasOfItsPages) {
  Make(0);
  Tokens text = TokensFrom(0, 30);
  const SequenceId id = Prompt(text).sequence;
  Decode(id, &text, 144);
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  Release(cache_.get(), id);
  EXPECT_EQ(device_.live_pages(), 9u + 3u);
  EXPECT_EQ(cache_->GetStatistics().packed_tails, KiB(4 * 3));
  EXPECT_EQ(cache_->GetStatistics().reclaimable, KiB(4 * 12));
  // Somebody needs nearly all memory: it goes as one, and nothing is found.
  Taker taker(&device_, 100);
  ASSERT_TRUE(taker.Take(95).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  EXPECT_EQ(cache_->GetStatistics().packed_tails, Bytes(0));
  taker.GiveBack();
  EXPECT_EQ(Prompt(text).cached_tokens, 0u);
}

// A kernel of the sequence that ended still reads what is behind its last
// window, on pages of which the window leaves room.
TEST_F(KvCacheWindowShareTest, LateKernelsReadWhatIsBehindALastWindow) {
  Make(0);
  Tokens text = TokensFrom(0, 30);
  const SequenceId id = Prompt(text).sequence;
  Decode(id, &text, 144);
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  std::atomic<bool> right = false;
  const TokenRows rows(*cache_, id);
  const Fence late =
      device_.LaunchLate(stream_, std::chrono::milliseconds(2),
                         [&] { right = rows.FirstWrong(text, 143) == 144; });
  Release(cache_.get(), id, late);
  // Others begin, end, and are packed beside it meanwhile.
  for (int i = 1; i < 12; ++i) {
    const SequenceId other = *cache_->Admit(20, KvTokenLimit{.max_tokens = 0});
    WriteAndPublish(cache_.get(), other, TokensFrom(1000 * i, 20));
    Release(cache_.get(), other);
  }
  Taker taker(&device_, 100);
  ASSERT_TRUE(taker.Take(80).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  EXPECT_TRUE(right);
}

// A prompt is given copies of rows, on a stream that stands still, and the next
// step of who has them drops their pages.
TEST_F(KvCacheWindowShareTest, WhatIsBeingCopiedIsNotDroppedBefore) {
  for (const uint32_t steps_ahead : {0, 4}) {
    cache_.reset();
    Make(0, {}, steps_ahead);
    const Tokens text = TokensFrom(0, 100);
    const SequenceId holder = Prompt(text).sequence;
    BlockedStream blocked(device_.driver());
    const Tokens beginning = Concat(TokensFrom(0, 48), {7});
    const PromptAdmission admission =
        AdmitPrompt(cache_.get(), beginning, {.stream = blocked.stream()});
    EXPECT_EQ(admission.cached_tokens, 48u);
    // This batch has ended long since.
    cache_->EndBatch(Fence());
    const uint64_t before = device_.live_pages() + 2;
    ASSERT_TRUE(Step(cache_.get(), holder, 113).ok());
    ASSERT_TRUE(cache_->PrepareAhead(0).ok());
    // With page-ahead no step asks the driver: it is left to a later one.
    EXPECT_EQ(device_.cooling_pages(), steps_ahead == 0 ? 3u : 0u);
    blocked.Unblock();
    EXPECT_EQ(
        TokenRows(*cache_, admission.sequence).FirstWrong(TokensFrom(0, 48)),
        48u);
    ASSERT_TRUE(cache_->PrepareAhead(0).ok());
    cache_->EndBatch(Fence());
    ASSERT_TRUE(Step(cache_.get(), holder, 114).ok());
    ASSERT_TRUE(cache_->PrepareAhead(0).ok());
    device_.memory()->Harvest();
    EXPECT_EQ(device_.live_pages(), before - 4);
    EXPECT_EQ(device_.cooling_pages(), 0u);
    Release(cache_.get(), admission.sequence);
    Release(cache_.get(), holder);
  }
}

// The batch behind such a copy, on the same stream, reads more of the windows
// than the copy does, and later.
TEST_F(KvCacheWindowShareTest, WhatABatchBehindACopyReadsIsNotDroppedWithIt) {
  Make(0);
  const Tokens text = TokensFrom(0, 100);
  const SequenceId holder = Prompt(text).sequence;
  BlockedStream blocked(device_.driver());
  const PromptAdmission admission =
      AdmitPrompt(cache_.get(), Concat(TokensFrom(0, 48), {7}),
                  {.stream = blocked.stream()});
  ASSERT_EQ(admission.cached_tokens, 48u);
  std::atomic<bool> right = false;
  const TokenRows rows(*cache_, holder);
  const Fence batch = device_.LaunchLate(
      blocked.stream(), std::chrono::milliseconds(5),
      [&] { right = rows.FirstWrong(text, 60) == text.size(); });
  cache_->EndBatch(batch);
  ASSERT_TRUE(Step(cache_.get(), holder, 101).ok());
  std::thread unblocker([&] { blocked.Unblock(); });
  while (!*batch.IsComplete()) device_.memory()->Harvest();
  unblocker.join();
  EXPECT_TRUE(right);
  Release(cache_.get(), admission.sequence);
  Release(cache_.get(), holder);
}

// The region of a sequence that ended is taken again while its kernels run: the
// pages of its last window are the store's.
TEST_F(KvCacheWindowShareTest, ARegionTakenAgainLeavesTheLastWindowAlone) {
  Make(0);
  Tokens text = TokensFrom(0, 30);
  const SequenceId id = Prompt(text).sequence;
  Decode(id, &text, 144);
  EXPECT_TRUE(cache_->Publish(id, text).ok());
  const Fence late =
      device_.LaunchLate(stream_, std::chrono::milliseconds(2), [] {});
  Release(cache_.get(), id, late);
  for (int i = 0; i < 3; ++i) {
    const Tokens other = TokensFrom(5000 * (i + 1), 144);
    const SequenceId next = *cache_->Admit(144);
    TokenRows(*cache_, next).Write(other, 0);
    Release(cache_.get(), next, late);
  }
  // Its rows are checked.
  EXPECT_EQ(Prompt(Concat(text, {1, 2})).cached_tokens, 144u);
}

// Prompts with a beginning in common that no sequence ends with: the second
// shows where it ends, and leaves a window there for all that follow.
TEST_F(KvCacheWindowShareTest, WhereSequencesPartAWindowIsKept) {
  Make(0);
  const Tokens common = TokensFrom(0, 100);
  for (int i = 1; i <= 4; ++i) {
    Tokens text = Concat(common, TokensFrom(1000 * i, 20));
    const PromptAdmission admission = Prompt(text);
    EXPECT_EQ(admission.cached_tokens, i < 3 ? 0u : 96u);
    Decode(admission.sequence, &text, 200);
    EXPECT_TRUE(cache_->Publish(admission.sequence, text).ok());
    EXPECT_EQ(cache_->GetStatistics().branches_kept, i == 1 ? 0u : 1u);
    Release(cache_.get(), admission.sequence);
  }
}

// With page-ahead the window is kept while the device computes: the step that
// leaves it behind calls no driver, and neither does the one after it.
TEST_F(KvCacheWindowShareTest, NoStepWaitsForAWindowThatIsKept) {
  Make(0, {}, /*steps_ahead=*/4);
  const Tokens common = TokensFrom(0, 100);
  for (int i = 1; i <= 4; ++i) {
    Tokens text = Concat(common, TokensFrom(1000 * i, 20));
    const PromptAdmission admission = Prompt(text);
    EXPECT_EQ(admission.cached_tokens, i < 3 ? 0u : 96u);
    // The first step says how far ahead to map.
    Decode(admission.sequence, &text, 121);
    const uint64_t waited = cache_->GetStatistics().steps_waited;
    Decode(admission.sequence, &text, 200);
    EXPECT_EQ(cache_->GetStatistics().steps_waited, waited);
    EXPECT_TRUE(cache_->Publish(admission.sequence, text).ok());
    EXPECT_EQ(cache_->GetStatistics().branches_kept, i == 1 ? 0u : 1u);
    Release(cache_.get(), admission.sequence);
  }
}

// The step behind the place leaves the windows there, and the one after it
// does not, whether they were kept meanwhile or not.
TEST_F(KvCacheWindowShareTest, AWindowWaitsForOneStepToBeKept) {
  for (const bool in_time : {true, false}) {
    cache_.reset();
    Make(0, {}, /*steps_ahead=*/4);
    const Tokens common = TokensFrom(0, 100);
    MakeKnown(common);
    Tokens text = Concat(common, TokensFrom(2000, 60));
    const SequenceId id = Prompt(text).sequence;
    const Bytes before = cache_->GetStatistics().reclaimable;
    Decode(id, &text, 161, /*ahead=*/false);
    // Tokens 57 on are what the token behind the first 96 sees: three pages
    // are behind that.
    EXPECT_EQ(cache_->GetStatistics().reclaimable,
              SaturatingAdd(before, KiB(4 * 3)));
    if (in_time) {
      ASSERT_TRUE(cache_->PrepareAhead().ok());
    }
    Decode(id, &text, 162, /*ahead=*/false);
    // Tokens 121 on: seven pages.
    if (!in_time) {
      EXPECT_EQ(cache_->GetStatistics().reclaimable,
                SaturatingAdd(before, KiB(4 * 7)));
    }
    ASSERT_TRUE(cache_->PrepareAhead().ok());
    EXPECT_EQ(cache_->GetStatistics().branches_kept, in_time ? 1u : 0u);
    Release(cache_.get(), id);
    EXPECT_EQ(Prompt(Concat(common, {1, 2, 3})).cached_tokens,
              in_time ? 96u : 0u);
  }
}

// All memory is taken, and seven pages of it are held for a prefix to be.
TEST_F(KvCacheWindowShareTest, AWindowIsNotHeldFromAStepThatLacksPages) {
  Make(0, {}, /*steps_ahead=*/4);
  const Tokens common = TokensFrom(0, 50);
  MakeKnown(common);
  Tokens text = Concat(common, TokensFrom(2000, 110));
  const SequenceId id = Prompt(text).sequence;
  Taker taker(&device_, 100);
  ASSERT_TRUE(taker.Take(80).ok());
  ASSERT_EQ(cache_->GetStatistics().reclaimable, Bytes(0));
  Decode(id, &text, 161, /*ahead=*/false);  // two pages more
  ASSERT_TRUE(cache_->PrepareAhead().ok());
  EXPECT_EQ(cache_->GetStatistics().branches_kept, 0u);
  Release(cache_.get(), id);
}

// The prefix takes the three pages of tokens 9 to 47, of layers with the
// window, where they are free at once.
TEST_F(KvCacheWindowShareTest, WhereMemoryIsShortNoWindowIsKept) {
  for (const uint64_t left : {2, 3}) {
    cache_.reset();
    Make(0, {}, /*steps_ahead=*/4);
    const Tokens common = TokensFrom(0, 50);
    MakeKnown(common);
    Tokens text = Concat(common, TokensFrom(2000, 110));
    const SequenceId id = Prompt(text).sequence;
    {
      Taker taker(&device_, 100);
      ASSERT_TRUE(taker.Take(80 - left - 2).ok());
      Decode(id, &text, 161, /*ahead=*/false);
      ASSERT_TRUE(cache_->PrepareAhead(0).ok());
      EXPECT_EQ(cache_->GetStatistics().branches_kept, left - 2);
      Decode(id, &text, 200);
    }
    Release(cache_.get(), id);
  }
}

// A sequence comes to where it parts from another one, drops what is behind its
// window, and ends. What the driver refuses of that costs what would be kept
// for prompts at most.
TEST_F(KvCacheWindowShareTest, WhatTheDriverRefusesIsNotKept) {
  const Tokens common = TokensFrom(0, 100);
  const Tokens text = Concat(common, TokensFrom(2000, 60));
  for (const uint32_t steps_ahead : {0, 4}) {
    SequenceId id;
    FailEachDriverCall(
        device_.driver(), absl::StatusCode::kUnknown,
        [&] {
          cache_.reset();
          Make(20, {}, steps_ahead);
          MakeKnown(common);
          id = Prompt(text).sequence;
        },
        [&] {
          cache_->EndBatch(Fence());
          const SequenceStep step = {id, text.size() + 1};
          QUIRE_RETURN_IF_ERROR(cache_->Step(std::span(&step, 1)));
          QUIRE_RETURN_IF_ERROR(cache_->PrepareAhead().status());
          return cache_->Release(id, Fence());
        },
        [&](const absl::Status& status, bool) {
          if (!status.ok()) Release(cache_.get(), id);
          EXPECT_TRUE(cache_->CheckInvariants().ok())
              << cache_->CheckInvariants();
          EXPECT_TRUE(device_.memory()->CheckInvariants().ok())
              << device_.memory()->CheckInvariants();
          const PromptAdmission next =
              Prompt(Concat(common, TokensFrom(3000, 30)));
          EXPECT_TRUE(next.cached_tokens == 96 || next.cached_tokens == 32)
              << next.cached_tokens;
        });
  }
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
