#include "quire/paging/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "paging/scheduler_testing.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "request:first+count", with "!" where logits are needed.
std::vector<std::string> Text(std::span<const ScheduledTokens> step) {
  std::vector<std::string> text;
  for (const ScheduledTokens& item : step)
    text.push_back(absl::StrCat(item.request.value(), ":", item.first, "+",
                                item.count, item.needs_logits ? "!" : ""));
  return text;
}

class SchedulerTest : public ::testing::Test {
 protected:
  // No batch limit, so that what a test is about stands alone.
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.batch_limit = {.halve_above = 1, .grow_below = 0};
    return options;
  }
  void Make(uint64_t pages, const SchedulerOptions& options,
            const char* policy = "youngest", bool swap = false) {
    scheduler_.reset();
    cache_ = std::make_unique<CountingCache>(pages, 1000);
    scheduler_ =
        *Scheduler::Create(cache_.get(), options, MakeVictimPolicy(policy),
                           swap ? cache_.get() : nullptr);
  }
  void TearDown() override {
    scheduler_.reset();
    EXPECT_TRUE(cache_ == nullptr || cache_->empty());
  }

  RequestId Add(uint64_t prompt, uint64_t output) {
    return *scheduler_->Add(prompt, output);
  }
  // Schedules, checks and completes.
  std::vector<std::string> Step(const std::vector<RequestId>& ended = {}) {
    const auto step = scheduler_->Schedule();
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return {};
    EXPECT_TRUE(scheduler_->CheckInvariants().ok())
        << scheduler_->CheckInvariants();
    std::vector<std::string> text = Text(*step);
    EXPECT_TRUE(scheduler_->Complete(ended, Fence()).ok());
    EXPECT_TRUE(scheduler_->CheckInvariants().ok())
        << scheduler_->CheckInvariants();
    return text;
  }

  std::unique_ptr<CountingCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, DecodesComeFirstAndPromptsInChunks) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 10;
  Make(100, options);
  Add(4, 3);
  EXPECT_THAT(Step(), ElementsAre("1:0+4!"));
  Add(25, 2);
  Add(3, 1);
  EXPECT_THAT(Step(), ElementsAre("1:4+1!", "2:0+9"));
  EXPECT_THAT(Step(), ElementsAre("1:5+1!", "2:9+9"));
  EXPECT_THAT(Step(), ElementsAre("2:18+7!", "3:0+3!"));
  EXPECT_THAT(Step(), ElementsAre("2:25+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(scheduler_->GetStatistics().ended, 3u);
}

TEST_F(SchedulerTest, ARequestEndsEarlierWhereTheCallerSaysSo) {
  Make(100, Options());
  const RequestId a = Add(4, 100);
  EXPECT_THAT(Step(), ElementsAre("1:0+4!"));
  EXPECT_THAT(Step({a}), ElementsAre("1:4+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_TRUE(cache_->empty());
}

TEST_F(SchedulerTest, AStepThatWasNotCompletedIsPlannedAgain) {
  Make(100, Options());
  Add(4, 3);
  ASSERT_THAT(Text(*scheduler_->Schedule()), ElementsAre("1:0+4!"));
  Add(5, 1);
  EXPECT_THAT(Step(), ElementsAre("1:0+4!", "2:0+5!"));
}

TEST_F(SchedulerTest, OnlyRequestsWithLogitsCanEnd) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 4;
  Make(100, options);
  const RequestId a = Add(2, 9);
  const RequestId b = Add(9, 9);
  ASSERT_THAT(Text(*scheduler_->Schedule()), ElementsAre("1:0+2!", "2:0+2"));
  for (const RequestId id : {b, RequestId(3), RequestId()}) {
    const std::vector<RequestId> ended = {a, id};
    EXPECT_EQ(scheduler_->Complete(ended, Fence()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_THAT(Step(), ElementsAre("1:2+1!", "2:2+3"));
}

TEST_F(SchedulerTest, LimitsOfTheBatchHold) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 2;
  options.max_logit_rows = 1;
  Make(100, options);
  Add(4, 2);
  Add(4, 2);
  Add(4, 1);
  // The second stops one short of the logits that there are no rows for.
  EXPECT_THAT(Step(), ElementsAre("1:0+4!", "2:0+3"));
  EXPECT_THAT(Step(), ElementsAre("1:4+1!"));
  EXPECT_THAT(Step(), ElementsAre("2:3+1!", "3:0+3"));
  EXPECT_THAT(Step(), ElementsAre("2:4+1!"));
  EXPECT_THAT(Step(), ElementsAre("3:3+1!"));
}

TEST_F(SchedulerTest, AnAdmissionNeedsRoomForThePromptAndThoseBefore) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 16;
  Make(7, options);
  Add(80, 2);  // six pages in the end
  Add(32, 2);  // three
  // All of the first one's prompt counts, not its first chunk.
  EXPECT_THAT(Step(), ElementsAre("1:0+16"));
  for (int i = 1; i < 5; ++i) EXPECT_EQ(Step().size(), 1u);
  EXPECT_THAT(Step(), ElementsAre("1:80+1!"));
  EXPECT_THAT(Step(), ElementsAre("2:0+16"));
}

TEST_F(SchedulerTest, TheYoungestIsPreemptedAndComputedAgain) {
  Make(4, Options());
  Add(30, 10);
  Add(30, 10);
  EXPECT_THAT(Step(), ElementsAre("1:0+30!", "2:0+30!"));
  EXPECT_THAT(Step(), ElementsAre("1:30+1!", "2:30+1!"));
  EXPECT_THAT(Step(), ElementsAre("1:31+1!", "2:31+1!"));
  for (uint64_t first = 32; first < 39; ++first) {
    EXPECT_THAT(Step(), ElementsAre(absl::StrCat("1:", first, "+1!")));
  }
  // With the tokens that it had.
  EXPECT_THAT(Step(), ElementsAre("2:0+33!"));
  const SchedulerStatistics statistics = scheduler_->GetStatistics();
  EXPECT_EQ(statistics.preemptions, 1u);
  EXPECT_EQ(statistics.swaps, 0u);
  EXPECT_EQ(statistics.recomputed_tokens, 32u);
  EXPECT_EQ(statistics.admissions, 3u);
}

TEST_F(SchedulerTest, ASwappedRequestGoesOnWhereItWas) {
  Make(4, Options(), "youngest", /*swap=*/true);
  Add(30, 4);
  Add(30, 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step().size(), 2u);
  EXPECT_THAT(Step(), ElementsAre("1:32+1!"));
  EXPECT_THAT(Step(), ElementsAre("2:32+1!"));
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->GetStatistics().swaps, 1u);
  EXPECT_EQ(scheduler_->GetStatistics().recomputed_tokens, 0u);
}

TEST_F(SchedulerTest, WhatCannotBeSwappedInIsComputedAgain) {
  Make(4, Options(), "youngest", /*swap=*/true);
  Add(30, 4);
  Add(30, 4);
  for (int i = 0; i < 4; ++i) Step();
  cache_->refuse_swaps = true;
  EXPECT_THAT(Step(), ElementsAre("2:0+33!"));
  EXPECT_EQ(scheduler_->GetStatistics().recomputed_tokens, 32u);
}

TEST_F(SchedulerTest, TheOldestTakesThePlaceOfOthers) {
  // The policy takes the first request of the two that could go, and that one
  // is the oldest once the first has ended.
  class FirstPolicy : public VictimPolicy {
   public:
    size_t Choose(std::span<const VictimCandidate>, Bytes) const override {
      return 0;
    }
  };
  cache_ = std::make_unique<CountingCache>(6, 1000);
  scheduler_ = *Scheduler::Create(cache_.get(), Options(),
                                  std::make_unique<FirstPolicy>());
  Add(32, 2);
  Add(31, 40);
  Add(31, 40);
  EXPECT_THAT(Step(), ElementsAre("1:0+32!", "2:0+31!", "3:0+31!"));
  // The first needs a third page: the second gives way, not the first.
  EXPECT_THAT(Step(), ElementsAre("1:32+1!", "3:31+1!"));
  // It is the oldest now, and is back although the third runs.
  EXPECT_THAT(Step(), ElementsAre("3:32+1!", "2:0+32!"));
  while (scheduler_->has_work()) {
    const auto step = Step();
    ASSERT_FALSE(step.empty());
  }
  EXPECT_EQ(scheduler_->GetStatistics().ended, 3u);
}

TEST_F(SchedulerTest, RequestsStartBehindTheirPrefixAndPublishWhatTheyCompute) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 8;
  cache_ = std::make_unique<CountingCache>(3, 1000);
  const std::vector<int32_t> text(40, 7);
  scheduler_ = *Scheduler::Create(
      cache_.get(), options, nullptr, nullptr,
      [&](RequestId) { return std::span<const int32_t>(text); });
  const auto step = [&] {
    const auto planned = *scheduler_->Schedule();
    EXPECT_TRUE(scheduler_->CheckInvariants().ok())
        << scheduler_->CheckInvariants();
    for (const ScheduledTokens& item : planned) {
      EXPECT_EQ(item.first, *cache_->written(item.sequence));
      *cache_->written(item.sequence) += item.count;
    }
    const std::vector<std::string> text_of_step = Text(planned);
    EXPECT_TRUE(scheduler_->Complete({}, Fence()).ok());
    return text_of_step;
  };
  cache_->prefix = 16;
  Add(30, 3);
  EXPECT_THAT(step(), ElementsAre("1:16+8"));
  Add(10, 1);  // all but its last token is in the cache
  EXPECT_THAT(step(), ElementsAre("1:24+6!", "2:9+1!"));
  EXPECT_THAT(step(), ElementsAre("1:30+1!"));
  EXPECT_THAT(step(), ElementsAre("1:31+1!"));
  // Prompts as they are computed, and what is decoded at the end.
  EXPECT_THAT(cache_->published, ElementsAre(24u, 30u, 10u, 32u));
  EXPECT_EQ(scheduler_->GetStatistics().cached_tokens, 16u + 9u);
}

// Prompts of 100 tokens, 7 pages each, of which a window of 16 and a step of 16
// are 3 pages at most.
TEST_F(SchedulerTest, BehindWindowsAPromptIsAdmittedForWhatItHoldsAtItsPeak) {
  for (const bool knows_tokens : {false, true}) {
    for (const bool prepare_next : {false, true}) {
      SchedulerOptions options = Options();
      options.max_num_batched_tokens = 16;
      options.prepare_next = prepare_next;
      cache_ = std::make_unique<CountingCache>(3, 1000, /*window=*/16);
      const std::vector<int32_t> text(200, 7);
      TokenSource source;
      if (knows_tokens)
        source = [&](RequestId) { return std::span<const int32_t>(text); };
      scheduler_ =
          *Scheduler::Create(cache_.get(), options, nullptr, nullptr, source);
      Add(100, 2);
      Add(100, 2);
      uint64_t steps = 0;
      for (; scheduler_->has_work(); ++steps) {
        const auto planned = scheduler_->Schedule();
        ASSERT_TRUE(planned.ok()) << planned.status();
        // One after the other: there is no room for two.
        ASSERT_EQ(planned->size(), 1u);
        for (const ScheduledTokens& item : *planned) {
          ASSERT_LE(cache_->first_kept(item.sequence),
                    std::max<uint64_t>(item.first, 15) - 15);
          *cache_->written(item.sequence) += item.count;
        }
        ASSERT_TRUE(scheduler_->PrepareNext().ok());
        ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
      }
      EXPECT_EQ(steps, 16u);
      EXPECT_EQ(scheduler_->GetStatistics().preemptions, 0u);
    }
  }
}

// Four conversations of which 1, 3 and 4 begin alike; one runs at a time.
TEST_F(SchedulerTest, TheCacheIsToldWhichPromptsWait) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 1;
  options.expected_prompts = 2;
  cache_ = std::make_unique<CountingCache>(200, 1000);
  std::vector<std::vector<int32_t>> texts(5, std::vector<int32_t>(300, 7));
  texts[2].assign(300, 8);
  scheduler_ = *Scheduler::Create(
      cache_.get(), options, nullptr, nullptr, [&](RequestId id) {
        return std::span<const int32_t>(texts[id.value()]);
      });
  const auto step = [&] {
    const auto planned = *scheduler_->Schedule();
    for (const ScheduledTokens& item : planned)
      *cache_->written(item.sequence) += item.count;
    EXPECT_TRUE(scheduler_->Complete({}, Fence()).ok());
  };
  const auto told = [&] { return std::exchange(cache_->expected, {}); };
  using Prompt = std::pair<uint64_t, uint64_t>;
  Add(290, 2);
  Add(280, 1);
  Add(270, 1);
  Add(260, 1);
  // Two of those that wait are looked at.
  step();
  EXPECT_THAT(told(), ElementsAre(Prompt(280, 2), Prompt(270, 3)));
  // The first ends. Whole chunks of it are what the third begins with.
  step();
  EXPECT_THAT(told(), ElementsAre(Prompt(256, 3)));
  // The second is admitted, which is like no other; the fourth is looked at.
  step();
  EXPECT_THAT(cache_->turns, ElementsAre(2u, 3u));
  EXPECT_THAT(told(), ElementsAre(Prompt(260, 4)));
  // The third is, which is also at its end what the fourth begins with.
  step();
  EXPECT_THAT(cache_->turns, ElementsAre(2u, 3u, 4u));
  EXPECT_THAT(told(), ElementsAre(Prompt(256, 4), Prompt(256, 4)));
  // Nobody waits for what is cancelled.
  Add(250, 1);
  ASSERT_TRUE(scheduler_->Cancel(RequestId(5), Fence()).ok());
  step();
  EXPECT_THAT(told(), IsEmpty());
}

