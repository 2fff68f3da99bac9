// The scheduler against a model of what it promises, on random requests,
// numbers of continuations, limits, policies, ends, cancellations, and memory
// that comes and goes.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "paging/scheduler_testing.h"

namespace quire {
namespace {

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// What the test knows of a request by itself.
struct Shadow {
  uint64_t prompt = 0;
  uint64_t output = 0;
  uint64_t decoded = 0;
  bool admitted = false;
  uint64_t ends_by = 0;         // the step of its bound, from its arrival
  uint64_t oldest_ends_by = 0;  // and from when it was the oldest; 0: is not

  uint64_t tokens() const { return prompt + decoded; }
};

class SchedulerModelTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint64_t kMaxTokens = 200;

  SchedulerModelTest() : random_(GetParam()) {
    options_.max_num_seqs = 1 + static_cast<uint32_t>(Below(12));
    options_.max_num_batched_tokens = 1 + static_cast<uint32_t>(Below(40));
    options_.max_logit_rows = static_cast<uint32_t>(Below(4));
    options_.prepare_next = Below(2) == 0;
    if (Below(2) == 0)
      options_.batch_limit = {.halve_above = 1, .grow_below = 0};
    if (Below(2) == 0) window_ = 1 + Below(100);
    // From just enough for the longest request to more than all need.
    pages_ = CountingCache::PeakPages(kMaxTokens, window_,
                                      options_.max_num_batched_tokens) +
             Below(40);
    cache_ = std::make_unique<CountingCache>(pages_, kMaxTokens, window_);
    const char* const policies[] = {"youngest", "lru", "page-aware"};
    TokenSource source;
    if (Below(2) == 0)
      source = [this](RequestId) { return std::span<const int32_t>(text_); };
    scheduler_ = *Scheduler::Create(
        cache_.get(), options_, MakeVictimPolicy(policies[Below(3)]),
        Below(2) == 0 ? cache_.get() : nullptr, source);
    oldest_share_ =
        options_.max_num_batched_tokens >= options_.max_num_seqs
            ? options_.max_num_batched_tokens - (options_.max_num_seqs - 1)
            : 1;
  }

  uint64_t Below(uint64_t n) { return random_() % n; }

  // Steps that a request takes at most while it is the oldest.
  uint64_t Bound(uint64_t tokens, uint64_t new_tokens) const {
    return DivideUp(tokens + new_tokens, oldest_share_) + new_tokens;
  }

  // A prompt with one or more continuations, each of which is a request.
  void Add() {
    Shadow shadow;
    // A prompt of one token that was admitted ahead overtakes longer ones.
    const uint64_t least = options_.prepare_next ? 2 : 1;
    shadow.prompt = least + Below(Below(2) == 0 ? 20 : kMaxTokens - least);
    shadow.output =
        1 + Below(std::min<uint64_t>(kMaxTokens - shadow.prompt, 40));
    uint64_t steps = Bound(shadow.prompt, shadow.output);
    for (const auto& [id, before] : shadows_)
      steps += Bound(before.tokens(), before.output - before.decoded);
    const auto continuations =
        static_cast<uint32_t>(Below(2) == 0 ? 1 : 1 + Below(8));
    const auto id = scheduler_->Add(shadow.prompt, shadow.output,
                                    {.continuations = continuations});
    ASSERT_TRUE(id.ok()) << id.status();
    ASSERT_TRUE(shadows_.empty() || *id > shadows_.rbegin()->first);
    const uint64_t own = Bound(shadow.prompt, shadow.output);
    for (uint64_t i = 0; i < continuations; ++i) {
      shadow.ends_by = step_ + steps + i * own;
      shadows_[RequestId(id->value() + i)] = shadow;
    }
  }

  // Those that the tokens are computed for.
  std::vector<RequestId> RequestsOf(const ScheduledTokens& item) const {
    std::vector<RequestId> requests;
    for (auto it = shadows_.find(item.request);
         it != shadows_.end() && it->first <= item.last; ++it)
      requests.push_back(it->first);
    return requests;
  }

  void CheckBounds() {
    if (shadows_.empty()) return;
    Shadow& oldest = shadows_.begin()->second;
    if (oldest.oldest_ends_by == 0)
      oldest.oldest_ends_by =
          step_ + Bound(oldest.tokens(), oldest.output - oldest.decoded);
    ASSERT_LE(step_, oldest.oldest_ends_by);
    for (const auto& [id, shadow] : shadows_) ASSERT_LE(step_, shadow.ends_by);
  }

