// Limits of single sequences are the same on every cache: what a layer sees
// under them, who else may see it, and that the rest is free for others.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "paging/kv_cache_testing.h"
#include "paging/sequence_cache_testing.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/scheduler.h"
#include "quire/paging/sequence_cache.h"

namespace quire {
namespace {

constexpr KvTokenLimit kLimit = {.max_tokens = 24, .sinks = 4};

class SequenceOptionsTest : public ::testing::TestWithParam<CacheSetting> {
 protected:
  SequenceOptionsTest()
      : device_(1200), stream_(*device_.driver()->CreateStream(DeviceId(0))) {
    Make({});
  }
  ~SequenceOptionsTest() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  void Make(const KvTokenLimit& limit) {
    cache_.reset();
    auto cache =
        MakeSequenceCache(GetParam(), device_.memory(), stream_, limit);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  // As a model decodes: by steps of one token, each a batch.
  void Continue(SequenceId id, Tokens* tokens, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      tokens->push_back(static_cast<int32_t>(i));
      const SequenceStep step = {id, tokens->size()};
      const absl::Status status = cache_->Step(std::span(&step, 1));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
      TokenRows(*cache_, id).Write(*tokens, tokens->size() - 1);
      cache_->EndBatch(Fence());
    }
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }
  void ExpectRows(SequenceId id, const Tokens& tokens) {
    EXPECT_EQ(TokenRows(*cache_, id).FirstWrong(tokens, tokens.size()),
              tokens.size());
  }
  // By layer: what the sequence keeps of it is what the kind keeps under the
  // limit.
  void ExpectKept(SequenceId id, const KvTokenLimit& limit) {
    const KvLayout& layout = cache_->layout();
    for (uint32_t layer = 0; layer < layout.layers(); ++layer) {
      const uint32_t group = layout.PlaceOf(layer).keys.group;
      const KvLayerKind kept =
          WithLimit(layout.kinds()[layout.GroupKind(group)], limit);
      const KvLayerView view = *cache_->View(id, layer);
      EXPECT_EQ(view.window, kept.window);
      EXPECT_EQ(view.sinks, kept.sinks);
    }
  }
  Bytes needed() const { return cache_->Use().needed; }