TEST_F(SchedulerTest, PrepareNextTakesTheCallsOfTheCacheOutOfTheStep) {
  SchedulerOptions options = Options();
  options.prepare_next = true;
  Make(8, options);
  Add(20, 2);
  Add(30, 4);
  EXPECT_THAT(Text(*scheduler_->Schedule()), ElementsAre("1:0+20!"));
  EXPECT_EQ(scheduler_->GetStatistics().running, 1u);
  ASSERT_TRUE(scheduler_->PrepareNext().ok());
  EXPECT_EQ(scheduler_->GetStatistics().running, 2u);
  ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_THAT(Step(), ElementsAre("1:20+1!", "2:0+30!"));
  // The first has ended, and has its memory until the next step is under way.
  EXPECT_EQ(cache_->Use().needed, Bytes(4 * 16 * 4));
  EXPECT_THAT(Text(*scheduler_->Schedule()), ElementsAre("2:30+1!"));
  ASSERT_TRUE(scheduler_->PrepareNext().ok());
  EXPECT_EQ(cache_->Use().needed, Bytes(2 * 16 * 4));
  ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
  // Before anybody is preempted, what ended goes.
  cache_->set_pages(5);
  Add(20, 1);
  ASSERT_EQ(scheduler_->Schedule()->size(), 1u);
  ASSERT_TRUE(scheduler_->PrepareNext().ok());
  ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_THAT(Step(), ElementsAre("2:32+1!", "3:0+20!"));
  EXPECT_EQ(scheduler_->GetStatistics().preemptions, 0u);
  EXPECT_TRUE(cache_->empty());
}

