// Prompts that are computed in steps, of layers with windows: admitted for what
// they hold at their peak, in the contiguous cache and in block tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "paging/block_table_testing.h"
#include "paging/kv_cache_share_testing.h"
#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr uint64_t kWindow = 40;
constexpr uint64_t kStep = 32;

// Pages of the layers with windows and of the others, 16 tokens a page, for a
// prompt of 320 tokens: 20, and at most 6 for a step of 32 behind a window of
// 40, wherever they begin.
constexpr uint64_t kFullPages = 20;
constexpr uint64_t kWindowPages = 6;

KvCacheOptions WindowOptions() {
  KvCacheOptions options = CacheOptions(640);
  options.eager_reclaim = true;
  options.prefix_block_tokens = 8;
  return options;
}

// Computes the prompt step by step, and looks at what each step sees.
void Compute(KvCache* cache, SequenceId id, const Tokens& prompt,
             uint64_t computed) {
  while (computed < prompt.size()) {
    const uint64_t end = std::min(prompt.size(), computed + kStep);
    cache->EndBatch(Fence());
    ASSERT_TRUE(Step(cache, id, end).ok());
    const TokenRows rows(*cache, id);
    Tokens before(prompt.begin(),
                  prompt.begin() + static_cast<std::ptrdiff_t>(computed));
    ASSERT_EQ(rows.FirstWrong(before, computed + 1), computed);
    rows.Write(Tokens(prompt.begin(),
                      prompt.begin() + static_cast<std::ptrdiff_t>(end)),
               computed);
    computed = end;
  }
}

