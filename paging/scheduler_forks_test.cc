// Prompts with several continuations: what is planned, for whom, and in which
// memory. Pages have 16 tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "paging/scheduler_testing.h"
#include "quire/paging/scheduler.h"
#include "quire/paging/victim_policy.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SchedulerForksTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.batch_limit = {.halve_above = 1, .grow_below = 0};
    return options;
  }
  void Make(uint64_t pages, const SchedulerOptions& options,
            const char* policy = "youngest") {
    scheduler_.reset();
    cache_ = std::make_unique<CountingCache>(pages, 1000);
    scheduler_ =
        *Scheduler::Create(cache_.get(), options, MakeVictimPolicy(policy));
  }
  void TearDown() override {
    scheduler_.reset();
    EXPECT_TRUE(cache_->empty());
  }

  RequestId Add(uint64_t prompt, uint64_t output, uint32_t continuations) {
    return *scheduler_->Add(prompt, output, {.continuations = continuations});
  }
  // "first-last:first token+count", with "!" where logits are needed.
  std::vector<std::string> Schedule() {
    const auto step = scheduler_->Schedule();
    EXPECT_TRUE(step.ok()) << step.status();
    plan_.assign(step->begin(), step->end());
    ExpectSound();
    std::vector<std::string> text;
    for (const ScheduledTokens& item : plan_)
      text.push_back(absl::StrCat(
          item.request.value(),
          item.last == item.request ? "" : absl::StrCat("-", item.last.value()),
          ":", item.first, "+", item.count, item.needs_logits ? "!" : ""));
    return text;
  }
  void Complete(const std::vector<RequestId>& ended = {}) {
    for (const ScheduledTokens& item : plan_)
      *cache_->written(item.sequence) += item.count;
    const absl::Status status = scheduler_->Complete(ended, Fence());
    EXPECT_TRUE(status.ok()) << status;
    ExpectSound();
  }
  std::vector<std::string> Step(const std::vector<RequestId>& ended = {}) {
    const std::vector<std::string> text = Schedule();
    Complete(ended);
    return text;
  }
  void ExpectSound() {
    EXPECT_TRUE(scheduler_->CheckInvariants().ok())
        << scheduler_->CheckInvariants();
  }
  uint64_t pages() const {
    return cache_->Use().needed.value() /
           (CountingCache::kPageTokens * CountingCache::kTokenBytes);
  }

  std::unique_ptr<CountingCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<ScheduledTokens> plan_;
};