  TestDevice device_;
  const StreamId stream_;
  std::unique_ptr<SequenceCache> cache_;
};

TEST_P(SequenceOptionsTest, ALimitIsOfItsSequenceAndOfItsForks) {
  const SequenceId unlimited = *cache_->Admit(1);
  const SequenceId limited = *cache_->Admit(1, kLimit);
  Tokens of_unlimited = {7};
  Tokens of_limited = {8};
  TokenRows(*cache_, unlimited).Write(of_unlimited, 0);
  TokenRows(*cache_, limited).Write(of_limited, 0);
  ASSERT_NO_FATAL_FAILURE(Continue(limited, &of_limited, 150));
  const Bytes by_one = *cache_->FreedByRelease(limited);
  ASSERT_NO_FATAL_FAILURE(Continue(unlimited, &of_unlimited, 150));
  ExpectKept(limited, kLimit);
  ExpectKept(unlimited, {});
  if (GetParam().kind != CacheKind::kStatic) {
    EXPECT_LT(by_one, *cache_->FreedByRelease(unlimited));
  }
  ExpectRows(limited, of_limited);
  ExpectRows(unlimited, of_unlimited);

  const auto fork = cache_->Fork(limited);
  ASSERT_TRUE(fork.ok()) << fork.status();
  Tokens of_fork = of_limited;
  ExpectKept(*fork, kLimit);
  ASSERT_NO_FATAL_FAILURE(Continue(*fork, &of_fork, 30));
  ExpectRows(*fork, of_fork);
  ExpectRows(limited, of_limited);
  for (const SequenceId id : {unlimited, limited, *fork})
    EXPECT_TRUE(cache_->Release(id, Fence()).ok());
  EXPECT_EQ(needed(), Bytes(0));
}

// Others would drop other tokens.
TEST_P(SequenceOptionsTest, WithALimitOfItsOwnNoPrefixIsSharedEitherWay) {
  const Tokens tokens = TokensFrom(0, 100);
  for (const bool publisher_limited : {false, true}) {
    SequenceOptions first;
    SequenceOptions second;
    (publisher_limited ? first : second).limit = kLimit;
    const auto a = cache_->AdmitPromptInSteps(tokens, 100, first);
    ASSERT_TRUE(a.ok()) << a.status();
    EXPECT_EQ(a->cached_tokens, 0u);
    TokenRows(*cache_, a->sequence).Write(tokens, 0);
    ASSERT_TRUE(cache_->Publish(a->sequence, tokens).ok());
    const auto b = cache_->AdmitPromptInSteps(tokens, 100, second);
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_EQ(b->cached_tokens, 0u);
    for (const SequenceId id : {a->sequence, b->sequence})
      EXPECT_TRUE(cache_->Release(id, Fence()).ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    Make({});
  }
}

// The limit of the cache, given by name, is no other one.
TEST_P(SequenceOptionsTest, TheLimitOfTheCacheCanBeNamed) {
  Make(kLimit);
  const Tokens tokens = TokensFrom(0, 20);
  const auto a = cache_->AdmitPromptInSteps(tokens, 20, {.limit = kLimit});
  ASSERT_TRUE(a.ok()) << a.status();
  ExpectKept(a->sequence, kLimit);
  EXPECT_TRUE(cache_->Release(a->sequence, Fence()).ok());
}

TEST_P(SequenceOptionsTest, WhatALimitCannotBeIsRefused) {
  const Bytes before = needed();
  for (const KvTokenLimit bad : {KvTokenLimit{.max_tokens = 4, .sinks = 4},
                                 KvTokenLimit{.max_tokens = 4, .sinks = 5}}) {
    EXPECT_EQ(cache_->CheckLimit(bad).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(cache_->Admit(10, bad).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(cache_->AdmitPromptInSteps(TokensFrom(0, 10), 10, {.limit = bad})
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(needed(), before);
  // Tables of blocks are made for the limit of the cache.
  Make(kLimit);
  for (const KvTokenLimit other :
       {KvTokenLimit{.max_tokens = 12, .sinks = 4}, KvTokenLimit()}) {
    const auto id = cache_->Admit(10, other);
    if (GetParam().kind == CacheKind::kBlocks) {
      EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(cache_->CheckLimit(other).code(),
                absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(cache_->CheckLimit(other).ok());
    ExpectKept(*id, other);
    EXPECT_TRUE(cache_->Release(*id, Fence()).ok());
  }
}

// A prompt of 190 tokens that is computed in steps, where memory is for fewer:
// it holds no more than its limit and a step.
TEST_P(SequenceOptionsTest, SchedulersAdmitALimitedPromptForItsPeak) {
  if (GetParam().kind == CacheKind::kStatic)
    GTEST_SKIP() << "a slot has all tokens";
  const SequenceId whole = *cache_->Admit(190);
  const Bytes all = needed();
  ASSERT_TRUE(cache_->Release(whole, Fence()).ok());
  SchedulerOptions options;
  options.max_num_batched_tokens = 16;
  options.batch_limit = {.halve_above = 1, .grow_below = 0};
  for (const bool knows_tokens : {false, true}) {
    const Tokens text = TokensFrom(0, 200);
    TokenSource source;
    if (knows_tokens)
      source = [&text](RequestId) { return std::span<const int32_t>(text); };
    const auto scheduler =
        *Scheduler::Create(cache_.get(), options, nullptr, nullptr, source);
    ASSERT_TRUE(scheduler->Add(190, 3, {.sequence = {.limit = kLimit}}).ok());
    Bytes most;
    uint64_t tokens = 0;
    while (scheduler->has_work()) {
      const auto step = scheduler->Schedule();
      ASSERT_TRUE(step.ok()) << step.status();
      for (const ScheduledTokens& item : *step) tokens += item.count;
      most = std::max(most, needed());
      ASSERT_TRUE(scheduler->Complete({}, Fence()).ok());
    }
    EXPECT_EQ(tokens, 192u);
    EXPECT_LT(most, all);
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, SequenceOptionsTest,
                         ::testing::ValuesIn(CacheSettings()),
                         [](const auto& setting) {
                           return setting.param.name;
                         });

// Two conversations of which one is left when memory is needed: the one of more
// priority, though it was used before the other, until its time is over.
TEST(SequencePriorityTest, SchedulersPassOnPriorityAndRetention) {
  for (const bool over : {false, true}) {
    TestDevice device(400);
    const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
    {
      const auto cache =
          *KvCache::Create(device.memory(), TestLayout(1),
                           {.max_sequence_length = 400, .stream = stream});
      std::vector<Tokens> texts = {TokensFrom(0, 305), TokensFrom(1000, 305)};
      const auto scheduler = *Scheduler::Create(
          cache.get(), {}, nullptr, nullptr, [&texts](RequestId id) {
            return std::span<const int32_t>(texts[id.value() - 1]);
          });
      for (const int32_t priority : {1, 0}) {
        ASSERT_TRUE(
            scheduler
                ->Add(304, 1,
                      {.sequence = {.priority = priority, .retain_until = 50}})
                .ok());
        while (scheduler->has_work()) {
          ASSERT_TRUE(scheduler->Schedule().ok());
          ASSERT_TRUE(scheduler->Complete({}, Fence()).ok());
        }
      }
      cache->AdvanceClock(over ? 50 : 49);
      const uint64_t held =
          cache->Use().held.value() / device.memory()->page_size().value();
      AddressRange* const other =
          *device.memory()->ReserveRange(PageCount(400), kUnnamedOwner);
      ASSERT_TRUE(
          device.memory()
              ->Commit(other, PageCount(0), PageCount(400 - held + held / 4))
              .ok());
      device.memory()->ReleaseRange(other, Fence());
      const auto found = [&](size_t i) {
        const auto admission = cache->AdmitPrompt(texts[i]);
        EXPECT_TRUE(admission.ok()) << admission.status();
        EXPECT_TRUE(cache->Release(admission->sequence, Fence()).ok());
        return admission->cached_tokens;
      };
      EXPECT_EQ(found(over ? 1 : 0), 304u);
      EXPECT_LT(found(over ? 0 : 1), 304u);
    }
    EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
  }
}

}  // namespace
}  // namespace quire
