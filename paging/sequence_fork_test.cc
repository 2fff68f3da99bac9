// Forks are the same on every cache, whatever of the rows it shares: what a
// sequence holds is compared with what was written for it, and nothing else.

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "paging/kv_cache_testing.h"
#include "paging/sequence_cache_testing.h"
#include "quire/paging/sequence_cache.h"

namespace quire {
namespace {

class SequenceForkTest : public ::testing::TestWithParam<CacheSetting> {
 protected:
  SequenceForkTest()
      : device_(1200), stream_(*device_.driver()->CreateStream(DeviceId(0))) {
    auto cache = MakeSequenceCache(GetParam(), device_.memory(), stream_);
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  ~SequenceForkTest() override {
    device_.driver()->ClearFaults();
    for (const auto& [id, tokens] : tokens_)
      EXPECT_TRUE(cache_->Release(id, Fence()).ok());
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  void Synchronize() {
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  }
  void ExpectSound() {
    const absl::Status status = cache_->CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
  }

  SequenceId Begin(const Tokens& tokens) {
    const auto id = cache_->Admit(tokens.size());
    EXPECT_TRUE(id.ok()) << id.status();
    TokenRows(*cache_, *id).Write(tokens, 0);
    tokens_[*id] = tokens;
    return *id;
  }
  SequenceId Fork(SequenceId parent) {
    const auto id = cache_->Fork(parent);
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) return SequenceId();
    EXPECT_EQ(*cache_->Length(*id), tokens_[parent].size());
    tokens_[*id] = tokens_[parent];
    ExpectSound();
    return *id;
  }
  // By steps of one token, as a model decodes.
  void Continue(SequenceId id, const Tokens& more) {
    for (const int32_t token : more) {
      Tokens& tokens = tokens_[id];
      tokens.push_back(token);
      const SequenceStep step = {id, tokens.size()};
      const absl::Status status = cache_->Step(std::span(&step, 1));
      ASSERT_TRUE(status.ok()) << status;
      Synchronize();
      TokenRows(*cache_, id).Write(tokens, tokens.size() - 1);
      cache_->EndBatch(Fence());
    }
    ExpectSound();
  }
  void Release(SequenceId id) {
    EXPECT_TRUE(cache_->Release(id, Fence()).ok());
    tokens_.erase(id);
  }
  // All sequences have what the next token sees.
  void ExpectRows() {
    Synchronize();
    for (const auto& [id, tokens] : tokens_)
      EXPECT_EQ(TokenRows(*cache_, id).FirstWrong(tokens, tokens.size()),
                tokens.size())
          << "sequence " << id.value();
  }

  TestDevice device_;
  const StreamId stream_;
  std::unique_ptr<SequenceCache> cache_;
  std::map<SequenceId, Tokens> tokens_;  // by sequence: what it should have
};

TEST_P(SequenceForkTest, EachGoesOnByItself) {
  for (const size_t length : {1, 31, 64, 77, 128}) {
    SCOPED_TRACE(length);
    const SequenceId parent = Begin(TokensFrom(0, length));
    const SequenceId first = Fork(parent);
    const SequenceId second = Fork(parent);
    ExpectRows();
    Continue(first, TokensFrom(1000, 40));
    Continue(parent, TokensFrom(2000, 3));
    const SequenceId of_fork = Fork(first);
    Continue(second, TokensFrom(3000, 40));
    Continue(of_fork, TokensFrom(4000, 20));
    ExpectRows();
    Release(parent);
    Continue(first, TokensFrom(5000, 10));
    ExpectRows();
    for (const SequenceId id : {second, first, of_fork}) Release(id);
  }
}

TEST_P(SequenceForkTest, AnEmptySequenceHasForksToo) {
  const SequenceId parent = Begin({});
  const SequenceId child = Fork(parent);
  Continue(child, TokensFrom(0, 20));
  Continue(parent, TokensFrom(100, 20));
  ExpectRows();
}

// The parent's rows are still being written when it is forked and ends, and
// another sequence takes its memory, all on one stream.
TEST_P(SequenceForkTest, TheStreamOrdersForksAfterWhatIsQueued) {
  const Tokens tokens = TokensFrom(0, 77);
  const SequenceId parent = Begin(TokensFrom(500, 77));
  const TokenRows rows(*cache_, parent);
  const Fence written =
      device_.LaunchLate(stream_, std::chrono::milliseconds(20),
                         [&rows, &tokens] { rows.Write(tokens, 0); });
  const SequenceId child = Fork(parent);
  tokens_[child] = tokens;
  EXPECT_TRUE(cache_->Release(parent, written).ok());
  tokens_.erase(parent);
  const Tokens others = TokensFrom(900, 77);
  const auto other = cache_->Admit(others.size());
  ASSERT_TRUE(other.ok()) << other.status();
  const TokenRows other_rows(*cache_, *other);
  device_.LaunchLate(stream_, std::chrono::microseconds(0),
                     [&other_rows, &others] { other_rows.Write(others, 0); });
  tokens_[*other] = others;
  ExpectRows();
}

TEST_P(SequenceForkTest, WhatIsRefusedChangesNothing) {
  const SequenceId parent = Begin(TokensFrom(0, 77));
  const SequenceId gone = Begin({});
  Release(gone);
  EXPECT_EQ(cache_->Fork(gone).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Fork(SequenceId()).status().code(),
            absl::StatusCode::kNotFound);
  for (uint32_t i = 1; i < kCacheSequences; ++i) Fork(parent);
  const CacheUse use = cache_->Use();
  EXPECT_EQ(cache_->Fork(parent).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->Use().needed, use.needed);
  ExpectSound();
  ExpectRows();
}

// Of block tables it is the step that copies.
TEST_P(SequenceForkTest, ACopyThatTheDriverRefusesChangesNothing) {
  if (GetParam().kind == CacheKind::kBlocks)
    GTEST_SKIP() << "a fork copies nothing";
  const SequenceId parent = Begin(TokensFrom(0, 77));
  const CacheUse use = cache_->Use();
  device_.driver()->FailCall(DriverCall::kCopyOnDevice, 1,
                             absl::StatusCode::kInternal);
  EXPECT_FALSE(cache_->Fork(parent).ok());
  device_.driver()->ClearFaults();
  EXPECT_EQ(cache_->Use().needed, use.needed);
  ExpectSound();
  ExpectRows();
  Continue(Fork(parent), TokensFrom(100, 5));
  ExpectRows();
}

// A cache that goes while forks are being copied waits for the copies.
TEST_P(SequenceForkTest, ACacheEndsBehindItsCopies) {
  const Tokens tokens = TokensFrom(0, 77);
  const SequenceId parent = Begin(tokens);
  device_.LaunchLate(stream_, std::chrono::milliseconds(20), [] {});
  Fork(parent);
  tokens_.clear();
  cache_.reset();
  Synchronize();
}

TEST_P(SequenceForkTest, WithoutAStreamThereIsNone) {
  if (GetParam().kind == CacheKind::kBlocks)
    GTEST_SKIP() << "there is always one";
  const auto cache =
      *MakeSequenceCache(GetParam(), device_.memory(), StreamId());
  const SequenceId parent = *cache->Admit(3);
  const absl::Status status = cache->Fork(parent).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(cache->Release(parent, Fence()).ok());
}

// Random lives against what was written.
TEST_P(SequenceForkTest, RandomFamiliesKeepTheirRows) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    int32_t next = 0;
    for (int i = 0; i < 60; ++i) {
      if (tokens_.empty()) Begin(TokensFrom(0, below(100)));
      auto it = tokens_.begin();
      std::advance(it, below(tokens_.size()));
      const auto [id, tokens] = *it;
      const uint64_t what = below(10);
      if (what < 3 && tokens_.size() < kCacheSequences) {
        Fork(id);
      } else if (what < 4) {
        Release(id);
      } else if (tokens.size() + 10 < kCacheTokens) {
        next += 1000;
        ASSERT_NO_FATAL_FAILURE(Continue(id, TokensFrom(next, 1 + below(10))));
      }
      if (below(4) == 0) ExpectRows();
    }
    ExpectRows();
    while (!tokens_.empty()) Release(tokens_.begin()->first);
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, SequenceForkTest,
                         ::testing::ValuesIn(CacheSettings()),
                         [](const auto& setting) {
                           return setting.param.name;
                         });

}  // namespace
}  // namespace quire
