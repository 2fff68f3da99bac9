// Every operation of the KV cache together, against a shadow model: prompts and
// admissions, steps, forks, publishing, windows, limits, shrinks, swap,
// preemption, releases, and sleep of the whole cache, while another user takes
// memory and kernels run late. Rows are a function of the tokens before them,
// and are checked where they lie.
//
// Fixed seeds; QUIRE_MODEL_TEST_SEEDS=n runs n more.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "paging/testing/random_prompt.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 300;
constexpr uint32_t kMaxSequences = 10;
constexpr uint32_t kBlock = 4;

struct Setting {
  const char* name;
  KvLayout layout;
  uint64_t pages;
  KvTokenLimit limit;
  bool eager;
  uint32_t ahead;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

struct Shadow {
  Tokens tokens;
  TokenRows rows;
  // Lengths that it may go back to are no less.
  uint64_t floor = 0;
  bool swapped = false;
};

class World {
 public:
  World(const Setting& setting, uint64_t seed)
      : setting_(setting), device_(setting.pages), random_(seed) {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    owner_ = device_.memory()->owners()->Register("KV");
    KvCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = kMaxSequences;
    options.prefix_block_tokens = kBlock;
    options.owner = owner_;
    options.stream = stream_;
    options.limit = setting.limit;
    options.eager_reclaim = setting.eager;
    options.page_ahead.max_steps = setting.ahead;
    options.swap_space = KiB(4 * 80);
    cache_ = MakeCache(&device_, setting.layout, options);
    other_ = *device_.memory()->ReserveRange(PageCount(setting.pages),
                                             kUnnamedOwner);
  }
  ~World() {
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
    EXPECT_EQ(late_errors_, 0);
    device_.memory()->ReleaseRange(other_, Fence());
    cache_.reset();
  }

