#include "paging/awaited_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;
constexpr uint64_t kChunk = AwaitedPrompts::kChunkTokens;

// `chunks` chunks of the same token each.
Tokens Chunks(const std::vector<int32_t>& chunks, size_t more = 0) {
  Tokens tokens;
  for (const int32_t chunk : chunks) tokens.insert(tokens.end(), kChunk, chunk);
  tokens.insert(tokens.end(), more, -1);
  return tokens;
}

TEST(AwaitedPromptsTest, FindsTheLongestBeginningAndTheSoonestTurn) {
  AwaitedPrompts awaited;
  EXPECT_EQ(awaited.Find(Chunks({1, 2})).tokens, 0u);
  awaited.Add(7, Chunks({1, 2, 3}, 5));
  awaited.Add(9, Chunks({1, 2, 4}));
  awaited.Add(8, Chunks({1}));
  const auto at = [&](const Tokens& tokens) {
    const AwaitedPrompts::Found found = awaited.Find(tokens);
    return std::pair(found.tokens / kChunk, found.turn);
  };
  EXPECT_EQ(at(Chunks({1, 2, 3, 5})), std::pair(uint64_t{3}, uint64_t{7}));
  EXPECT_EQ(at(Chunks({1, 2, 4})), std::pair(uint64_t{3}, uint64_t{9}));
  EXPECT_EQ(at(Chunks({1, 2, 6})), std::pair(uint64_t{2}, uint64_t{7}));
  EXPECT_EQ(awaited.Find(Chunks({2, 1})).tokens, 0u);
  // A chunk that is not whole is none.
  EXPECT_EQ(awaited.Find(Tokens(kChunk - 1, 1)).tokens, 0u);

  awaited.Remove(7, Chunks({1, 2, 3}, 5));
  EXPECT_EQ(at(Chunks({1, 2, 3})), std::pair(uint64_t{2}, uint64_t{9}));
  EXPECT_EQ(at(Chunks({1, 5})), std::pair(uint64_t{1}, uint64_t{8}));
  EXPECT_EQ(awaited.prompts(), 2u);
}

TEST(AwaitedPromptsTest, AgreesWithAComparisonOfTokens) {
  std::mt19937 random(1);
  AwaitedPrompts awaited;
  std::map<uint64_t, Tokens> model;
  const auto draw = [&] {
    std::vector<int32_t> chunks(random() % 5);
    for (int32_t& chunk : chunks) chunk = static_cast<int32_t>(random() % 2);
    return Chunks(chunks, random() % kChunk);
  };
  for (uint64_t turn = 1; turn < 600; ++turn) {
    if (model.size() > 12 || (!model.empty() && random() % 3 == 0)) {
      const auto it = std::next(
          model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
      awaited.Remove(it->first, it->second);
      model.erase(it);
    } else {
      awaited.Add(turn, model[turn] = draw());
    }
    const Tokens tokens = draw();
    AwaitedPrompts::Found best;
    for (const auto& [waiting, prompt] : model) {
      const auto same =
          static_cast<uint64_t>(std::mismatch(prompt.begin(), prompt.end(),
                                              tokens.begin(), tokens.end())
                                    .first -
                                prompt.begin());
      const uint64_t whole = same / kChunk * kChunk;
      if (whole > best.tokens) best = {whole, waiting};
    }
    const AwaitedPrompts::Found found = awaited.Find(tokens);
    ASSERT_EQ(found.tokens, best.tokens) << turn;
    if (best.tokens > 0) {
      ASSERT_EQ(found.turn, best.turn) << turn;
    }
    ASSERT_EQ(awaited.prompts(), model.size());
  }
}

}  // namespace
}  // namespace quire