TEST_F(SchedulerTest, RoomThatIsNotMadeInTimeIsLeftToTheNextStep) {
  SchedulerOptions options = Options();
  options.prepare_next = true;
  Make(8, options);
  cache_->has_time = false;
  Add(20, 3);
  Add(30, 1);
  EXPECT_THAT(Text(*scheduler_->Schedule()), ElementsAre("1:0+20!"));
  ASSERT_TRUE(scheduler_->PrepareNext().ok());
  EXPECT_EQ(scheduler_->GetStatistics().running, 1u);
  EXPECT_THAT(cache_->rooms, ElementsAre(std::pair(0u, 30u)));
  ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_THAT(Text(*scheduler_->Schedule()), ElementsAre("1:20+1!"));
  cache_->has_time = true;
  ASSERT_TRUE(scheduler_->PrepareNext().ok());
  EXPECT_EQ(scheduler_->GetStatistics().running, 2u);
  ASSERT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_THAT(Step(), ElementsAre("1:21+1!", "2:0+30!"));
  // With nobody to wait, the oldest waits for nothing.
  cache_->has_time = false;
  Add(40, 1);
  EXPECT_THAT(Step(), ElementsAre("3:0+40!"));
  EXPECT_TRUE(cache_->empty());
}

TEST_F(SchedulerTest, AShortageThatNoRequestCausesIsAnErrorUntilItEnds) {
  Make(10, Options());
  Add(20, 30);
  EXPECT_THAT(Step(), ElementsAre("1:0+20!"));
  cache_->set_pages(2);  // another model took the rest
  for (uint64_t first = 20; first < 32; ++first) EXPECT_EQ(Step().size(), 1u);
  EXPECT_EQ(scheduler_->Schedule().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scheduler_->CheckInvariants().ok());
  cache_->set_pages(10);
  EXPECT_THAT(Step(), ElementsAre("1:32+1!"));
}