TEST(PromptStepsTest, TheContiguousCacheHoldsThePeakAndNoMore) {
  TestDevice device(kFullPages + kWindowPages);
  const auto cache =
      MakeCache(&device, WindowTestLayout(kWindow, 0), WindowOptions());
  EXPECT_FALSE(cache->KeepsAllTokens());
  const Tokens prompt = TokensFrom(0, 320);
  EXPECT_TRUE(absl::IsResourceExhausted(cache->AdmitPrompt(prompt).status()));
  const auto admission = cache->AdmitPromptInSteps(prompt, kStep);
  ASSERT_TRUE(admission.ok()) << admission.status();
  EXPECT_EQ(*cache->Length(admission->sequence), kStep);
  Compute(cache.get(), admission->sequence, prompt, 0);
  Release(cache.get(), admission->sequence);
  // What cannot be held is refused before it begins.
  Taker taker(&device, 2);
  ASSERT_TRUE(taker.Take(1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      cache->AdmitPromptInSteps(prompt, kStep).status()));
  EXPECT_TRUE(cache->AdmitPromptInSteps(prompt, kStep / 2).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

TEST(PromptStepsTest, ThereIsRoomForWhatGrowthsTakeMore) {
  TestDevice device(2 * (kFullPages + kWindowPages));
  const auto cache =
      MakeCache(&device, WindowTestLayout(kWindow, 0), WindowOptions());
  const SequenceGrowth fresh = {.tokens = 320, .step_tokens = kStep};
  EXPECT_TRUE(cache->HasRoomFor(std::vector(2, fresh)));
  EXPECT_FALSE(cache->HasRoomFor(std::vector(3, fresh)));
  const SequenceId id =
      cache->AdmitPromptInSteps(TokensFrom(0, 320), kStep)->sequence;
  // Two pages of either group are there.
  const SequenceGrowth begun = {
      .backed = kStep, .tokens = 320, .step_tokens = kStep};
  EXPECT_TRUE(cache->HasRoomFor(std::vector({begun, fresh})));
  EXPECT_FALSE(cache->HasRoomFor(std::vector({fresh, fresh})));
  Compute(cache.get(), id, TokensFrom(0, 320), 0);
  EXPECT_TRUE(cache->HasRoomFor(std::vector({fresh})));
  Release(cache.get(), id);
}

// The first kernels are queued after the batch that was under way has ended:
// what they are to write is not dropped.
TEST(PromptStepsTest, AnAdmissionBeforeABatchEndsDropsNothing) {
  TestDevice device(64);
  const auto cache =
      MakeCache(&device, WindowTestLayout(kWindow, 0), WindowOptions());
  const Tokens prompt = TokensFrom(0, 200);
  const SequenceId whole = cache->AdmitPrompt(prompt)->sequence;
  cache->EndBatch(Fence());
  ASSERT_TRUE(Step(cache.get(), whole, 200).ok());
  EXPECT_EQ(device.live_pages(), 26u);
  TokenRows(*cache, whole).Write(prompt, 0);
  EXPECT_EQ(TokenRows(*cache, whole).FirstWrong(prompt), 200u);
  Release(cache.get(), whole);
}

TEST(PromptStepsTest, BehindACachedPrefixTheFirstStepIsBacked) {
  TestDevice device(64);
  KvCacheOptions options = WindowOptions();
  options.stream = *device.driver()->CreateStream(DeviceId(0));
  auto cache = MakeCache(&device, WindowTestLayout(kWindow, 0), options);
  Tokens prompt = TokensFrom(0, 100);
  const SequenceId first = cache->AdmitPrompt(prompt)->sequence;
  WriteAndPublish(cache.get(), first, prompt);
  prompt = Concat(prompt, TokensFrom(500, 220));
  const auto second = cache->AdmitPromptInSteps(prompt, kStep);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->cached_tokens, 96u);
  EXPECT_EQ(*cache->Length(second->sequence), 96 + kStep);
  ASSERT_TRUE(device.driver()->SynchronizeStream(options.stream).ok());
  Compute(cache.get(), second->sequence, prompt, 96);
  Release(cache.get(), first);
  Release(cache.get(), second->sequence);
  cache.reset();
  EXPECT_TRUE(device.driver()->DestroyStream(options.stream).ok());
}

// The next chunk is mapped while the last one is computed.
TEST(PromptStepsTest, PageAheadMapsTheNextChunk) {
  TestDevice device(64);
  KvCacheOptions options = WindowOptions();
  options.page_ahead.max_steps = 4;
  const auto cache = MakeCache(&device, WindowTestLayout(kWindow, 0), options);
  const Tokens prompt = TokensFrom(0, 320);
  const SequenceId id = cache->AdmitPromptInSteps(prompt, kStep)->sequence;
  ASSERT_TRUE(Step(cache.get(), id, kStep).ok());
  for (uint64_t end = 2 * kStep; end <= 320; end += kStep) {
    ASSERT_TRUE(cache->PrepareAhead(1).ok());
    cache->EndBatch(Fence());
    ASSERT_TRUE(Step(cache.get(), id, end).ok());
  }
  EXPECT_EQ(cache->GetStatistics().steps_waited, 0u);
  // At its end it has no more to map than any sequence.
  EXPECT_EQ(*cache->PrepareAhead(1), PageCount(2));
  EXPECT_EQ(*cache->PrepareAhead(1), PageCount(0));
  Release(cache.get(), id);
}

class BlockTableStepsTest : public BlockTableFixture {
 protected:
  // Blocks of 4 tokens; 80 for all tokens of the prompt, and at most 19 for a
  // step behind a window.
  BlockTableStepsTest() : BlockTableFixture(64, 80 + 19, 640) {}
};

TEST_F(BlockTableStepsTest, BlockTablesHoldThePeakAndNoMore) {
  Make(WindowTestLayout(kWindow, 0));
  EXPECT_FALSE(cache_->KeepsAllTokens());
  const Tokens prompt = TokensFrom(0, 320);
  EXPECT_TRUE(absl::IsResourceExhausted(cache_->AdmitPrompt(prompt).status()));
  const auto admission = cache_->AdmitPromptInSteps(prompt, kStep);
  ASSERT_TRUE(admission.ok()) << admission.status();
  const SequenceGrowth begun = {
      .backed = kStep, .tokens = 320, .step_tokens = kStep};
  EXPECT_TRUE(cache_->HasRoomFor(std::vector({begun})));
  EXPECT_FALSE(cache_->HasRoomFor(std::vector({begun, begun})));
  for (uint64_t end = kStep; end <= 320; end += kStep) {
    cache_->EndBatch(Fence());
    const SequenceStep step = {admission->sequence, end};
    ASSERT_TRUE(Step(std::span(&step, 1)).ok());
    // What the step writes, and what its first token sees, has blocks.
    const uint32_t* const table =
        cache_->View(admission->sequence, 0)->block_table;
    const uint64_t first = end - kStep + 1;
    for (uint64_t token = first > kWindow ? first - kWindow : 0; token < end;
         ++token)
      ASSERT_NE(table[token / 4], UINT32_MAX) << token;
  }
  ASSERT_TRUE(cache_->Release(admission->sequence, Fence()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      cache_->AdmitPromptInSteps(TokensFrom(0, 324), kStep).status()));
}

}  // namespace
}  // namespace quire