TEST_F(SchedulerForksTest, APromptIsComputedOnceForAllItsContinuations) {
  Make(100, Options());
  EXPECT_EQ(Add(40, 3, 3), RequestId(1));
  EXPECT_EQ(Add(5, 1, 1), RequestId(4));
  EXPECT_EQ(scheduler_->GetStatistics().waiting, 4u);
  EXPECT_THAT(Step(), ElementsAre("1-3:0+40!", "4:0+5!"));
  // Two pages are full and shared, and each has its own third.
  EXPECT_EQ(pages(), 2u + 3u);
  EXPECT_EQ(scheduler_->GetStatistics().running, 3u);
  EXPECT_THAT(Step(), ElementsAre("1:40+1!", "2:40+1!", "3:40+1!"));
  EXPECT_THAT(Step(), ElementsAre("1:41+1!", "2:41+1!", "3:41+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  const SchedulerStatistics statistics = scheduler_->GetStatistics();
  EXPECT_EQ(statistics.admissions, 2u);
  EXPECT_EQ(statistics.forks, 2u);
  EXPECT_EQ(statistics.waiting_forks, 0u);
  EXPECT_EQ(statistics.ended, 4u);
}

TEST_F(SchedulerForksTest, EachEndsByItself) {
  Make(100, Options());
  Add(20, 9, 4);
  // The one that computed the prompt, and one that never began.
  EXPECT_THAT(Step({RequestId(1), RequestId(3)}), ElementsAre("1-4:0+20!"));
  EXPECT_EQ(scheduler_->GetStatistics().forks, 2u);
  EXPECT_THAT(Step({RequestId(2)}), ElementsAre("2:20+1!", "4:20+1!"));
  EXPECT_THAT(Step({RequestId(4)}), ElementsAre("4:21+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->GetStatistics().ended, 4u);
}

TEST_F(SchedulerForksTest, OneTokenEachNeedsNoFork) {
  Make(3, Options());
  Add(40, 1, 100);
  EXPECT_THAT(Step(), ElementsAre("1-100:0+40!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->GetStatistics().ended, 100u);
  EXPECT_EQ(scheduler_->GetStatistics().forks, 0u);
}

TEST_F(SchedulerForksTest, OnlyThoseWhosePromptIsComputedCanEnd) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 10;
  Make(100, options);
  Add(15, 5, 2);
  EXPECT_THAT(Schedule(), ElementsAre("1-2:0+10"));
  const RequestId second(2);
  EXPECT_EQ(scheduler_->Complete(std::span(&second, 1), Fence()).code(),
            absl::StatusCode::kInvalidArgument);
  Complete();
  EXPECT_THAT(Step({second}), ElementsAre("1-2:10+5!"));
  EXPECT_THAT(Step({RequestId(1)}), ElementsAre("1:15+1!"));
}

TEST_F(SchedulerForksTest, SeatsAreKeptFreeForThem) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 3;
  options.max_num_batched_tokens = 12;
  Make(100, options);
  Add(20, 2, 3);
  Add(2, 1, 1);
  EXPECT_THAT(Step(), ElementsAre("1-3:0+12"));
  // There are tokens and memory left for the fourth request, and no seat.
  EXPECT_THAT(Step(), ElementsAre("1-3:12+8!"));
  EXPECT_THAT(Step(), ElementsAre("1:20+1!", "2:20+1!", "3:20+1!"));
  EXPECT_THAT(Step(), ElementsAre("4:0+2!"));
}

TEST_F(SchedulerForksTest, WithoutASeatTheyWaitAndComputeThePromptAgain) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 2;
  Make(100, options);
  Add(40, 2, 3);
  Add(5, 1, 1);
  EXPECT_THAT(Step(), ElementsAre("1-3:0+40!"));
  EXPECT_EQ(scheduler_->GetStatistics().forks, 1u);
  EXPECT_EQ(scheduler_->GetStatistics().waiting_forks, 1u);
  EXPECT_THAT(Step(), ElementsAre("1:40+1!", "2:40+1!"));
  // Its first token is known, and is computed with the prompt.
  EXPECT_THAT(Step(), ElementsAre("3:0+41!", "4:0+5!"));
  EXPECT_FALSE(scheduler_->has_work());
}

// The tails of two forks have no place beside the prompt; of one they have.
TEST_F(SchedulerForksTest, WithoutMemoryTheyWait) {
  Make(4, Options());
  Add(40, 3, 3);
  EXPECT_THAT(Step(), ElementsAre("1-3:0+40!"));
  EXPECT_EQ(pages(), 4u);
  EXPECT_THAT(Step(), ElementsAre("1:40+1!", "2:40+1!"));
  EXPECT_THAT(Step(), ElementsAre("1:41+1!", "2:41+1!"));
  EXPECT_THAT(Step(), ElementsAre("3:0+41!"));
  EXPECT_THAT(Step(), ElementsAre("3:41+1!"));
  EXPECT_EQ(scheduler_->GetStatistics().preemptions, 0u);
}

TEST_F(SchedulerForksTest, TheirMemoryIsKeptFreeForThem) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 24;
  // 3 pages for the prompt, 2 for tails; one of 20 tokens needs 2 more.
  Make(6, options);
  Add(40, 2, 3);
  Add(20, 1, 1);
  EXPECT_THAT(Step(), ElementsAre("1-3:0+24"));
  EXPECT_THAT(Step(), ElementsAre("1-3:24+16!"));
  EXPECT_EQ(pages(), 5u);
  EXPECT_THAT(Step(), ElementsAre("1:40+1!", "2:40+1!", "3:40+1!"));
  EXPECT_THAT(Step(), ElementsAre("4:0+20!"));
}

TEST_F(SchedulerForksTest, WhatTheCacheRefusesIsComputed) {
  Make(100, Options());
  Add(40, 2, 2);
  cache_->refuse_forks = true;
  EXPECT_THAT(Step(), ElementsAre("1-2:0+40!"));
  EXPECT_EQ(scheduler_->GetStatistics().waiting_forks, 1u);
  EXPECT_THAT(Step(), ElementsAre("1:40+1!", "2:0+41!"));
}

// Memory shrinks when the second request has three pages and the third one
// page: the second, which frees most, gives way, and waits before the fork.
TEST_F(SchedulerForksTest, TheyTakeNothingFromOneThatIsOlderAndWaits) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 20;
  Make(8, options, "lru");
  Add(16, 20, 1);
  Add(40, 20, 1);
  Add(18, 20, 2);
  EXPECT_THAT(Step(), ElementsAre("1:0+16!", "2:0+4"));
  EXPECT_THAT(Step(), ElementsAre("1:16+1!", "2:4+19"));
  EXPECT_THAT(Step(), ElementsAre("1:17+1!", "2:23+17!", "3-4:0+2"));
  cache_->set_pages(6);
  EXPECT_THAT(Step(), ElementsAre("1:18+1!", "3-4:2+16!"));
  EXPECT_EQ(pages(), 4u);
  EXPECT_EQ(scheduler_->GetStatistics().forks, 0u);
  EXPECT_EQ(scheduler_->GetStatistics().waiting_forks, 1u);
  EXPECT_THAT(Step(), ElementsAre("1:19+1!", "3:18+1!"));
}

TEST_F(SchedulerForksTest, ACancelledOneLeavesTheOthers) {
  Make(100, Options());
  Add(20, 3, 4);
  // One that waits; one that computes the prompt, before and in its step.
  ASSERT_TRUE(scheduler_->Cancel(RequestId(3), Fence()).ok());
  ASSERT_TRUE(scheduler_->Cancel(RequestId(1), Fence()).ok());
  ExpectSound();
  EXPECT_THAT(Schedule(), ElementsAre("2-4:0+20!"));
  ASSERT_TRUE(scheduler_->Cancel(RequestId(2), Fence()).ok());
  Complete();
  EXPECT_THAT(Step(), ElementsAre("4:20+1!"));
  EXPECT_EQ(scheduler_->GetStatistics().recomputed_tokens, 0u);
  ASSERT_TRUE(scheduler_->Cancel(RequestId(4), Fence()).ok());
  EXPECT_FALSE(scheduler_->has_work());
  for (uint64_t id = 1; id <= 4; ++id)
    EXPECT_EQ(scheduler_->Cancel(RequestId(id), Fence()).code(),
              absl::StatusCode::kNotFound);
}

// By its admission each has what the request asks for: the one that computes
// the prompt, and one that has to begin by itself. A fork has it of the first.
TEST_F(SchedulerForksTest, OptionsOfTheSequenceAreThoseOfEach) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 2;
  Make(100, options);
  const KvTokenLimit limit = {.max_tokens = 30, .sinks = 2};
  ASSERT_TRUE(
      scheduler_->Add(40, 2, {.continuations = 3, .sequence = {.limit = limit}})
          .ok());
  Add(5, 1, 1);
  while (scheduler_->has_work()) Step();
  std::vector<std::optional<KvTokenLimit>> limits;
  for (const SequenceOptions& admitted : cache_->admitted)
    limits.push_back(admitted.limit);
  EXPECT_THAT(limits, ElementsAre(limit, limit, std::nullopt));
  EXPECT_EQ(
      scheduler_
          ->Add(5, 5, {.sequence = {.limit = {{.max_tokens = 2, .sinks = 2}}}})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(SchedulerForksTest, NoneIsRefused) {
  Make(10, Options());
  EXPECT_EQ(scheduler_->Add(5, 5, {.continuations = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Step(), IsEmpty());
}

}  // namespace
}  // namespace quire