  void CheckStep(std::span<const ScheduledTokens> step) {
    const SchedulerStatistics statistics = scheduler_->GetStatistics();
    ASSERT_LE(statistics.running, options_.max_num_seqs);
    ASSERT_EQ(statistics.running + statistics.waiting, shadows_.size());
    uint64_t tokens = 0;
    uint64_t rows = 0;
    std::set<RequestId> seen;
    for (const ScheduledTokens& item : step) {
      const std::vector<RequestId> requests = RequestsOf(item);
      ASSERT_FALSE(requests.empty());
      ASSERT_EQ(requests.front(), item.request);
      for (const RequestId id : requests) {
        ASSERT_TRUE(seen.insert(id).second);
        // Only for a prompt are they several.
        ASSERT_TRUE(requests.size() == 1 || shadows_.at(id).decoded == 0);
      }
      const Shadow& shadow = shadows_.at(item.request);
      ASSERT_GT(item.count, 0u);
      // Nothing before it is missing, and its place is backed.
      ASSERT_EQ(item.first, *cache_->written(item.sequence));
      const uint64_t end = item.first + item.count;
      ASSERT_LE(end, *cache_->Length(item.sequence));
      ASSERT_LE(end, shadow.tokens());
      ASSERT_EQ(item.needs_logits, end == shadow.tokens());
      // Nor is what the first of them sees gone.
      ASSERT_LE(
          cache_->first_kept(item.sequence),
          window_ == 0 || item.first < window_ ? 0 : item.first + 1 - window_);
      tokens += item.count;
      rows += item.needs_logits ? 1 : 0;
    }
    ASSERT_LE(tokens, options_.max_num_batched_tokens);
    ASSERT_TRUE(options_.max_logit_rows == 0 ||
                rows <= options_.max_logit_rows);
    CheckOldest(step);
    CheckAdmissionOrder(seen);
  }

  void CheckOldest(std::span<const ScheduledTokens> step) {
    if (shadows_.empty()) return;
    const auto& [id, oldest] = *shadows_.begin();
    const auto item = std::find_if(
        step.begin(), step.end(),
        [&, id = id](const ScheduledTokens& i) { return i.request == id; });
    ASSERT_NE(item, step.end()) << "the oldest request stands still";
    ASSERT_GE(item->count,
              std::min(oldest_share_, oldest.tokens() - item->first));
  }

  // Whoever is in a step for the first time was preceded by all before it.
  void CheckAdmissionOrder(const std::set<RequestId>& in_step) {
    for (const RequestId id : in_step) shadows_.at(id).admitted = true;
    bool all_admitted = true;
    for (const auto& [id, shadow] : shadows_) {
      ASSERT_TRUE(all_admitted || !shadow.admitted)
          << "request " << id.value() << " was admitted out of turn";
      all_admitted = shadow.admitted;
    }
  }

  void Complete(std::span<const ScheduledTokens> step) {
    std::vector<RequestId> ended;
    for (const ScheduledTokens& item : step) {
      *cache_->written(item.sequence) += item.count;
      if (!item.needs_logits) continue;
      for (const RequestId id : RequestsOf(item)) {
        Shadow& shadow = shadows_.at(id);
        const bool ends = Below(30) == 0;
        if (ends) ended.push_back(id);
        if (++shadow.decoded == shadow.output || ends) {
          shadows_.erase(id);
          ++ended_;
        }
      }
    }
    ASSERT_TRUE(scheduler_->Complete(ended, Fence()).ok());
  }

  void CancelOne() {
    if (shadows_.empty()) return;
    auto it = shadows_.begin();
    std::advance(it, Below(shadows_.size()));
    ASSERT_TRUE(scheduler_->Cancel(it->first, Fence()).ok());
    shadows_.erase(it);
  }

  std::mt19937 random_;
  SchedulerOptions options_;
  const std::vector<int32_t> text_ = std::vector<int32_t>(kMaxTokens, 7);
  uint64_t window_ = 0;  // 0: the cache keeps all tokens
  uint64_t pages_ = 0;
  uint64_t oldest_share_ = 0;
  uint64_t step_ = 0;
  uint64_t ended_ = 0;
  std::unique_ptr<CountingCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, Shadow> shadows_;
};

TEST_P(SchedulerModelTest, EveryRequestEndsInTimeAndLimitsHold) {
  uint64_t to_add = 60;
  while (to_add > 0 || scheduler_->has_work()) {
    for (; to_add > 0 && Below(4) == 0; --to_add) {
      ASSERT_NO_FATAL_FAILURE(Add());
    }
    if (Below(40) == 0) {
      ASSERT_NO_FATAL_FAILURE(CancelOne());
    }
    if (Below(20) == 0) cache_->refuse_swaps = !cache_->refuse_swaps;
    if (Below(20) == 0) cache_->refuse_forks = !cache_->refuse_forks;
    ASSERT_NO_FATAL_FAILURE(CheckBounds());
    auto step = scheduler_->Schedule();
    // The caller may fail to compute a step, and asks for another.
    if (Below(20) == 0) step = scheduler_->Schedule();
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(scheduler_->CheckInvariants().ok())
        << scheduler_->CheckInvariants();
    ASSERT_NO_FATAL_FAILURE(CheckStep(*step));
    if (Below(4) != 0) {
      ASSERT_TRUE(scheduler_->PrepareNext().ok());
      ASSERT_TRUE(scheduler_->CheckInvariants().ok())
          << scheduler_->CheckInvariants();
    }
    ASSERT_NO_FATAL_FAILURE(Complete(*step));
    ++step_;
  }
  EXPECT_TRUE(shadows_.empty());
  EXPECT_TRUE(cache_->empty());
  EXPECT_EQ(scheduler_->GetStatistics().ended, ended_);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerModelTest, ::testing::Range(0u, 200u));

}  // namespace
}  // namespace quire