  void Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      SCOPED_TRACE(round);
      Operate();
      if (::testing::Test::HasFatalFailure()) return;
      Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const auto& [id, shadow] : shadows_) CheckRows(shadow);
  }

  KvCacheStatistics statistics() const { return cache_->GetStatistics(); }
  uint64_t sleeps() const { return sleeps_; }
  uint64_t resumed() const { return resumed_; }

 private:
  using Sequence = std::pair<const SequenceId, Shadow>;

  uint64_t Below(uint64_t n) { return random_() % n; }
  Sequence* Any(bool swapped) {
    std::vector<Sequence*> those;
    for (Sequence& sequence : shadows_) {
      if (sequence.second.swapped == swapped) those.push_back(&sequence);
    }
    return those.empty() ? nullptr : those[Below(those.size())];
  }

  void Operate() {
    switch (Below(20)) {
      case 0:
      case 1:
      case 2:
        return Prompt(RandomPrompt(&random_, history_, kMaxTokens));
      case 3:
        return Admit();
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        return Step();
      case 9:
        return Fork();
      case 10:
        return Shrink();
      case 11:
        return Release();
      case 12:
        return Preempt();
      case 13:
        return Resume();
      case 14:
        return SwapOut();
      case 15:
      case 16:
        return SwapIn();
      case 17:
        return Other();
      case 18:
        return Publish();
      case 19:
        return Below(3) == 0 ? Sleep() : Ahead();
    }
  }

  // ---- Beginnings ----
  // Where tokens are dropped, some are computed in steps: they begin with the
  // first one.
  bool AdmitTokens(Tokens tokens) {
    const auto admission = cache_->AdmitPrompt(
        tokens, {.stream = Below(5) == 0 ? StreamId() : stream_,
                 .priority = static_cast<int32_t>(Below(2)),
                 .step_tokens = Below(3) == 0 ? 1 + Below(40) : UINT64_MAX});
    if (!admission.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(admission.status()))
          << admission.status();
      return false;
    }
    tokens.resize(*cache_->Length(admission->sequence));
    Begin(admission->sequence, tokens, admission->cached_tokens,
          admission->cached_tokens);
    if (Below(4) != 0) Publish(admission->sequence, tokens);
    return true;
  }
  void Prompt(const Tokens& tokens) { AdmitTokens(tokens); }
  void Admit() {
    Tokens tokens(Below(120));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_());
    std::optional<KvTokenLimit> limit;
    if (Below(2) == 0) limit = KvTokenLimit{.max_tokens = 50, .sinks = 6};
    const auto id = cache_->Admit(tokens.size(), limit);
    if (!id.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(id.status())) << id.status();
      return;
    }
    Begin(*id, tokens, 0, 0);
  }
  // The first `cached` rows are there, as far as the next token sees them.
  void Begin(SequenceId id, const Tokens& tokens, uint64_t cached,
             uint64_t floor) {
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    Shadow shadow{tokens, TokenRows(*cache_, id), floor};
    Tokens there = tokens;
    there.resize(cached);
    ASSERT_EQ(shadow.rows.FirstWrong(there, cached + 1), cached);
    shadow.rows.Write(tokens, cached);
    shadows_.emplace(id, std::move(shadow));
  }
  void Fork() {
    const Sequence* const parent = Any(/*swapped=*/false);
    if (parent == nullptr) return;
    const auto child = cache_->Fork(parent->first, stream_);
    if (!child.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(child.status())) << child.status();
      return;
    }
    const Tokens tokens = parent->second.tokens;
    Begin(*child, tokens, tokens.size(), parent->second.floor);
  }
  void Publish() {
    const Sequence* const any = Any(/*swapped=*/false);
    if (any != nullptr) Publish(any->first, any->second.tokens);
  }
  void Publish(SequenceId id, const Tokens& tokens) {
    ASSERT_TRUE(cache_->Publish(id, tokens).ok());
    history_.push_back(tokens);
  }

  // ---- Changes ----
  void Step() {
    // Kernels of before may still read.
    cache_->EndBatch(
        *Fence::Record(device_.driver(), DeviceId(0), std::span(&stream_, 1)));
    std::vector<SequenceStep> steps;
    for (const auto& [id, shadow] : shadows_) {
      if (shadow.swapped || Below(3) == 0) continue;
      const uint64_t by = Below(8) == 0 ? Below(60) : Below(3);
      steps.push_back({id, std::min(kMaxTokens, shadow.tokens.size() + by)});
    }
    const absl::Status status = cache_->Step(steps);
    // The kernels that write are behind those, on the stream.
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      // It may have dropped what only the next lengths do not see.
      for (const SequenceStep& step : steps)
        Grow(&shadows_.at(step.sequence),
             shadows_.at(step.sequence).tokens.size());
      return;
    }
    for (const SequenceStep& step : steps)
      Grow(&shadows_.at(step.sequence), step.length);
  }
  void Grow(Shadow* shadow, uint64_t length) {
    const uint64_t from = shadow->tokens.size();
    shadow->floor = std::max(shadow->floor, from);
    while (shadow->tokens.size() < length)
      shadow->tokens.push_back(static_cast<int32_t>(random_()));
    shadow->rows.Write(shadow->tokens, from);
  }
  void Shrink() {
    Sequence* const any = Any(/*swapped=*/false);
    if (any == nullptr) return;
    auto& [id, shadow] = *any;
    const uint64_t length = Below(shadow.tokens.size() + 1);
    const absl::Status status = cache_->Shrink(id, length, LateReader(shadow));
    // What is written next, or told to be complete, is behind the reader.
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    if (!status.ok()) {
      // Only what was dropped cannot be gone back to.
      ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      ASSERT_LT(length, shadow.floor);
      return;
    }
    shadow.tokens.resize(length);
    shadow.floor = std::min(shadow.floor, length);
  }
  void Release() {
    Sequence* const any = Any(/*swapped=*/Below(4) == 0);
    if (any == nullptr) return;
    const Fence fence = any->second.swapped ? Fence() : LateReader(any->second);
    ASSERT_TRUE(cache_->Release(any->first, fence).ok());
    shadows_.erase(any->first);
  }
  // Its tokens are computed again later, or found.
  void Preempt() {
    Sequence* const any = Any(/*swapped=*/false);
    if (any == nullptr) return;
    preempted_.push_back(any->second.tokens);
    Publish(any->first, any->second.tokens);
    ASSERT_TRUE(cache_->Release(any->first, LateReader(any->second)).ok());
    shadows_.erase(any->first);
  }
  void Resume() {
    if (preempted_.empty()) return;
    std::swap(preempted_[Below(preempted_.size())], preempted_.back());
    if (!AdmitTokens(preempted_.back())) return;
    preempted_.pop_back();
    ++resumed_;
  }
  // Half of the time a kernel reads the rows for a while.
  Fence LateReader(const Shadow& shadow) {
    if (Below(2) == 0) return Fence();
    const std::chrono::microseconds wait(Below(200));
    return device_.LaunchLate(
        stream_, wait, [rows = shadow.rows, tokens = shadow.tokens, this] {
          if (rows.FirstWrong(tokens, tokens.size() + 1) != tokens.size())
            ++late_errors_;
        });
  }

  // ---- Pressure ----
  void SwapOut() {
    Sequence* const any = Any(/*swapped=*/false);
    if (any == nullptr) return;
    const absl::Status status =
        cache_->SwapOut(any->first, LateReader(any->second));
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    any->second.swapped = status.ok();
    // It stays, and so do kernels that no later fence tells of.
    if (!status.ok()) {
      ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    }
  }
  void SwapIn() {
    Sequence* const any = Any(/*swapped=*/true);
    if (any == nullptr) return;
    const absl::Status status = cache_->SwapIn(any->first);
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    any->second.swapped = !status.ok();
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  }
  void Other() {
    if (Below(2) == 0) {
      ASSERT_TRUE(
          device_.memory()
              ->Decommit(other_, PageCount(0), PageCount(others_), Fence())
              .ok());
      others_ = 0;
      return;
    }
    const uint64_t more =
        std::min(Below(setting_.pages / 2), setting_.pages - others_);
    const absl::Status status =
        device_.memory()->Commit(other_, PageCount(others_), PageCount(more));
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    if (status.ok()) others_ += more;
  }
  void Ahead() {
    ASSERT_TRUE(cache_->PrepareAhead().ok());
    cache_->AdvanceClock(++clock_);
  }
  // Meanwhile everything belongs to somebody else.
  void Sleep() {
    DeviceMemory* const memory = device_.memory();
    {
      auto section = QuiescentSection::Begin(memory, std::span(&stream_, 1));
      ASSERT_TRUE(section.ok()) << section.status();
      const auto asleep = memory->Sleep(*section, owner_);
      ASSERT_TRUE(asleep.ok()) << asleep.status();
    }
    const PageCount rest(setting_.pages - others_);
    ASSERT_TRUE(memory->Commit(other_, PageCount(others_), rest).ok());
    ASSERT_TRUE(
        memory->Decommit(other_, PageCount(others_), rest, Fence()).ok());
    const auto awake = memory->Wake(owner_);
    ASSERT_TRUE(awake.ok()) << awake.status();
    ++sleeps_;
    for (const auto& [id, shadow] : shadows_) CheckRows(shadow);
  }

  // ---- Checks ----
  void Check() {
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    ASSERT_TRUE(device_.memory()->CheckInvariants().ok())
        << device_.memory()->CheckInvariants();
    const KvCacheStatistics statistics = cache_->GetStatistics();
    ASSERT_EQ(
        (statistics.committed.value() + statistics.parked.value()) / 4096 +
            others_,
        device_.live_pages());
    ASSERT_EQ(statistics.sequences, shadows_.size());
    uint64_t tokens = 0;
    for (const auto& [id, shadow] : shadows_) {
      ASSERT_EQ(*cache_->Length(id), shadow.tokens.size());
      if (!shadow.swapped) tokens += shadow.tokens.size();
    }
    ASSERT_EQ(statistics.tokens, tokens);
    if (const Sequence* const any = Any(/*swapped=*/false))
      CheckRows(any->second);
  }
  void CheckRows(const Shadow& shadow) {
    if (shadow.swapped) return;
    const uint64_t length = shadow.tokens.size();
    ASSERT_EQ(shadow.rows.FirstWrong(shadow.tokens, length + 1), length);
  }

  const Setting& setting_;
  TestDevice device_;
  std::mt19937_64 random_;
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
  OwnerId owner_;
  AddressRange* other_ = nullptr;
  uint64_t others_ = 0;
  std::map<SequenceId, Shadow> shadows_;
  std::vector<Tokens> history_;
  std::vector<Tokens> preempted_;
  uint64_t clock_ = 0;
  uint64_t sleeps_ = 0;
  uint64_t resumed_ = 0;
  std::atomic<int> late_errors_{0};
};

