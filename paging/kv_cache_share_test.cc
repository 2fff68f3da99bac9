// Sharing of prefixes and forks, case by case. A page of 4 KiB has 32 tokens of
// one layer, or 6.4 tokens of all five.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "paging/kv_cache_share_testing.h"

namespace quire {
namespace {

class KvCacheShareTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  explicit KvCacheShareTest(uint64_t pages = 400) : device_(pages) {
    KvCacheOptions options = CacheOptions(320);
    options.prefix_block_tokens = 4;
    cache_ = MakeCache(&device_, GetParam(), options);
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
  }
  ~KvCacheShareTest() override {
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  // A sequence of these tokens, published.
  SequenceId Published(const Tokens& tokens) {
    const PromptAdmission admission = Prompt(tokens);
    WriteAndPublish(cache_.get(), admission.sequence, tokens,
                    admission.cached_tokens);
    return admission.sequence;
  }
  PromptAdmission Prompt(const Tokens& tokens) {
    return AdmitPrompt(cache_.get(), tokens, {.stream = stream_});
  }
  void Synchronize() {
    EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  }
  // Whether the sequence has the rows of these tokens.
  bool Has(SequenceId sequence, const Tokens& tokens) {
    Synchronize();
    return TokenRows(*cache_, sequence).FirstWrong(tokens) == tokens.size();
  }
  uint64_t live() const { return device_.live_pages(); }
  // Whole pages that rows of `tokens` tokens fill, and pages that they touch.
  static uint64_t Pages(uint64_t tokens, bool whole) {
    uint64_t pages = 0;
    for (uint32_t layer = 0; layer < 5; layer += GetParam()) {
      const uint64_t bytes =
          tokens * 128 * std::min<uint64_t>(GetParam(), 5 - layer);
      pages += (bytes + (whole ? 0 : 4095)) / 4096;
    }
    return pages;
  }

  TestDevice device_;
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
};

TEST_P(KvCacheShareTest, APromptGetsThePagesOfARunningSequence) {
  const Tokens system = TokensFrom(0, 100);
  const SequenceId a = Published(Concat(system, TokensFrom(1000, 30)));
  const uint64_t before = live();
  const Tokens prompt = Concat(system, TokensFrom(2000, 50));
  const PromptAdmission b = Prompt(prompt);
  EXPECT_EQ(b.cached_tokens, 100u);
  EXPECT_TRUE(Has(b.sequence, system));
  EXPECT_EQ(live() - before, Pages(150, false) - Pages(100, true));
  const KvCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_EQ(statistics.shared, Bytes(Pages(100, true) * 4096));
  EXPECT_EQ(statistics.prefix_hits, 1u);
  EXPECT_EQ(statistics.prefix_tokens, 100u);
  EXPECT_EQ(statistics.prompt_tokens, 280u);
  // Both go on by themselves.
  WriteAndPublish(cache_.get(), b.sequence, prompt, 100);
  EXPECT_TRUE(Has(a, Concat(system, TokensFrom(1000, 30))));
  Release(cache_.get(), a);
  EXPECT_TRUE(Has(b.sequence, prompt));
  EXPECT_EQ(*cache_->FreedByRelease(b.sequence),
            Bytes(Pages(150, false) * 4096));
}

TEST_P(KvCacheShareTest, AConversationGoesOnInItsOwnPagesWithoutADriverCall) {
  Tokens tokens = TokensFrom(0, 60);
  const SequenceId first = Published(tokens);
  const DeviceAddress base = Base(*cache_, first);
  Release(cache_.get(), first);
  EXPECT_EQ(cache_->GetStatistics().cached_prefixes,
            Bytes(Pages(60, false) * 4096));
  tokens = Concat(tokens, TokensFrom(500, 3));
  const uint64_t calls = device_.mapping_calls();
  const PromptAdmission next = Prompt(tokens);
  EXPECT_EQ(next.cached_tokens, 60u);
  EXPECT_EQ(Base(*cache_, next.sequence), base);
  EXPECT_EQ(device_.mapping_calls() - calls,
            Pages(63, false) == Pages(60, false)
                ? 0
                : 2 * (Pages(63, false) - Pages(60, false)));
  EXPECT_TRUE(Has(next.sequence, TokensFrom(0, 60)));
  EXPECT_EQ(cache_->GetStatistics().cached_prefixes, Bytes(0));
}

TEST_P(KvCacheShareTest, AQuestionToAKnownDocumentLeavesTheLastAnswerThere) {
  const Tokens document = TokensFrom(0, 128);
  const Tokens with_answer = Concat(document, TokensFrom(700, 40));
  Release(cache_.get(), Published(with_answer));
  const PromptAdmission b = Prompt(Concat(document, TokensFrom(800, 8)));
  EXPECT_EQ(b.cached_tokens, 128u);
  EXPECT_TRUE(Has(b.sequence, document));
  const PromptAdmission again = Prompt(Concat(with_answer, {1}));
  EXPECT_EQ(again.cached_tokens, 168u);
  EXPECT_TRUE(Has(again.sequence, with_answer));
}

TEST_P(KvCacheShareTest, TheLastTokenIsNeverCached) {
  const Tokens tokens = TokensFrom(0, 64);
  Release(cache_.get(), Published(tokens));
  EXPECT_EQ(Prompt(tokens).cached_tokens, 60u);
  EXPECT_EQ(Prompt({}).cached_tokens, 0u);
}

TEST_P(KvCacheShareTest, WithoutAStreamWholePagesAreSharedOnly) {
  const Tokens tokens = TokensFrom(0, 200);
  const SequenceId a = Published(tokens);
  const uint64_t copies =
      device_.driver()->GetCallStatistics().CountOf("CopyOnDevice");
  const PromptAdmission b = AdmitPrompt(cache_.get(), Concat(tokens, {1}), {});
  // Rows of 128, 256, 384 and 640 bytes: 32 tokens fill pages in all.
  EXPECT_EQ(b.cached_tokens, 192u);
  EXPECT_EQ(device_.driver()->GetCallStatistics().CountOf("CopyOnDevice"),
            copies);
  EXPECT_TRUE(Has(b.sequence, TokensFrom(0, 192)));
  Release(cache_.get(), a);
}

TEST_P(KvCacheShareTest, UnusedPrefixesGoLeastRecentlyUsedFirst) {
  // Three conversations that fill most of the memory, released in the order 1,
  // 0, 2; the second is worth more, for a while.
  std::vector<Tokens> tokens;
  std::vector<SequenceId> sequences;
  for (int32_t i = 0; i < 3; ++i) {
    tokens.push_back(TokensFrom(1000 * i, 300));
    const auto admission = cache_->AdmitPrompt(
        tokens.back(), {stream_, i == 1 ? 1 : 0, /*retain_until=*/50});
    ASSERT_TRUE(admission.ok());
    WriteAndPublish(cache_.get(), admission->sequence, tokens.back());
    sequences.push_back(admission->sequence);
  }
  for (const size_t i : {1, 0, 2}) Release(cache_.get(), sequences[i]);
  AddressRange* const other =
      *device_.memory()->ReserveRange(PageCount(400), kUnnamedOwner);
  const auto take = [&](uint64_t pages) {
    ASSERT_TRUE(
        device_.memory()->Commit(other, PageCount(0), PageCount(pages)).ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    ASSERT_TRUE(device_.memory()
                    ->Decommit(other, PageCount(0), PageCount(pages), Fence())
                    .ok());
  };
  const auto cached = [&](size_t i) {
    const PromptAdmission admission = Prompt(Concat(tokens[i], {-1}));
    Synchronize();
    const uint64_t count = admission.cached_tokens;
    EXPECT_TRUE(Has(admission.sequence,
                    Tokens(tokens[i].begin(), tokens[i].begin() + count)));
    Release(cache_.get(), admission.sequence);
    return count;
  };
  const uint64_t each = Pages(300, false);
  take(400 - 3 * each + each / 2);  // half of the first conversation
  EXPECT_LT(cached(0), 300u);
  EXPECT_GE(cached(0), 100u);  // used last now
  EXPECT_EQ(cached(1), 300u);
  EXPECT_EQ(cached(2), 300u);
  cache_->AdvanceClock(50);
  take(400 - each);  // one is left: 2, as the priority of 1 has ended
  EXPECT_EQ(cached(2), 300u);
  EXPECT_EQ(cached(1), 0u);
  EXPECT_EQ(cached(0), 0u);
  device_.memory()->ReleaseRange(other, Fence());
  EXPECT_GT(cache_->GetStatistics().prefixes_evicted, 0u);
}

// Of three conversations the oldest is to be continued, as far as its first 160
// tokens: it outlives the others, without its end.
TEST_P(KvCacheShareTest, WhatAPromptWaitsForIsGivenUpLast) {
  std::vector<Tokens> tokens;
  for (int32_t i = 0; i < 3; ++i) {
    tokens.push_back(TokensFrom(1000 * i, 300));
    Release(cache_.get(), Published(tokens.back()));
  }
  const Tokens expected(tokens[0].begin(), tokens[0].begin() + 160);
  cache_->ExpectPrompt(Concat(expected, TokensFrom(-50, 50)), 7);
  cache_->ExpectPrompt(TokensFrom(-9, 9), 3);  // nobody has any of it
  // All but what the expected tokens need, and a little for the prompts below.
  const PageCount taken(400 - Pages(160, false) - 8);
  AddressRange* const other =
      *device_.memory()->ReserveRange(taken, kUnnamedOwner);
  ASSERT_TRUE(device_.memory()->Commit(other, PageCount(0), taken).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  const auto cached = [&](size_t i) {
    Tokens prompt(tokens[i].begin(), tokens[i].begin() + 160);
    prompt.push_back(-1);
    const PromptAdmission admission = Prompt(prompt);
    prompt.resize(admission.cached_tokens);
    EXPECT_TRUE(Has(admission.sequence, prompt));
    Release(cache_.get(), admission.sequence);
    return admission.cached_tokens;
  };
  EXPECT_EQ(cached(0), 160u);
  EXPECT_LT(cached(1), 100u);
  EXPECT_LT(cached(2), 100u);
  device_.memory()->ReleaseRange(other, Fence());
}

// What was waited for has had its turn: then it goes in its order.
TEST_P(KvCacheShareTest, WhatWasWaitedForGoesWhenItsTurnIsOver) {
  const Tokens first = TokensFrom(0, 160);
  const Tokens second = TokensFrom(1000, 160);
  Release(cache_.get(), Published(first));
  Release(cache_.get(), Published(second));
  cache_->ExpectPrompt(first, 7);
  cache_->AdvanceTurn(8);
  const PageCount taken(400 - Pages(160, false) - 8);
  AddressRange* const other =
      *device_.memory()->ReserveRange(taken, kUnnamedOwner);
  ASSERT_TRUE(device_.memory()->Commit(other, PageCount(0), taken).ok());
  EXPECT_EQ(Prompt(Concat(second, {-1})).cached_tokens, 160u);
  device_.memory()->ReleaseRange(other, Fence());
}

TEST_P(KvCacheShareTest, AShortSequenceLeavesTheBeginningOfALongPrefix) {
  const Tokens text = TokensFrom(0, 300);
  Release(cache_.get(), Published(text));
  AddressRange* const other =
      *device_.memory()->ReserveRange(PageCount(400), kUnnamedOwner);
  ASSERT_TRUE(
      device_.memory()
          ->Commit(other, PageCount(0), PageCount(400 - Pages(300, false)))
          .ok());
  Admit(cache_.get(), 20);
  EXPECT_EQ(live(), 400u);
  const uint64_t left = Pages(300, false) - Pages(20, false);
  EXPECT_EQ(cache_->GetStatistics().cached_prefixes, KiB(4 * left));
  device_.memory()->ReleaseRange(other, Fence());
  // Nine pages of 32 tokens a group; the shortest of three parts, 17 pages of
  // 16; 43 pages of 6.4, in whole blocks.
  const std::map<uint32_t, uint64_t> known = {{1, 288}, {2, 272}, {5, 272}};
  const PromptAdmission again = Prompt(text);
  EXPECT_EQ(again.cached_tokens, known.at(GetParam()));
  EXPECT_TRUE(Has(again.sequence, TokensFrom(0, again.cached_tokens)));
}

TEST_P(KvCacheShareTest, ThePagesOfARunningSequenceAreNotTakenWithAPrefix) {
  const Tokens system = TokensFrom(0, 160);
  const SequenceId a = Published(Concat(system, TokensFrom(500, 100)));
  const PromptAdmission b = Prompt(Concat(system, {1}));
  Release(cache_.get(), a);
  // Only what b does not have of a can be had.
  const uint64_t needed = Pages(161, false);
  EXPECT_EQ(cache_->GetStatistics().reclaimable.value() / 4096,
            Pages(260, false) - Pages(160, true));
  AddressRange* const other =
      *device_.memory()->ReserveRange(PageCount(400), kUnnamedOwner);
  EXPECT_TRUE(device_.memory()
                  ->Commit(other, PageCount(0), PageCount(400 - needed))
                  .ok());
  EXPECT_TRUE(Has(b.sequence, system));
  EXPECT_EQ(live(), 400u);
  // a still knows what it shares with b.
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  device_.memory()->ReleaseRange(other, Fence());
}

// ---- Forks ------------------------------------------------------------------

TEST_P(KvCacheShareTest, AForkHasTheRowsAndWritesItsOwn) {
  const Tokens tokens = TokensFrom(0, 77);
  const SequenceId parent = Published(tokens);
  const uint64_t before = live();
  std::vector<SequenceId> beams;
  for (int i = 0; i < 3; ++i) {
    const auto beam = cache_->Fork(parent, stream_);
    ASSERT_TRUE(beam.ok()) << beam.status();
    beams.push_back(*beam);
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }
  EXPECT_EQ(live() - before, 3 * (Pages(77, false) - Pages(77, true)));
  Synchronize();
  for (int32_t i = 0; i < 3; ++i) {
    const Tokens longer = Concat(tokens, TokensFrom(100 * i, 40));
    ASSERT_TRUE(Step(cache_.get(), beams[i], 117).ok());
    TokenRows(*cache_, beams[i]).Write(longer, 77);
  }
  EXPECT_TRUE(Has(parent, tokens));
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(Has(beams[i], Concat(tokens, TokensFrom(100 * i, 40))));
    EXPECT_EQ(*cache_->Length(beams[i]), 117u);
  }
  EXPECT_EQ(cache_->GetStatistics().forks, 3u);
  Release(cache_.get(), parent);
  Release(cache_.get(), beams[0]);
  EXPECT_TRUE(Has(beams[1], Concat(tokens, TokensFrom(100, 40))));
  // What a fork has of its parent serves prompts as well.
  EXPECT_EQ(Prompt(Concat(tokens, {1})).cached_tokens, 76u);
}

TEST_P(KvCacheShareTest, AForkOfWhatWasNotPublishedLeavesNoPrefix) {
  const Tokens tokens = TokensFrom(0, 150);
  const SequenceId parent = Prompt(tokens).sequence;
  TokenRows(*cache_, parent).Write(tokens, 0);
  const SequenceId child = *cache_->Fork(parent, stream_);
  EXPECT_TRUE(Has(child, tokens));
  Release(cache_.get(), parent);
  EXPECT_TRUE(Has(child, tokens));
  Release(cache_.get(), child);
  EXPECT_EQ(cache_->GetStatistics().cached_prefixes, Bytes(0));
  EXPECT_EQ(cache_->GetStatistics().shared, Bytes(0));
  EXPECT_EQ(Prompt(tokens).cached_tokens, 0u);
}

TEST_P(KvCacheShareTest, RowsWrittenAgainGetPagesOfTheirOwn) {
  const Tokens tokens = TokensFrom(0, 150);
  const SequenceId parent = Published(tokens);
  const SequenceId child = *cache_->Fork(parent, stream_);
  Synchronize();
  ASSERT_TRUE(cache_->Shrink(child, 50, Fence()).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  ASSERT_TRUE(Step(cache_.get(), child, 90).ok());
  const Tokens other =
      Concat(Tokens(tokens.begin(), tokens.begin() + 50), TokensFrom(900, 40));
  EXPECT_TRUE(Has(child, Tokens(tokens.begin(), tokens.begin() + 50)));
  TokenRows(*cache_, child).Write(other, 50);
  EXPECT_TRUE(Has(child, other));
  EXPECT_TRUE(Has(parent, tokens));
  EXPECT_GT(cache_->GetStatistics().pages_unshared, 0u);
  // The same for the one that is shared from.
  const SequenceId second = *cache_->Fork(parent, stream_);
  Synchronize();
  ASSERT_TRUE(cache_->Shrink(parent, 20, Fence()).ok());
  ASSERT_TRUE(Step(cache_.get(), parent, 60).ok());
  TokenRows(*cache_, parent)
      .Write(Concat(Tokens(tokens.begin(), tokens.begin() + 20),
                    TokensFrom(40, 40)),
             20);
  EXPECT_TRUE(Has(second, tokens));
  EXPECT_TRUE(Has(child, other));
}

TEST_P(KvCacheShareTest, GoingBackWithoutAShrinkIsRefusedWhereRowsAreShared) {
  const SequenceId parent = Published(TokensFrom(0, 150));
  const SequenceId child = *cache_->Fork(parent, stream_);
  ASSERT_TRUE(Step(cache_.get(), child, 10).ok());
  EXPECT_EQ(Step(cache_.get(), child, 11).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(cache_->Shrink(child, 10, Fence()).ok());
  EXPECT_TRUE(Step(cache_.get(), child, 11).ok());
}

// ---- Retirement -------------------------------------------------------------

TEST_P(KvCacheShareTest, RowsAreNotTakenWhileAPromptCopiesThem) {
  const Tokens tokens = TokensFrom(0, 75);
  const SequenceId a = Published(tokens);
  BlockedStream blocked(device_.driver());
  const auto b =
      cache_->AdmitPrompt(Concat(tokens, {1}), {.stream = blocked.stream()});
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->cached_tokens, 72u);
  // Not even where the holder's own fence is complete: the copy is waited for,
  // or covered where it is on the same stream.
  ASSERT_TRUE(cache_->Release(a, blocked.Record()).ok());
  AddressRange* const other =
      *device_.memory()->ReserveRange(PageCount(400), kUnnamedOwner);
  EXPECT_FALSE(
      device_.memory()
          ->TryCommit(other, PageCount(0), PageCount(400 - Pages(76, false)))
          .ok());
  blocked.Unblock();
  EXPECT_TRUE(
      device_.memory()
          ->Commit(other, PageCount(0), PageCount(400 - Pages(76, false)))
          .ok());
  EXPECT_TRUE(Has(b->sequence, TokensFrom(0, 72)));
  device_.memory()->ReleaseRange(other, Fence());
}

// ---- Public reports ---------------------------------------------------------

// vAttention gives the pages of a common prefix back once per request that
// shares them.
TEST_P(KvCacheShareTest, VAttentionCommonPagesGoBackOnce) {
  const Tokens system = TokensFrom(0, 128);
  std::vector<SequenceId> sequences = {Published(system)};
  for (int32_t i = 0; i < 5; ++i)
    sequences.push_back(Published(Concat(system, TokensFrom(100 * i, 4))));
  EXPECT_LT(live(), 2 * Pages(132, false) + 5 * Pages(4, false) + 25);
  for (const SequenceId sequence : sequences) Release(cache_.get(), sequence);
  const uint64_t held = live();
  EXPECT_EQ(cache_->GetStatistics().reclaimable, Bytes(held * 4096));
  EXPECT_EQ(device_.memory()->Trim().pages_freed, PageCount(held));
  EXPECT_EQ(live(), 0u);
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
}

// kvcached: a block that is larger than a page must be shared, or refused, and
// not hang.
TEST(KvCacheShareIssueTest, Kvcached367RowsLargerThanAPageAreShared) {
  TestDevice device(4096, KiB(4), MiB(256));
  KvCacheOptions options = CacheOptions(64);
  options.prefix_block_tokens = 1;
  const KvShape shape = {5, 2, 1024, KvDType::kF32};  // rows of 80 KiB
  const auto cache = MakeCache(&device, *KvLayout::Create(shape, 5), options);
  const SequenceId a = Admit(cache.get(), 20);
  ASSERT_TRUE(cache->Publish(a, TokensFrom(0, 20)).ok());
  const PromptAdmission b = AdmitPrompt(cache.get(), TokensFrom(0, 20), {});
  EXPECT_EQ(b.cached_tokens, 19u);
  EXPECT_EQ(cache->GetStatistics().shared, KiB(19 * 80));
}

INSTANTIATE_TEST_SUITE_P(LayersPerRow, KvCacheShareTest,
                         ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace quire