TEST_F(SchedulerTest, ACancelledRequestIsGone) {
  Make(4, Options(), "youngest", /*swap=*/true);
  const RequestId a = Add(30, 40);
  const RequestId b = Add(30, 40);
  const RequestId c = Add(30, 40);
  for (int i = 0; i < 4; ++i) Step();
  ASSERT_EQ(scheduler_->GetStatistics().swaps, 1u);
  ASSERT_TRUE(scheduler_->Schedule().ok());
  EXPECT_TRUE(scheduler_->Cancel(a, Fence()).ok());  // in the step
  EXPECT_TRUE(scheduler_->Cancel(b, Fence()).ok());  // swapped out
  EXPECT_TRUE(scheduler_->Cancel(c, Fence()).ok());  // never admitted
  EXPECT_EQ(scheduler_->Cancel(a, Fence()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(scheduler_->Complete({}, Fence()).ok());
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_TRUE(cache_->empty());
}

TEST_F(SchedulerTest, TheBatchLimitFollowsTheUseOfTheCache) {
  SchedulerOptions options;
  Make(20, options);
  for (int i = 0; i < 8; ++i) Add(32, 17);  // two pages, three in the end
  EXPECT_EQ(Step().size(), 8u);             // 80 % of the pages
  EXPECT_EQ(scheduler_->GetStatistics().batch_limit, 256u);
  for (int i = 0; i < 10; ++i) Add(32, 17);
  EXPECT_EQ(Step().size(), 6u);  // a third page each, and 90 % are in use
  EXPECT_EQ(Step().size(), 6u);
  EXPECT_EQ(scheduler_->GetStatistics().batch_limit, 3u);
  // Nobody is admitted before fewer than three run.
  for (int i = 0; i < 14; ++i) EXPECT_EQ(Step().size(), 6u);
  EXPECT_EQ(scheduler_->GetStatistics().running, 0u);
  EXPECT_EQ(Step().size(), 3u);
  EXPECT_EQ(Step().size(), 6u);  // 30 %: the limit doubles
  EXPECT_EQ(scheduler_->GetStatistics().halvings, 1u);
  EXPECT_EQ(scheduler_->GetStatistics().doublings, 1u);
}

TEST_F(SchedulerTest, RejectsWhatCannotWork) {
  Make(10, Options());
  for (const auto& [prompt, output] :
       std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 1}, {1, 0}, {999, 2}, {1, UINT64_MAX}, {UINT64_MAX, 1}}) {
    EXPECT_EQ(scheduler_->Add(prompt, output).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(scheduler_->Add(999, 1).ok());
  for (const auto& [options, at_fault] :
       std::vector<std::pair<SchedulerOptions, std::string>>{
           {{.max_num_seqs = 0}, "max_num_seqs"},
           {{.max_num_batched_tokens = 0}, "max_num_batched_tokens"},
           {{.max_model_len = 1001}, "1001"}}) {
    const auto scheduler = Scheduler::Create(cache_.get(), options);
    EXPECT_EQ(scheduler.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(scheduler.status().message()), HasSubstr(at_fault));
  }
}

// On real memory: windows give pages back as sequences grow.
TEST(SchedulerOnKvCacheTest, WhatIsBehindWindowsIsGivenBackStepByStep) {
  TestDevice device(64);
  KvModelShape shape(kTestShape);  // rows of 128 bytes, 32 to a page
  for (KvLayerKind& kind : shape.layers) kind.window = 40;
  const KvLayout layout = *KvLayout::Create(shape, 1);
  const auto cache =
      *KvCache::Create(device.memory(), layout, CacheOptions(320));
  const auto scheduler = *Scheduler::Create(cache.get(), {});
  ASSERT_TRUE(scheduler->Add(20, 300).ok());
  while (scheduler->has_work()) {
    ASSERT_TRUE(scheduler->Schedule().ok());
    ASSERT_TRUE(scheduler->CheckInvariants().ok());
    // 40 tokens lie in three pages of a layer at most.
    EXPECT_LE(cache->Use().needed, Bytes(5 * 3 * 4096));
    ASSERT_TRUE(scheduler->Complete({}, Fence()).ok());
  }
  EXPECT_TRUE(cache->CheckInvariants().ok());
}

// On real memory: a hard limit of the owner is as if there were no more.
TEST(SchedulerOnKvCacheTest, AHardLimitOfTheOwnerHolds) {
  TestDevice device(256);
  KvCacheOptions options = CacheOptions(320);
  options.owner = device.memory()->owners()->Register("kv");
  const auto cache = MakeCache(&device, 5, options);  // 640-byte rows
  const Bytes limit = KiB(20 * 4);
  ASSERT_TRUE(
      device.memory()->SetOwnerLimits(options.owner, {.hard = limit}).ok());
  const auto scheduler = *Scheduler::Create(
      cache.get(), {.batch_limit = {.halve_above = 1, .grow_below = 0}},
      MakePageAwarePolicy());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(scheduler->Add(40, 60).ok());
  Bytes most;
  while (scheduler->has_work()) {
    const auto step = scheduler->Schedule();
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(scheduler->CheckInvariants().ok());
    most =
        std::max(most, device.memory()->GetOwnerStatistics(options.owner).live);
    ASSERT_TRUE(scheduler->Complete({}, Fence()).ok());
  }
  EXPECT_EQ(most, limit);
  EXPECT_EQ(scheduler->GetStatistics().ended, 6u);
  EXPECT_GT(scheduler->GetStatistics().preemptions, 0u);
  EXPECT_TRUE(cache->CheckInvariants().ok());
}

}  // namespace
}  // namespace quire