class KvCacheWholeModelTest : public ::testing::TestWithParam<Setting> {};

TEST_P(KvCacheWholeModelTest, EverySequenceHasTheRowsThatItsTokensHave) {
  World world(GetParam(), 20261130);
  world.Run(500);
  if (HasFatalFailure()) return;
  const KvCacheStatistics statistics = world.statistics();
  EXPECT_GT(statistics.prefix_hits, 5u);
  EXPECT_GT(statistics.forks, 5u);
  EXPECT_GT(statistics.swaps_in, 5u);
  EXPECT_GT(world.sleeps(), 2u);
  EXPECT_GT(world.resumed(), 1u);
}

TEST_P(KvCacheWholeModelTest, AlsoWithOtherSeeds) {
  const char* const seeds = std::getenv("QUIRE_MODEL_TEST_SEEDS");
  const int more = seeds == nullptr ? 1 : std::atoi(seeds);
  for (int seed = 1; seed <= more; ++seed) {
    SCOPED_TRACE(seed);
    World world(GetParam(), static_cast<uint64_t>(seed));
    world.Run(200);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, KvCacheWholeModelTest,
    ::testing::Values(
        Setting{"PerLayer", TestLayout(1), 160, {}, false, 0},
        Setting{"Compound", TestLayout(5), 140, {}, true, 4},
        Setting{"Windows", WindowTestLayout(40, 0), 140, {}, true, 0},
        Setting{"WindowsAndSinks", WindowTestLayout(40, 20), 140, {}, false, 4},
        Setting{"Limit", TestLayout(2), 140, {70, 10}, true, 0}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
